"""`python -m rlctl_ci.builders`: one commit to be read on standard input, the answer as JSON on standard output."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rlctl_ci.builders.child import plain
from rlctl_ci.builders.source import contents
from rlctl_ci.config.settings import Project
from rlctl_ci.core.errors import BuildStopped


def main() -> None:
    asked = json.loads(sys.stdin.buffer.read())
    try:
        project = Project.model_validate(asked["project"])
        answer = plain(contents(project, Path(asked["source"]), Path(asked["into"]), asked["part"]))
    except BuildStopped as error:
        answer = {"stopped": [error.code, error.message, error.hint]}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
