"""Reading of commits in a process of its own: a commit may ask for any memory and any time."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict

from rlctl.images.builders.base import Ended
from rlctl_ci.builders.source import Contents, Part
from rlctl_ci.config.settings import Project
from rlctl_ci.core.build_attempt import Job
from rlctl_ci.core.errors import BuildStopped
from rlctl_ci.sandbox.keeper import PROCESSOR_SIGNAL
from rlctl_ci.sandbox.programs import Bounds, Programs, clean, require_room

READING_MIB: Final = 512
READING_CPU_S: Final = 300
"""Seconds of processor time to read a commit; 50,000 files beside 130 patterns take 40 s."""

Reader = Callable[[Job, Path, Part], Contents]


class Request(BaseModel):
    """Request to the child process: a commit to read; see `source.contents`."""

    project: Project
    source: Path
    into: Path
    part: Part


class Answer(BaseModel):
    """Reply of the child process: what it has read, or code, message and hint of a `BuildStopped`."""

    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
    contents: Contents | None = None
    stopped: tuple[str, str, str] | None = None


def read(job: Job, source: Path, part: Part) -> Contents:
    """`Reader` that runs `source.contents` with limits of memory, processor and time; it ends with the build.

    Raises:
        BuildStopped: the commit cannot be built, or reading it exceeds a limit.
        Transient: it was ended from outside.
        OSError: the disk is full.
    """
    limits = job.project.limits
    answer, into = job.folder / "contents.json", job.folder.absolute()
    # neither our environment nor a home of ours, as for every program of a build
    more = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    environ = clean(os.environ, into, **more)
    bounds = Bounds(limits.time_s, READING_MIB, cpu_s=READING_CPU_S)
    request = Request(project=job.project, source=source.absolute(), into=into, part=part)
    try:
        ended = Programs(environ, bounds, job.stop, Path("/"))(
            [sys.executable, "-P", "-m", "rlctl_ci.builders"], out=answer,
            data=request.model_dump_json().encode(),
        )  # fmt: skip
    except BuildStopped as error:
        said = f"its spec, .dockerignore and files take more than {limits.time_s:g} s to be read"
        raise BuildStopped(error.code, said, hint="limits.time_s in ci.yaml") from error
    require_room(ended)
    told = Answer.model_validate_json(answer.read_bytes()) if ended.code == 0 else Answer(stopped=_why(ended))
    if told.contents is None:
        assert told.stopped is not None
        code, message, hint = told.stopped
        raise BuildStopped(code, message, hint=hint)
    return told.contents


def _why(ended: Ended) -> tuple[str, str, str]:
    """Code, message and hint for a process that has ended without an answer."""
    if ended.code == 128 + PROCESSOR_SIGNAL:
        said = f"its spec, .dockerignore and files take more than {READING_CPU_S} s of processor time to be read"
        return "timeout", said, "fewer files, or fewer patterns in .dockerignore"
    if any("MemoryError" in line for line in ended.lines):
        return "memory", f"its spec, .dockerignore and files take more than {READING_MIB} MiB to be read", ""
    last = next((line for line in reversed(ended.lines) if line.strip()), f"exit {ended.code}")
    return "code", f"the commit cannot be read: {last}", ""
