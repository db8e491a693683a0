"""Commits are read in a process of their own: what is in them may ask for any memory and any time."""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from rlctl.images.append import Layer
from rlctl.images.builders.base import Ended
from rlctl.images.code import CodeArchive
from rlctl_ci.builders.source import Contents, Part
from rlctl_ci.core.errors import BuildStopped
from rlctl_ci.core.work import Job
from rlctl_ci.sandbox.keeper import PROCESSOR_SIGNAL
from rlctl_ci.sandbox.programs import Bounds, Programs, clean

READING_MIB: Final = 512
READING_CPU_S: Final = 300
"""Of the processor; 50,000 files beside 130 patterns take 40 s."""

Reader = Callable[[Job, Path, Part], Contents]


def read(job: Job, source: Path, part: Part) -> Contents:
    """A `Reader`: `source.contents` with limits of memory, processor and time, ended where the build is.

    Raises:
        BuildStopped: the commit cannot be built, or it takes too much.
    """
    limits = job.project.limits
    answer, into = job.folder / "contents.json", job.folder.absolute()
    # neither our environment nor a home of ours, as for every program of a build
    more = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    environ = clean(os.environ, into, **more)
    bounds = Bounds(limits.time_s, READING_MIB, cpu_s=READING_CPU_S)
    about = {"project": job.project.model_dump(mode="json"), "source": str(source.absolute()), "into": str(into)}
    try:
        ended = Programs(environ, bounds, job.stop, Path("/"))(
            [sys.executable, "-P", "-m", "rlctl_ci.builders"], out=answer,
            data=json.dumps({**about, "part": part}).encode(),
        )  # fmt: skip
    except BuildStopped as error:
        said = f"its spec, .dockerignore and files take more than {limits.time_s:g} s to be read"
        raise BuildStopped(error.code, said, hint="limits.time_s in ci.yaml") from error
    told = json.loads(answer.read_bytes()) if ended.code == 0 else {"stopped": _why(ended)}
    if "stopped" in told:
        code, message, hint = told["stopped"]
        raise BuildStopped(code, message, hint=hint)
    return _contents(told)


def plain(found: Contents) -> dict[str, Any]:
    """As JSON has it."""
    code, layer = found.code, found.layer
    return {
        "images": dict(found.images),
        "code": None if code is None else {
            "archive": str(code.archive), "digest": code.digest, "size": code.size, "files": code.files,
            "requirements": None if code.requirements is None else base64.b64encode(code.requirements).decode(),
        },
        "layer": None if layer is None else {
            "file": str(layer.file), "digest": layer.digest, "size": layer.size, "diff_id": layer.diff_id,
        },
    }  # fmt: skip


def _contents(told: Mapping[str, Any]) -> Contents:
    code, layer = told["code"], told["layer"]
    if code is not None:
        listed = code["requirements"]
        requirements = None if listed is None else base64.b64decode(listed)
        code = CodeArchive(**{**code, "archive": Path(code["archive"]), "requirements": requirements})
    if layer is not None:
        layer = Layer(**{**layer, "file": Path(layer["file"])})
    return Contents(told["images"], code, layer)


def _why(ended: Ended) -> tuple[str, str, str]:
    """Code, message and hint for a process that has ended without an answer."""
    if ended.code == 128 + PROCESSOR_SIGNAL:
        said = f"its spec, .dockerignore and files take more than {READING_CPU_S} s of processor time to be read"
        return "timeout", said, "fewer files, or fewer patterns in .dockerignore"
    if any("MemoryError" in line for line in ended.lines):
        return "memory", f"its spec, .dockerignore and files take more than {READING_MIB} MiB to be read", ""
    last = next((line for line in reversed(ended.lines) if line.strip()), f"exit {ended.code}")
    return "code", f"the commit cannot be read: {last}", ""
