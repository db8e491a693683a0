"""A home folder for the tests alone, and the proof that the user's own was left as it was."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping, MutableMapping
from pathlib import Path

KEPT = ("RLCTL_TEST_", "RLCTL_BENCH_", "RLCTL_REWRITE_")  # what a person tells the tests
KUBECONFIG = "RLCTL_TEST_KUBECONFIG"
"""The user's KUBECONFIG, for the tests that a cluster was made for; the product's own variable leads nowhere."""

Listing = dict[Path, tuple[int, int]]
"""File -> (mtime in ns, size in bytes); a folder's are 0."""


def watched(environ: Mapping[str, str]) -> list[Path]:
    """Every place outside a checkout where rlctl, or a library it uses, keeps something of this user."""
    home = Path(environ.get("HOME") or "/nonexistent")
    state = Path(environ.get("XDG_STATE_HOME") or home / ".local" / "state")
    config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    kube = [Path(part) for part in environ.get("KUBECONFIG", "").split(os.pathsep) if part]  # not kubectl's caches
    runtime = [Path(environ["XDG_RUNTIME_DIR"]) / "rlctl"] if environ.get("XDG_RUNTIME_DIR") else []
    files = [config / "containers" / "auth.json", home / ".docker" / "config.json", home / ".kube" / "config", *kube]
    return [state / "rlctl", config / "rlctl", *files, *runtime]


def listing(places: Iterable[Path]) -> Listing:
    """Files in the places now. A run that the user left running writes on: files below `runs/` are left out."""
    found: Listing = {}
    for place in places:
        for path in [place, *place.rglob("*")] if place.is_dir() else [place]:
            try:
                seen = path.lstat()
            except OSError:
                continue
            parts = path.relative_to(place).parts
            if len(parts) > 2 and parts[0] in ("runs", "ci"):
                continue
            found[path] = (0, 0) if path.is_dir() else (seen.st_mtime_ns, seen.st_size)
    return found


def changes(before: Listing, after: Listing) -> list[str]:
    """Changes in between: made, changed or removed, a line each."""
    made = [f"made {path}" for path in after.keys() - before.keys()]
    gone = [f"removed {path}" for path in before.keys() - after.keys()]
    changed = [f"changed {path}" for path in before.keys() & after.keys() if before[path] != after[path]]
    return sorted(made + gone + changed)


class Home:
    """A folder in which everything lies that a test writes for its user, until `close`."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        self._places = watched(environ)
        self._before = listing(self._places)
        self.folder = Path(tempfile.mkdtemp(prefix="rlctl-tests-"))
        _point(environ, self.folder)

    def close(self) -> list[str]:
        """Remove it; what has changed in the user's own home since the beginning, and what tests left to each other."""
        left = [f"left to the next test: {path}" for path in (self.folder / "state").rglob("*") if path.is_file()]
        shutil.rmtree(self.folder, ignore_errors=True)
        return left + changes(self._before, listing(self._places))


def _point(environ: MutableMapping[str, str], folder: Path) -> None:
    """Lead every variable that names a place of the user into the folder; drop what would steer the product."""
    real = environ.get("KUBECONFIG") or str(Path(environ.get("HOME", "/")) / ".kube" / "config")
    for name in [name for name in environ if name.startswith("RLCTL_") and not name.startswith(KEPT)]:
        del environ[name]
    runtime = folder / "r"
    runtime.mkdir(mode=0o700)
    environ.update({
        "HOME": str(folder),
        "XDG_STATE_HOME": str(folder / "state"),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "XDG_DATA_HOME": str(folder / "data"),
        "XDG_RUNTIME_DIR": str(runtime),
        "KUBECONFIG": str(folder / "no-kubeconfig"),
        KUBECONFIG: environ.get(KUBECONFIG, real),
    })  # fmt: skip
