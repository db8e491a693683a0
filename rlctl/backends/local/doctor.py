"""Checks of this machine for a training: its system, packages, room, sockets, limits."""

from __future__ import annotations

import os
import platform
import resource
import shutil
from importlib.util import find_spec
from typing import Final

from rlctl.backends.base import Check
from rlctl.backends.local.process.supervisord import WANTED_FILES
from rlctl.backends.local.state import places
from rlctl.spec.layout import state_home
from rlctl.spec.machine import Machine
from rlctl.spec.words import number

_PACKAGES: Final = ("supervisor", "psutil", "rlctl_agents", "torch", "zmq", "msgspec", "safetensors", "gymnasium")
_GIB: Final = 2**30
_LITTLE_DISK_GIB: Final = 5.0
_NO_DISK_GIB: Final = 0.5


def look() -> list[Check]:
    """All checks; changes nothing. On a system other than Linux only the first: the others need Linux."""
    if (system := _system()).verdict == "problem":
        return [system]
    return [system, packages(), _disk(), _sockets(), _files(), _machine()]


def _system() -> Check:
    name = platform.system()
    if name != "Linux":
        text = f"{name}: roles need Linux, its /proc and prctl"
        return Check("system", "problem", text, "use a Linux machine, or a container or virtual machine with Linux")
    return Check("system", "ok", f"Linux {platform.release()}")


def packages() -> Check:
    lacking = [name for name in _PACKAGES if find_spec(name) is None]
    if lacking:
        return Check(
            "packages", "problem", f"not installed: {', '.join(lacking)}", 'pip install "rlctl[local]"'
        )  # fmt: skip
    return Check("packages", "ok", f"all {len(_PACKAGES)} are installed, Python {platform.python_version()}")


def _disk() -> Check:
    home = state_home()
    there = next(folder for folder in (home, *home.parents) if folder.is_dir())
    if not os.access(there, os.W_OK):
        return Check(
            "disk", "problem", f"{there} cannot be written", "set XDG_STATE_HOME to a folder of your own"
        )  # fmt: skip
    free = shutil.disk_usage(there).free / _GIB
    text = f"{free:.1f} GiB free in {home}"
    if free < _NO_DISK_GIB:
        return Check("disk", "problem", text, "free some space, or set storage.path to a larger disk")
    if free < _LITTLE_DISK_GIB:
        return Check("disk", "warning", text, "free some space, or set storage.path to a larger disk")
    return Check("disk", "ok", text)


def _sockets() -> Check:
    """Check of the private folder of sockets, or of its nearest parent that exists."""
    folder = places.sockets_of("0" * 32).parent
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if there == folder and (folder.lstat().st_uid != os.getuid() or folder.is_symlink()):
        return Check(
            "sockets", "problem", f"{folder} belongs to another user", "set XDG_RUNTIME_DIR to a folder of yours"
        )
    if not os.access(there, os.W_OK):
        return Check("sockets", "problem", f"{there} cannot be written", "set XDG_RUNTIME_DIR to a folder of yours")
    return Check("sockets", "ok", f"in {folder}")


def _files() -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
    if hard != resource.RLIM_INFINITY and hard < WANTED_FILES:
        return Check(
            "open files", "problem", f"at most {most}, a run asks for {WANTED_FILES}",
            "raise the hard limit: limits.conf, LimitNOFILE",
        )  # fmt: skip
    return Check("open files", "ok", f"{soft} now, {most} at most")


def _machine() -> Check:
    here = Machine.here()
    return Check("machine", "ok", f"{number(here.cores)} cores, {here.memory_mib / 1024:.1f} GiB of memory")
