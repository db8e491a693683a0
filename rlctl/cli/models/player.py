"""Programs that run a model in a child process, which needs torch and the environment; this one needs neither."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from rlctl.backends.files import unusable
from rlctl.cli.context import require
from rlctl.errors import EnvironmentRefused, RlctlError, WorkloadFailed

LOCAL: Final[Mapping[str, str]] = {"rlctl_agents": "local", "gymnasium": "local", "torch": "local"}
_BLAMED: Final[Mapping[str, type[RlctlError]]] = {
    "": RlctlError,
    "refused": EnvironmentRefused,
    "crashed": WorkloadFailed,
}
"""`environment` of a reply with an error -> class of the error."""
CLOSING_S: Final = 10.0
"""Seconds for an environment to close after the last reply."""


def played(
    program: str, question: Mapping[str, Any], code: Path | None, *, answers: int, also: Mapping[str, str] = LOCAL
) -> Iterator[dict[str, Any]]:
    """Replies of `python -m rlctl_agents evaluate`, `play` or `export`, as they arrive.

    Args:
        question: `folder` and the parameters of the program.
        code: folder of the user's own modules; None: the working directory.
        answers: number of replies.
        also: packages that it needs besides, with the extra that brings each.

    Raises:
        UsageError: one of its packages is not installed here.
        BackendUnreachable: it could not write or read a file.
        EnvironmentRefused: the environment cannot be made.
        WorkloadFailed: the environment failed; its traceback is on stderr.
        RlctlError: the child failed otherwise; with its message.
    """
    for package, extra in {**LOCAL, **also}.items():
        require(extra, package)
    environ = {**os.environ, **({"PYTHONPATH": str(code)} if code else {})}
    child = subprocess.Popen(
        [sys.executable, "-m", "rlctl_agents", program],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=code, env=environ, start_new_session=True,
    )  # fmt: skip
    assert child.stdin is not None
    assert child.stdout is not None
    (ended := threading.Thread(target=_end_group, args=(child.pid,))).start()
    try:
        with child.stdin as stream:
            stream.write(json.dumps(question))
        for line in itertools.islice(child.stdout, answers):
            answer = json.loads(line)
            if "errno" in answer:
                raise unusable(program, OSError(answer["errno"], str(answer["error"]), answer["file"]))
            if "error" in answer:
                raise _BLAMED[answer.get("environment", "")](str(answer["error"]))
            answers -= 1
            yield answer
        ended.join(None if answers else CLOSING_S)
        if not ended.is_alive() and (child.wait() != 0 or answers):
            raise RlctlError(f"{program} ended with exit code {child.returncode}", hint="its last words stand above")
    finally:
        if child.returncode is None:  # kill() would reap it first, and its group would live on
            os.kill(child.pid, signal.SIGKILL)
        ended.join()
        child.wait()
        child.stdout.close()


def _end_group(pid: int) -> None:
    """Kill the processes that the environment started, which may hold the pipe open, as soon as its own has ended."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    os.killpg(pid, signal.SIGKILL)  # an unreaped process keeps its pid
