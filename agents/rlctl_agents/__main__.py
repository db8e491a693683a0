"""`python -m rlctl_agents ROLE ...` is one role process; `python -m rlctl_agents probe --check` tries a spec,
`python -m rlctl_agents tensorboard ...` shows the curves of a run, `page` the status page of a finished run, `files`
serves the files that it has stored, `evaluate` and `play` act with a stored model, `export` writes one as a graph,
`debug` runs all roles in one thread, for a debugger, `repro` plays a recorded episode again.

Before anything large is imported, the kernel is asked to kill this process when its parent dies: no role outlives a
killed supervisor.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

PROGRAMS = {
    "probe": "roles.spec_check",
    "tensorboard": "roles.tensorboard_server",
    "page": "manager.web.stored_page",
    "files": "manager.web.files_server",
    "evaluate": "policies.evaluate",
    "play": "policies.show",
    "export": "policies.export",
    "debug": "debugging.program",
    "repro": "repro.playing",
}
"""Subcommand -> module, of the subcommands that are not roles."""
ALONE: dict[str, list[str]] = {"probe": ["--check"], "evaluate": [], "play": [], "export": []}
"""Subcommands that read a request from stdin -> the only arguments they take."""
PR_SET_PDEATHSIG = 1
FAILED = 1
THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "TORCHINDUCTOR_COMPILE_THREADS",  # processes of torch's compiler, by default as many as the machine has cores
)
"""Environment variables that limit a library's compute threads, read once when it is loaded: a process that shares its
cores gets slower with more threads than cores of its own."""


def die_with_parent() -> None:
    """Ask for SIGKILL when the parent dies (strictly: the thread of the parent that started us); Linux only.

    A parent that died before that is noticed too: this process exits at once.
    """
    parent = os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        print(f"prctl: {os.strerror(ctypes.get_errno())}", file=sys.stderr)
    # the new parent of an orphan is process 1, or a nearer one that asked for orphans, such as a user's systemd
    orphaned = os.environ.get("SUPERVISOR_PROCESS_NAME") in sys.argv and not _is_supervisor(parent)
    if os.getppid() != parent or orphaned:
        os._exit(FAILED)


def _is_supervisor(pid: int) -> bool:
    try:
        return b"supervisord" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def limit_threads() -> None:
    """Limit libraries to one compute thread, unless OMP_NUM_THREADS is set: before numpy and torch are loaded."""
    threads = os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name in THREADS[1:]:
        os.environ.setdefault(name, threads)


def hear_signals() -> None:
    """Exit at SIGTERM while this is process 1 of a container and has no handler yet: the kernel delivers no signal
    without a handler to process 1, which would be killed half a minute later.
    """
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda number, frame: os._exit(0))


def main(arguments: Sequence[str]) -> int:
    """Run a role, or one of the other programs; returns the exit code."""
    word, words = next(iter(arguments), ""), list(arguments[1:])
    if (program := PROGRAMS.get(word)) and words == ALONE.get(word, words):  # each imports what it needs
        code: int = importlib.import_module(f"rlctl_agents.{program}").main(words)
        return code
    from rlctl_agents.runtime.process import Process, run_role

    def run(process: Process) -> None:
        # each role imports what it needs: manager and modelpool run without torch
        module = importlib.import_module(f"rlctl_agents.roles.{process.role}")
        try:
            module.main(process)
        except (SystemExit, KeyboardInterrupt) as end:  # raised by the user's code: signals raise none here
            raise RuntimeError(f"ended from within by {type(end).__name__}({end})") from end

    return run_role(arguments, run)


if __name__ == "__main__":
    hear_signals()
    if sys.argv[1:2] not in (["debug"], ["repro"]):  # a shell or an IDE starts these, from any thread
        die_with_parent()
    limit_threads()
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # everything is stored and closed; taking torch to pieces would take seconds on a busy machine
