"""Which packages each image installs, from pyproject.toml; runs inside a build, with nothing but Python.

    python3 requirements.py --torch torch==2.13.0 --extras atari SOURCE TO

reads SOURCE/pyproject.toml and SOURCE/constraints.txt and writes to TO:

    core.txt, learner.txt, actor.txt   what the extra of that name needs, without torch
    ci.txt                             what the service on a cluster needs: the extras ci and kubernetes
    torch.txt                          torch alone: it comes first, from where its builder wants it
    pins.txt                           the versions that everything is tested with
    build.txt                          what builds the wheel
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

IMAGES = {"core": ["core"], "learner": ["learner"], "actor": ["actor"], "ci": ["ci", "kubernetes"]}
"""Image -> the extras that it installs."""


def name_of(requirement: str) -> str:
    """The package of a requirement in its normal spelling: `Jinja2>=3` is jinja2."""
    match = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", requirement.strip())
    return re.sub(r"[-_.]+", "-", match[0]).lower() if match else ""


def needed(project: Mapping[str, Any], extras: Sequence[str]) -> list[str]:
    """What a project and some of its extras need, extras of extras included.

    Args:
        project: the table of that name in pyproject.toml.
        extras: their names.

    Raises:
        ValueError: there is no such extra.
    """
    tables = project.get("optional-dependencies", {})

    def of(extra: str, seen: tuple[str, ...]) -> Iterator[str]:
        if extra not in tables:
            raise ValueError(f"no extra `{extra}`; there is {', '.join(sorted(tables))}")
        for requirement in tables[extra]:
            if name_of(requirement) != project["name"]:
                yield requirement
                continue
            for inner in re.findall(r"[^\s,]+", requirement.partition("[")[2].partition("]")[0]):
                if inner not in seen:
                    yield from of(inner, (*seen, inner))

    found = [*project.get("dependencies", []), *(item for extra in extras for item in of(extra, (extra,)))]
    return sorted(dict.fromkeys(found), key=str.lower)


def lists(pyproject: Mapping[str, Any], constraints: str, torch: str, extras: Sequence[str]) -> dict[str, str]:
    """Every file that is written, by name.

    Args:
        pyproject: the whole of pyproject.toml.
        constraints: the text of constraints.txt.
        torch: a requirement, as in torch==2.13.0; empty: the base has one.
        extras: for the actor, besides its own.

    Raises:
        ValueError: there is no such extra.
    """

    def without_torch(requirements: Sequence[str]) -> list[str]:
        return [requirement for requirement in requirements if name_of(requirement) != "torch"]

    project = pyproject["project"]
    pins = [line for line in constraints.splitlines() if line.strip() and not line.startswith("#")]
    made = {
        **{
            f"{image}.txt": needed(project, [*own, *(extras if image == "actor" else ())])
            for image, own in IMAGES.items()
        },
        "pins.txt": pins,
    }
    made = {file: without_torch(lines) for file, lines in made.items()}
    made["pins.txt"].append(torch)
    made |= {"torch.txt": [torch], "build.txt": pyproject["build-system"]["requires"]}
    return {file: "".join(f"{line}\n" for line in lines if line) for file, lines in made.items()}


def main(arguments: Sequence[str]) -> int:
    """Write the lists; 2 when an extra does not exist."""
    parser = argparse.ArgumentParser("requirements.py")
    parser.add_argument("--torch", default="", metavar="REQUIREMENT")
    parser.add_argument("--extras", default="", metavar="NAME,...")
    parser.add_argument("source", type=Path)
    parser.add_argument("to", type=Path)
    options = parser.parse_args(arguments)
    with (options.source / "pyproject.toml").open("rb") as file:
        pyproject = tomllib.load(file)
    constraints = (options.source / "constraints.txt").read_text(encoding="utf-8")
    extras = [name for name in re.split(r"[\s,]+", options.extras) if name]
    try:
        made = lists(pyproject, constraints, options.torch.strip(), extras)
    except ValueError as error:
        print(f"EXTRAS: {error}", file=sys.stderr)
        return 2
    for name, text in made.items():
        (options.to / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
