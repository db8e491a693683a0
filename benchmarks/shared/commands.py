"""A command from its start to its end: seconds, CPU seconds and the largest memory of its tree."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

# a process begins with the peak memory of the one that it was forked from: so it is forked from a small one
_LAUNCH = """
import os, sys, time
out = os.open("output", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
began = time.monotonic()
child = os.fork()
if child == 0:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0), os.dup2(out, 1), os.dup2(out, 2)
    try:
        os.execvp(sys.argv[1], sys.argv[1:])
    finally:
        os._exit(127)
_, status, usage = os.wait4(child, 0)
wall_s = time.monotonic() - began
print(wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss, os.waitstatus_to_exitcode(status))
"""


class Took(NamedTuple):
    """Resources that a command used."""

    wall_s: float
    cpu_s: float  # with children that it waited for
    peak_mib: float  # resident, of its largest process
    output_bytes: int


def took(command: Sequence[str], *, cwd: Path, env: Mapping[str, str] | None = None, ok: Sequence[int] = (0,)) -> Took:
    """Run it, with its output into a file `output` in that folder.

    Raises:
        RuntimeError: another exit code than `ok`.
    """
    told = subprocess.run(
        [sys.executable, "-S", "-E", "-c", _LAUNCH, *command],
        cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True,
    )  # fmt: skip
    wall_s, cpu_s, peak_kib, code = told.stdout.split()
    output = cwd / "output"
    if int(code) not in ok:
        said = output.read_bytes()[-500:].decode(errors="replace")
        raise RuntimeError(f"{' '.join(command)}: exit {code}: {said}")
    return Took(float(wall_s), float(cpu_s), int(peak_kib) / 1024, output.stat().st_size)
