"""Places of the runs of this host user: the index of runs, their folders, and their private folders for sockets."""

from __future__ import annotations

import getpass
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rlctl.backends.files import read_json, reported, to_json, write_changed
from rlctl.errors import BackendUnreachable, Unreadable
from rlctl.spec.layout import Layout, state_home
from rlctl.spec.runs import run_index
from rlctl.spec.runs.run_index import IndexEntry, Torn

_RUN = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")
_UID = re.compile(r"[0-9a-f]{32}")
SOCKET = "supervisor.sock"
LINK = "run"
"""Name of a link in the private folder: it leads to the run's own `run`."""
_LONGEST_BASE = 50
"""Bytes of the base folder's path, at most: a Unix socket's path has 107, and ours adds /<uid8>/modelpool-12.experience
or the like."""
_SAFE_PATH = re.compile(r"/[A-Za-z0-9._-][A-Za-z0-9._/-]*")


@dataclass(frozen=True, slots=True)
class Place:
    """Folders of one run as the index has them, or as they would be entered."""

    run: str
    uid: str  # 32 hex digits
    storage: Path  # absolute
    sockets: Path  # private, short, no character that needs quoting
    recorded: bool  # False: the uid is new, and nothing is written

    @property
    def layout(self) -> Layout:
        return Layout.of(self.storage, self.run, self.uid)

    @property
    def supervisor_socket(self) -> Path:
        return self.sockets / SOCKET

    @property
    def control_socket(self) -> Path:
        return self.sockets / "manager-0.control"

    @property
    def life(self) -> Path:
        """Lock file that the supervisor holds as long as it lives."""
        return self.layout.run / "supervisord.lock"


def lock_file(run: str) -> Path:
    """The lock file of a run, beside the index: waiting commands need it while `down --volumes` removes the folder."""
    return run_index.folder() / f"{run}.lock"


def find(run: str) -> Place | None:
    """The run of that name, or None.

    Raises:
        Unreadable: its entry is torn, foreign or cannot be read; its folder is known nevertheless.
        BackendUnreachable: the same, and it is unknown which folder is the run's.
    """
    try:
        return _entered(run)
    except Torn as error:
        raise _unreadable(run, error) from error


def find_at_least(run: str) -> Place | None:
    """Like `find`; if the entry cannot be read, the only folder of that name: enough to read and stop, not to remove.

    Raises:
        BackendUnreachable: the entry cannot be read, and there is no such folder or more than one.
    """
    try:
        return _entered(run)
    except Torn as error:
        found = _by_name(run)
        if len(found) != 1:
            raise _unreadable(run, error) from error
        return found[0]


def _entered(run: str) -> Place | None:
    if not _RUN.fullmatch(run):
        return None
    entry = run_index.read(run)
    if entry is None or entry.target != "local":
        return None
    uid, sockets = entry.uid, entry.sockets
    if not _UID.fullmatch(uid) or not entry.storage.startswith("/"):
        raise Torn(run, "uid or storage is missing or wrong")
    if not _made_here(sockets, uid):  # `down` clears that folder
        if re.fullmatch(rf"/\S+/rlctl-\d+/{uid[:8]}", sockets) is None:
            raise Torn(run, f"sockets is no folder that rlctl makes for uid {uid[:8]}, got {sockets or 'nothing'}")
        sockets = str(sockets_of(uid))  # that was another user's, on the machine that the run comes from
    place = Place(run, uid, Path(entry.storage), Path(sockets), recorded=True)
    try:
        return place if stat.S_ISDIR(place.layout.root.stat().st_mode) else None
    except (FileNotFoundError, NotADirectoryError) as error:
        if os.path.isdir(place.layout.root.parent):
            return None  # its folder was removed by hand: the name is free
        raise BackendUnreachable(
            f"{entry.storage}, where the data of run {run} lies, is not there",
            hint=f"Mount it; if it is gone for good, move {run_index.path(run)} away.",
            objects=(entry.storage,),
        ) from error
    except OSError as error:
        root = str(place.layout.root)
        raise BackendUnreachable(
            f"the folder of run {run}, {root}, cannot be looked at: {error.strerror}",
            hint="Mount its file system, or make it readable.",
            objects=(root,),
        ) from error


def _unreadable(run: str, error: Torn) -> BackendUnreachable:
    path, found = run_index.path(run), _by_name(run)
    if len(found) == 1:
        root = str(found[0].layout.root)
        hint = (
            f"Put {path} right, or move it away: `rlctl up` then begins a new run, and {root} stays as it is. "
            f"Until then `rlctl logs --run {run}` and `rlctl down {run}` answer."
        )
        return Unreadable(error.message, run=run, storage=root, hint=hint, objects=(str(path),))
    there = ", ".join(str(place.layout.root) for place in found)
    which = f"which of {there} it is cannot be told" if found else f"no folder of it lies in {state_home() / 'runs'}"
    if isinstance(error.__cause__, OSError):  # it is whole, and perhaps the only record of where a run's pods are
        return BackendUnreachable(error.message, hint=f"{error.hint} {which.capitalize()}.", objects=(str(path),))
    hint = f"Put {path} right, or move it away: the name is free then; {which}."
    return BackendUnreachable(error.message, hint=hint, objects=(str(path),))


