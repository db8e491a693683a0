"""`python -m rlctl_ci.deploy`: one request on standard input; lines of JSON on standard output, the answer last."""

from __future__ import annotations

import json
import sys

from rlctl_ci.deploy.act import handle


def main() -> None:
    request = json.loads(sys.stdin.buffer.read())

    def say(text: str) -> None:
        print(json.dumps({"say": text}), flush=True)

    print(json.dumps(handle(request, say)), flush=True)


if __name__ == "__main__":
    main()
