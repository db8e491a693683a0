"""Plays with a model in a child process, which has torch and the environment; this one needs neither."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlctl.errors import RlctlError, UsageError


def played(program: str, question: Mapping[str, Any], code: Path | None) -> Iterator[dict[str, Any]]:
    """Answers of `python -m rlctl_agents evaluate` or `play`, as they come.

    Args:
        question: `folder` and what is wanted; see there.
        code: folder of the user's own modules; None: this one.

    Raises:
        UsageError: torch or gymnasium is not installed here.
        RlctlError: the child failed; with what it says.
    """
    for package in ("rlctl_agents", "gymnasium", "torch"):
        if importlib.util.find_spec(package) is None:
            raise UsageError(f"{package} is not installed here", hint='pip install "rlctl[local]"')
    environ = {**os.environ, **({"PYTHONPATH": str(code)} if code else {})}
    child = subprocess.Popen(
        [sys.executable, "-m", "rlctl_agents", program],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=code, env=environ, start_new_session=True,
    )  # fmt: skip
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        with child.stdin as stream:
            stream.write(json.dumps(question))
        for line in child.stdout:
            answer = json.loads(line)
            if "error" in answer:
                raise RlctlError(str(answer["error"]))
            yield answer
        if child.wait() != 0:
            raise RlctlError(f"playing ended with exit code {child.returncode}", hint="its last words stand above")
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
