"""`make lock`: writes requirements.lock, and those of tools with an environment of their own, from pyproject.toml.

    python scripts/lock.py                                  # keeps every version that still fits
    python scripts/lock.py --upgrade                        # takes the newest of all
    python scripts/lock.py --torch-index URL                # a new torch: URL is its own index of builds for CPUs

uv resolves for all platforms at once and names every file that a release has on the package index. The builds of torch
without CUDA lie on an index of their own and bear a local version (+cpu): they are a release of their own in the lock.
No index is named in what is written: which one pip asks is for the machine to say, what it may bring is for the lock.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # so that it needs no more than uv

from rlctl.images.requirements import LOCK, SETS, TRACKERS, TRACKERS_LOCK, Release, name_of, parse  # noqa: E402

BESIDE = Path("rlctl/images", TRACKERS_LOCK)
APART = {"checkov": (Path("tests/render/checkov", LOCK), "3.11.5"), "site": (Path("scripts/pages", LOCK), "3.11")}
"""Dependency group of a `make` target with an environment of its own -> its lock, and the oldest Python for it."""
HEAD = """\
# Every file of every release that rlctl is tested with: pip installs nothing else. Written by `make lock`; do not edit.
# Above each release stand the lists that it is part of, which rlctl/images/requirements.py writes: an extra of
# pyproject.toml (without torch), torch and what it needs, what builds the wheel, what writes this file.
# torch stands here twice: as the package index has it, and its builds without CUDA (+cpu).
"""
BESIDE_HEAD = """\
# What the extras wandb and mlflow add to core, as in requirements.lock, which has other versions of some of it.
# Written by `make lock`; do not edit.
"""
APART_HEAD = "# What `make {}` installs: pip installs nothing else. Written by `make lock`; do not edit.\n"
Resolve = Callable[[Sequence[str], Sequence[str]], list[Release]]


def wanted(pyproject: Mapping[str, Any]) -> dict[str, list[str]]:
    """List -> requirements, without torch and what comes of the build of torch.

    An extra's list holds what `pip install rlctl[extra]` needs: the project's own dependencies as well.
    """
    project = pyproject["project"]
    tables: Mapping[str, Sequence[str]] = project["optional-dependencies"]

    def of(extra: str, seen: tuple[str, ...]) -> Iterator[str]:
        for requirement in tables[extra]:
            if name_of(requirement) != project["name"]:
                yield requirement
                continue
            for inner in requirement.partition("[")[2].partition("]")[0].replace(" ", "").split(","):
                if inner not in seen:
                    yield from of(inner, (*seen, inner))

    found = {
        extra: sorted({*project["dependencies"], *of(extra, (extra,))}) for extra in tables if extra not in TRACKERS
    }
    found |= {"build": [*pyproject["build-system"]["requires"], "editables"]}
    found |= {"lock": pyproject["dependency-groups"]["lock"]}
    return {name: [one for one in needed if name_of(one) != "torch"] for name, needed in found.items()}


def make(
    pyproject: Mapping[str, Any],
    before: Sequence[Release],
    resolve: Resolve,
    cpu_builds: Callable[[str], Sequence[str]],
) -> list[Release]:
    """All releases, each with the lists that it is part of.

    Args:
        pyproject: the whole of pyproject.toml.
        before: releases of the lock as it is; their versions are kept where they fit.
        resolve: requirements, constraints -> releases with all that they need.
        cpu_builds: version of torch -> hashes of its builds without CUDA.

    Raises:
        ValueError: there are two versions of one package, or the builds of torch are not known.
    """
    before = [one for one in before if "+" not in one.version]
    needs = wanted(pyproject)
    torch = next(one for one in pyproject["project"]["optional-dependencies"]["learner"] if name_of(one) == "torch")
    everything = resolve(sorted({torch, *(one for needed in needs.values() for one in needed)}), pins(before))
    names = [name_of(release.name) for release in everything]
    if double := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"two versions of {', '.join(double)}: pip takes one list for every platform")
    exact = pins(everything)
    members = {name: {name_of(one.name) for one in resolve(needed, exact)} for name, needed in needs.items()}
    below = {name_of(one.name) for one in resolve([torch], exact)} - {"torch"}
    cuda = {name for name in below if name.startswith(("nvidia-", "cuda-")) or name == "triton"}
    members |= {"torch": {"torch"}, "torch-needs": below - cuda, "torch-cuda": cuda}
    made = []
    for release in sorted(everything, key=lambda one: name_of(one.name)):
        name = name_of(release.name)
        sets = frozenset(one for one, there in members.items() if name in there)
        made.append(replace(release, sets=sets))
        if name == "torch":
            hashes = tuple(sorted(cpu_builds(release.version)))
            made.append(Release("torch", f"{release.version}+cpu", "", hashes, frozenset({"torch-cpu"})))
    return made


def make_beside(
    pyproject: Mapping[str, Any], locked: Sequence[Release], before: Sequence[Release], resolve: Resolve
) -> list[Release]:
    """Releases that trackers need besides core, whose versions are those of the other lock.

    Args:
        locked: releases of the other lock.
        before: of this one.
    """
    core = [one for one in locked if "core" in one.sets]
    there, asked = {name_of(one.name) for one in core}, pyproject["project"]["optional-dependencies"]
    needs = {name: [*wanted(pyproject)["core"], *asked[name]] for name in sorted(TRACKERS)}
    kept = [one for one in before if name_of(one.name) not in there]
    everything = resolve(sorted({one for needed in needs.values() for one in needed}), pins([*core, *kept]))
    members = {name: {name_of(one.name) for one in resolve(needed, pins(everything))} for name, needed in needs.items()}
    return [
        replace(one, sets=frozenset(name for name, of in members.items() if name_of(one.name) in of))
        for one in sorted(everything, key=lambda one: name_of(one.name))
        if name_of(one.name) not in there
    ]


def pins(releases: Sequence[Release]) -> list[str]:
    return [f"{one.name}=={one.version}" for one in releases]


def text(releases: Sequence[Release], head: str) -> str:
    """A lock."""
    parts = [head]
    for release in releases:
        sets = f"{SETS} {' '.join(sorted(release.sets))}\n" if release.sets else ""
        parts.append(f"\n{sets}{release}\n")
    return "".join(parts)


def uv(requirements: Sequence[str], constraints: Sequence[str], *more: str, python: str = "3.11") -> list[Release]:
    """What uv makes of requirements: universal, with every hash, without a word of where files come from.

    Args:
        python: the oldest that is supported.
    """
    limits = ROOT / "build" / "lock-constraints.txt"
    limits.parent.mkdir(exist_ok=True)
    limits.write_text("".join(f"{line}\n" for line in constraints))
    command = [
        str(Path(sys.executable).with_name("uv")), "pip", "compile", "--quiet", "--universal", "--python-version",
        python, "--generate-hashes", "--fork-strategy", "fewest", "--no-header", "--no-annotate", "--no-emit-index-url",
        "--no-emit-find-links", "--system-certs", "--constraints", str(limits), *more, "-",
    ]  # fmt: skip
    done = subprocess.run(command, input="\n".join(requirements), cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise ValueError(f"uv: {done.stderr.strip()}")
    return parse(done.stdout)


def main(arguments: Sequence[str]) -> int:
    """Write all locks; 2 when one cannot be made."""
    parser = argparse.ArgumentParser("lock.py")
    parser.add_argument("--upgrade", action="store_true", help="forget the versions of before")
    parser.add_argument("--torch-index", metavar="URL", help="torch's own index of builds for CPUs")
    options = parser.parse_args(arguments)
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    locks = (Path(LOCK), BESIDE, *(path for path, _ in APART.values()))
    before = {path: parse((ROOT / path).read_text()) if (ROOT / path).exists() else [] for path in locks}
    index: str | None = options.torch_index

    def cpu_builds(version: str) -> Sequence[str]:
        if index is not None:
            limited = ["--no-deps", "--default-index", index]
            return [one for release in uv([f"torch=={version}+cpu"], (), *limited) for one in release.hashes]
        known = next((one for one in before[Path(LOCK)] if one.version == f"{version}+cpu"), None)
        if known is None:
            raise ValueError(
                f"torch {version}: the hashes of its builds for CPUs are not known; give --torch-index URL"
            )
        return known.hashes

    try:
        kept = {path: [] if options.upgrade else releases for path, releases in before.items()}
        locked = make(pyproject, kept[Path(LOCK)], uv, cpu_builds)
        beside = make_beside(pyproject, locked, kept[BESIDE], uv)
        made = {Path(LOCK): text(locked, HEAD), BESIDE: text(beside, BESIDE_HEAD)}
        for group, (path, python) in APART.items():
            releases = uv(pyproject["dependency-groups"][group], pins(kept[path]), python=python)
            made[path] = text(releases, APART_HEAD.format(group))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    for path, written in made.items():
        (ROOT / path).write_text(written)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
