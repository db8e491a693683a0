"""Where a run of this host user lies: the index of runs, its folders, and its private folder for sockets."""

from __future__ import annotations

import getpass
import os
import re
import secrets
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from rlctl.backends.local.files import broken, read_json, reported, to_json, write_changed
from rlctl.errors import BackendUnreachable
from rlctl.spec.layout import Layout, state_home

_RUN = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")
_UID = re.compile(r"[0-9a-f]{32}")
_LONGEST_BASE = 50
"""Bytes of the base folder: a Unix socket's path ends at 107, ours adds /<uid8>/modelpool-12.experience or so."""
_SAFE_PATH = re.compile(r"/[A-Za-z0-9._-][A-Za-z0-9._/-]*")


@dataclass(frozen=True, slots=True)
class Place:
    """One run as the index knows it, or as it would be entered."""

    run: str
    uid: str  # 32 hex digits
    storage: Path  # absolute
    sockets: Path  # private, short, no character that needs quoting
    recorded: bool  # False: minted just now, nothing is written

    @property
    def layout(self) -> Layout:
        return Layout.of(self.storage, self.run, self.uid)

    @property
    def supervisor_socket(self) -> Path:
        return self.sockets / "supervisor.sock"

    @property
    def control_socket(self) -> Path:
        return self.sockets / "manager-0.control"

    @property
    def life(self) -> Path:
        """Locked by the supervisor as long as it lives."""
        return self.layout.run / "supervisord.lock"


def index_folder() -> Path:
    return state_home() / "index"


def lock_file(run: str) -> Path:
    """Lies with the index, not in the run's folder, so that `down --volumes` does not remove what others wait for."""
    return index_folder() / f"{run}.lock"


def find(run: str) -> Place | None:
    """The run of that name, or None.

    Raises:
        BackendUnreachable: its entry is torn, foreign or cannot be read.
    """
    if not _RUN.fullmatch(run):
        return None
    path = index_folder() / f"{run}.json"
    what = f"the index entry of run {run}"
    entry = read_json(path, what)
    if entry is None:
        return None
    texts = [entry.get(key) for key in ("uid", "storage", "sockets", "target")]
    uid, storage, sockets, target = (text if isinstance(text, str) else "" for text in texts)
    if target and target != "local":
        return None
    if entry.get("run") != run or not _UID.fullmatch(uid) or not storage.startswith("/") or not sockets.startswith("/"):
        raise broken(path, what, "run, uid, storage or sockets is missing or wrong")
    place = Place(run, uid, Path(storage), Path(sockets), recorded=True)
    return place if place.layout.root.is_dir() else None  # its folder was removed by hand: the name is free


def names() -> list[str]:
    """All runs of the index."""
    with reported("cannot read"):
        return sorted(path.stem for path in index_folder().glob("*.json")) if index_folder().is_dir() else []


def place(run: str, storage: str | None = None) -> Place:
    """The run as recorded, else a fresh uid below `storage`; writes nothing.

    Args:
        storage: absolute folder; None: the state folder of this user.

    Raises:
        BackendUnreachable: its index entry is broken.
        ValueError: `storage` is relative: only the reader of the spec knows to what.
    """
    known = find(run)
    if known is not None:
        usable = _owned(known.sockets) or _owned(known.sockets.parent)
        return known if usable else Place(run, known.uid, known.storage, sockets_of(known.uid), recorded=True)
    folder = Path(storage) if storage is not None else state_home()
    if not folder.is_absolute():
        raise ValueError(f"storage must be an absolute path, got {storage!r}")
    uid = secrets.token_hex(16)
    return Place(run, uid, folder, sockets_of(uid), recorded=False)


def record(place: Place) -> bool:
    """Enter the run in the index; says whether that wrote.

    Raises:
        OSError: the index cannot be written.
    """
    index_folder().mkdir(mode=0o700, parents=True, exist_ok=True)
    entry = {"format": 1, "run": place.run, "uid": place.uid, "target": "local"}
    entry |= {"storage": str(place.storage), "sockets": str(place.sockets)}
    return write_changed(index_folder() / f"{place.run}.json", to_json(entry))


def forget(place: Place) -> None:
    """Remove the run from the index."""
    (index_folder() / f"{place.run}.json").unlink(missing_ok=True)


def make_sockets(folder: Path) -> None:
    """Create the private folder, and the one above it, for this user alone.

    Raises:
        BackendUnreachable: one of them is a link, or somebody else's.
        OSError: it cannot be made.
    """
    for part in (folder.parent, folder):
        part.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _owned(part):
            raise BackendUnreachable(
                f"folder {part} is not a folder of user {os.getuid()}, who asks for it",
                hint="Somebody else made it. Remove it, or set XDG_RUNTIME_DIR to a private folder.",
                objects=(str(part),),
            )
        part.chmod(0o700)


def clear_sockets(folder: Path) -> None:
    """Remove what dead processes left: sockets, and our own links."""
    if _owned(folder):
        shutil.rmtree(folder, ignore_errors=True)


def _owned(folder: Path) -> bool:
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def sockets_of(uid: str) -> Path:
    return _sockets_base(os.environ.get("XDG_RUNTIME_DIR", "")) / uid[:8]


def _sockets_base(runtime: str) -> Path:
    """`$XDG_RUNTIME_DIR/rlctl`, unless it would not last, does not fit, or needs quoting; then a folder in /tmp.

    The session manager removes /run/user/UID at the last logout unless the user lingers; a run that goes on without
    its user would lose its sockets.
    """
    fits = len(os.fsencode(runtime)) <= _LONGEST_BASE and _SAFE_PATH.fullmatch(runtime) is not None
    if fits and _owned(Path(runtime)) and (not runtime.startswith("/run/user/") or _lingers()):
        return Path(runtime) / "rlctl"
    return Path("/tmp") / f"rlctl-{os.getuid()}"


def _lingers() -> bool:
    try:
        return Path("/var/lib/systemd/linger", getpass.getuser()).exists()
    except (OSError, KeyError):  # a user without a name
        return False
