"""Lists of packages that pip installs by hash, picked from requirements.lock; runs with nothing but Python.

    python3 requirements.py --torch torch==2.13.0 --extras atari SOURCE TO

reads SOURCE/requirements.lock and writes to TO:

    core.txt, learner.txt, actor.txt   what the extra of that name needs, and the extras of --extras for the actor
    ci.txt                             what the service on a cluster needs: the extras ci and kubernetes
    trackers.txt                       what the extras wandb and mlflow add to core, where --extras names them
    local.txt, dev.txt, ...            those of the other extras, for `make`
    torch.txt, torch-cpu.txt           torch alone, which comes first, and its build without CUDA
    torch-needs.txt, torch-cuda.txt    what torch needs; what one with CUDA needs besides
    build.txt                          what builds the wheel

No other list holds torch or what it alone needs: a base image may have a torch of its own.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LOCK: Final = "requirements.lock"
SETS: Final = "# in:"
"""Beginning of the line above a release; the names of its lists follow."""
TRACKERS_LOCK: Final = "trackers.lock"
"""Lock of the trackers, beside this file: their packages are compatible with core alone."""
TRACKERS: Final = frozenset({"wandb", "mlflow"})
"""Extras that go to the manager, not to the actor."""
NO_EXTRAS: Final = frozenset({"torch", "torch-cpu", "torch-needs", "torch-cuda", "build", "lock"})
IMAGES: Final[Mapping[str, Sequence[str]]] = {"ci": ("ci", "kubernetes")}
"""Images that install more than the extra of their name."""
SOURCES: Final = frozenset({"box2d", "box2d-py"})
"""Packages that may be built on the machine where they have no wheel: Linux on arm64, Python 3.14."""

_RELEASE = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[^\s;\\]+)(?:\s*;\s*(?P<marker>[^\\]*[^\\\s]))?"
)
_HASH = re.compile(r"--hash=(sha256:[0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Release:
    """One version of a package, with the digests of all its files."""

    name: str
    version: str
    marker: str  # environment marker of PEP 508; "" where it is installed everywhere
    hashes: tuple[str, ...]
    sets: frozenset[str] = frozenset()

    def __str__(self) -> str:
        marker = f" ; {self.marker}" if self.marker else ""
        return " \\\n    ".join([f"{self.name}=={self.version}{marker}", *(f"--hash={one}" for one in self.hashes)])


def name_of(requirement: str) -> str:
    """Normalised package name of a requirement: `Jinja2>=3` is jinja2."""
    match = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", requirement.strip())
    return re.sub(r"[-_.]+", "-", match[0]).lower() if match else ""


def parse(text: str) -> list[Release]:
    """Parse the releases of a lock.

    Raises:
        ValueError: a line is not understood, or a release has no hash.
    """
    found: list[Release] = []
    sets: frozenset[str] = frozenset()
    for line in re.sub(r"\\\n\s*", "\\\\ ", text).splitlines():
        if line.startswith(SETS):
            sets = frozenset(line.removeprefix(SETS).split())
        if not line.strip() or line.startswith("#"):
            continue
        match = _RELEASE.match(line)
        hashes = tuple(_HASH.findall(line))
        if match is None or not hashes:
            raise ValueError(f"{line[:80]!r} is no release with its hashes")
        found.append(Release(match["name"], match["version"], match["marker"] or "", hashes, sets))
        sets = frozenset()
    return found


def lists(releases: Sequence[Release], torch: str, extras: Sequence[str] = ()) -> dict[str, str]:
    """Text of every list, by file name.

    Args:
        releases: releases of the lock.
        torch: a locked release, as in torch==2.13.0 or torch==2.13.0+cpu; empty: the base has torch; another release
            with its hashes, and with all that it needs besides `torch-needs.txt`, as in
            `torch==2.13.0+cu126 --hash=sha256:...`.
        extras: for the actor besides its own, and trackers for the manager.

    Raises:
        ValueError: there is no such extra, or another torch has no hashes.
    """
    names = {name for release in releases for name in release.sets}
    if unknown := [extra for extra in extras if extra not in names - NO_EXTRAS]:
        raise ValueError(f"EXTRAS: no extra `{unknown[0]}`; there is {', '.join(sorted(names - NO_EXTRAS))}")
    made = {}
    for name in sorted(names):
        wanted = {*IMAGES.get(name, (name,)), *({*extras} - TRACKERS if name == "actor" else ())}
        made[f"{name}.txt"] = written([release for release in releases if release.sets & wanted])
    made["trackers.txt"] = written([release for release in releases if release.sets & TRACKERS & {*extras}])
    if torch != default_torch(releases):
        locked = next(
            (one for one in releases if torch == f"{one.name}=={one.version}" and "torch-cpu" in one.sets), None
        )
        made["torch.txt"] = made["torch-cpu.txt"] = written([locked]) if locked else _own_torch(torch)
        made["torch-cuda.txt"] = ""
    if not torch:
        made["torch-needs.txt"] = ""
    return made


def default_torch(releases: Sequence[Release]) -> str:
    """The locked torch of the package index, as in torch==2.13.0."""
    return next(f"{one.name}=={one.version}" for one in releases if "torch" in one.sets)


def written(releases: Sequence[Release]) -> str:
    """Text for `pip install --require-hashes -r`; of these packages only SOURCES may run code during installation."""
    wheels = sorted({release.name for release in releases if name_of(release.name) not in SOURCES})
    head = [f"--only-binary {','.join(wheels)}"] if wheels else []
    return "".join(f"{line}\n" for line in (*head, *map(str, releases)))


def _own_torch(torch: str) -> str:
    """Requirements with hashes, a line each, from one line that holds them all."""
    lines: list[str] = []
    for word in torch.split():
        if word.startswith("--hash=") and lines:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    for line in lines:
        if "==" not in line or not _HASH.search(line):
            raise ValueError(
                f"TORCH: {line} is not in {LOCK}, so it needs its hashes: "
                f"TORCH='{name_of(line)}==VERSION --hash=sha256:...'"
            )
    return "".join(f"{line}\n" for line in lines)


def main(arguments: Sequence[str]) -> int:
    """Write the lists; 2 when one of them cannot be made."""
    parser = argparse.ArgumentParser("requirements.py")
    parser.add_argument("--torch", metavar="REQUIREMENT", help="default: the locked one")
    parser.add_argument("--extras", default="", metavar="NAME,...")
    parser.add_argument("source", type=Path)
    parser.add_argument("to", type=Path)
    options = parser.parse_args(arguments)
    extras = [name for name in re.split(r"[\s,]+", options.extras) if name]
    try:
        locks = (options.source / LOCK, Path(__file__).with_name(TRACKERS_LOCK))
        releases = [release for lock in locks for release in parse(lock.read_text(encoding="utf-8"))]
        torch = default_torch(releases) if options.torch is None else options.torch.strip()
        made = lists(releases, torch, extras)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    options.to.mkdir(parents=True, exist_ok=True)
    for name, text in made.items():
        (options.to / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