def _by_name(run: str) -> list[Place]:
    """Every folder of a run of that name below the storage home: the fallback if its index entry cannot be read."""
    if not _RUN.fullmatch(run):
        return []
    pattern = re.compile(re.escape(run) + "-([0-9a-f]{8})")
    found = []
    for path in _entries(state_home() / "runs"):
        match = pattern.fullmatch(path.name)
        if match and _owned(path) and _owned(Layout(path).run):
            uid = _uid_of(Layout(path), run, match[1])
            found.append(Place(run, uid, state_home(), _rendered_sockets(Layout(path), uid), recorded=True))
    return sorted(found, key=lambda place: place.layout.root)


def _uid_of(layout: Layout, run: str, uid8: str) -> str:
    """The run's uid from its state; else its first 8 digits, padded with 0: its folders are named after these alone."""
    with suppress(BackendUnreachable):
        stored = read_json(layout.run / "state.json", "the state") or {}
        uid = str(stored.get("uid"))
        if stored.get("run") == run and _UID.fullmatch(uid) and uid.startswith(uid8):
            return uid
    return uid8.ljust(32, "0")


def _rendered_sockets(layout: Layout, uid: str) -> Path:
    """Private folder in the configuration of the run's supervisor."""
    with suppress(OSError, UnicodeDecodeError):
        text = (layout.run / "supervisord.conf").read_text(encoding="utf-8")
        match = re.search(r"^file = (/\S+)/supervisor\.sock$", text, re.MULTILINE)
        if match and _made_here(match[1], uid):
            return Path(match[1])
    return sockets_of(uid)


def _made_here(sockets: str, uid: str) -> bool:
    """Whether `sockets_of` makes such a folder, in this environment or another."""
    path = Path(sockets)
    ours = path.parent.name in ("rlctl", f"rlctl-{os.getuid()}")
    return ours and path.name == uid[:8] and _SAFE_PATH.fullmatch(sockets) is not None and ".." not in path.parts


def names() -> list[str]:
    """Names of all runs in the index."""
    with reported("cannot read"):
        return run_index.names()


def place(run: str, storage: str | None = None) -> Place:
    """The run's place as recorded, else one with a fresh uid below `storage`; writes nothing.

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


def record(place: Place) -> None:
    """Enter the run in the index.

    Raises:
        OSError: the index cannot be written.
    """
    run_index.folder().mkdir(mode=0o700, parents=True, exist_ok=True)
    entry = IndexEntry(place.run, place.uid, storage=str(place.storage), sockets=str(place.sockets))
    write_changed(run_index.path(place.run), to_json(entry.stored()))


def forget(place: Place) -> None:
    """Remove the run from the index."""
    run_index.path(place.run).unlink(missing_ok=True)


def make_sockets(folder: Path) -> None:
    """Create the private folder, and the one above it, for this user alone.

    Raises:
        BackendUnreachable: one of them is a link, or another user's.
        OSError: it cannot be made.
    """
    for part in (folder.parent, folder):
        part.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _owned(part):
            raise BackendUnreachable(
                f"folder {part} is not a folder of user {os.getuid()}",
                hint="Another user made it. Remove it, or set XDG_RUNTIME_DIR to a private folder.",
                objects=(str(part),),
            )
        part.chmod(0o700)


def clear_sockets(folder: Path, *, keep: str = "") -> None:
    """Remove the sockets of dead processes and our own link, and the folder once it is empty. Never anything else.

    Args:
        keep: name of a socket that stays, and the folder with it.
    """
    if not _owned(folder):
        return
    for path in _entries(folder):
        with suppress(OSError):
            mode = path.lstat().st_mode
            ours = stat.S_ISSOCK(mode) or (stat.S_ISLNK(mode) and path.name == LINK)
            if ours and path.name != keep:
                path.unlink()
    with suppress(OSError):  # it holds other files
        folder.rmdir()


def check_data(place: Place) -> None:
    """Check that the folder of a run may be removed, before `remove_data`.

    Raises:
        BackendUnreachable: the folder is not a run's; nothing may be removed.
    """
    root, run = place.layout.root, place.layout.run
    if not _owned(root) or not (_owned(run) or not any(_entries(root))):
        raise BackendUnreachable(
            f"folder {root} is not that of run {place.run}: it holds no folder {run.name} of user {os.getuid()}",
            hint=f"Nothing is removed. Look into it; {run_index.path(place.run)} names it.",
            objects=(str(root),),
        )


def remove_data(place: Place) -> None:
    """Remove the folder of a run, its `run` last: after a kill, the rest is still known as a run's folder.

    Raises:
        OSError: something in it cannot be removed.
    """
    root, run = place.layout.root, place.layout.run
    for path in _entries(root):
        if path == run:
            continue
        if stat.S_ISDIR(path.lstat().st_mode):
            shutil.rmtree(path)
        else:
            path.unlink()
    if _owned(run):
        shutil.rmtree(run)
    root.rmdir()


def _entries(folder: Path) -> Iterator[Path]:
    """Paths of a folder's entries; none when it cannot be read."""
    with suppress(OSError):
        yield from [folder / name for name in sorted(os.listdir(folder))]


def _owned(folder: Path) -> bool:
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def sockets_of(uid: str) -> Path:
    return _sockets_base(os.environ.get("XDG_RUNTIME_DIR", "")) / uid[:8]


def _sockets_base(runtime: str) -> Path:
    """Base of private folders: `$XDG_RUNTIME_DIR/rlctl`; /tmp if that would not last, is too long, or needs quoting.

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
