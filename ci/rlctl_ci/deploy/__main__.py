"""`python -m rlctl_ci.deploy`: one request on standard input; lines of JSON on standard output, the answer last."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from rlctl_ci.deploy.deployment import handle


def main() -> None:
    request = json.loads(sys.stdin.buffer.read())

    def tell(line: Mapping[str, Any]) -> None:
        print(json.dumps(line), flush=True)

    tell(handle(request, lambda text: tell({"say": text}), redeployed=lambda: tell({"redeployed": True})))


if __name__ == "__main__":
    main()
