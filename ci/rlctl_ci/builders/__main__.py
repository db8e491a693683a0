"""`python -m rlctl_ci.builders`: a `Request` as JSON on standard input, the `Answer` as JSON on standard output."""

from __future__ import annotations

import sys

from rlctl_ci.builders.child import Answer, Request
from rlctl_ci.builders.source import contents
from rlctl_ci.core.errors import BuildStopped, no_room


def main() -> None:
    asked = Request.model_validate_json(sys.stdin.buffer.read())
    try:
        answer = Answer(contents=contents(asked.project, asked.source, asked.into, asked.part))
    except BuildStopped as error:
        if (full := no_room(error)) is not None:
            raise full from None  # its words reach the parent by a pipe; the answer is a file
        answer = Answer(stopped=(error.code, error.message, error.hint))
    print(answer.model_dump_json())


if __name__ == "__main__":
    main()
