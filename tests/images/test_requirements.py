"""What each image installs: enough for its roles, and versions that are tested."""

import importlib.metadata
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from rlctl.images.requirements import lists, main, name_of, needed

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CONSTRAINTS = (ROOT / "constraints.txt").read_text()
PROJECT = {
    "name": "thing",
    "dependencies": ["Rich>=14"],
    "optional-dependencies": {"a": ["x>=1", "thing[b]"], "b": ["y", "rich>=13", "thing[a, c]"], "c": ["z[extra]==2"]},
}


def test_extras_bring_those_that_they_name_even_in_a_circle() -> None:
    assert needed(PROJECT, ["a"]) == ["rich>=13", "Rich>=14", "x>=1", "y", "z[extra]==2"]
    assert needed(PROJECT, ["c"]) == ["Rich>=14", "z[extra]==2"]
    assert needed(PROJECT, []) == ["Rich>=14"]


def test_an_unknown_extra_is_named_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="no extra `d`; there is a, b, c"):
        needed(PROJECT, ["d"])


def test_torch_comes_from_one_list_alone() -> None:
    made = lists(PYPROJECT, CONSTRAINTS, "torch==9.9", [])
    assert made["torch.txt"] == "torch==9.9\n"
    assert made["pins.txt"].endswith("torch==9.9\n")
    assert sum(name_of(line) == "torch" for text in made.values() for line in text.splitlines()) == 2


def test_a_base_with_its_own_torch_keeps_it() -> None:
    made = lists(PYPROJECT, CONSTRAINTS, "", [])
    assert made["torch.txt"] == ""
    assert "torch" not in {name_of(line) for text in made.values() for line in text.splitlines()}


def test_further_extras_are_for_the_actor_alone() -> None:
    made = lists(PYPROJECT, CONSTRAINTS, "", ["atari"])
    assert "ale-py" in made["actor.txt"]
    assert "ale-py" not in made["core.txt"] + made["learner.txt"]


def test_the_lists_are_written_where_a_build_reads_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--torch", "torch==2.13.0", "--extras", "atari, box2d", str(ROOT), str(tmp_path)]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {
        "actor.txt", "build.txt", "ci.txt", "core.txt", "learner.txt", "pins.txt", "torch.txt",
    }  # fmt: skip
    assert main(["--extras", "atary", str(ROOT), str(tmp_path)]) == 2
    assert "EXTRAS: no extra `atary`" in capsys.readouterr().err


def with_all_they_need(requirements: Iterable[str]) -> set[str]:
    """Names of packages and, as installed here, of everything below them."""
    found: set[tuple[str, str]] = set()
    todo = [(Requirement(line), "") for line in requirements]
    while todo:
        requirement, extra = todo.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        for wanted in ("", *requirement.extras):
            if (name_of(requirement.name), wanted) not in found:
                found.add((name_of(requirement.name), wanted))
                below = importlib.metadata.requires(requirement.name) or []
                todo += [(Requirement(line), wanted) for line in below]
    return {name for name, _ in found}


def test_every_package_of_an_image_has_a_tested_version() -> None:
    made = lists(PYPROJECT, CONSTRAINTS, "torch==2.13.0", ["atari", "box2d"])
    pinned = {name_of(line) for line in made["pins.txt"].splitlines()}
    # the builders of wheels that torch drags along are as those who made its wheel say
    assert with_all_they_need([*made["actor.txt"].splitlines(), "torch"]) - pinned <= {"setuptools"}
    assert with_all_they_need(made["ci.txt"].splitlines()) <= pinned


TAKEN_WHERE_THERE = {"fsspec", "setuptools"}
"""By TensorBoard and torch, which do without."""
IMPORTED = """
import importlib, importlib.metadata, json, sys
for module in sys.argv[1:]:
    importlib.import_module(module)
owners = importlib.metadata.packages_distributions()
print(json.dumps(sorted({owner for name in sys.modules if "." not in name for owner in owners.get(name, ())})))
"""


ROLES = "rlctl_agents.roles"
TRAINS = ("learner", "actor")


@pytest.mark.processes
@pytest.mark.parametrize(
    ("image", "modules"),
    [
        ("core", [f"{ROLES}.process", f"{ROLES}.manager", f"{ROLES}.modelpool", f"{ROLES}.tensorboard_server"]),
        ("learner", [f"{ROLES}.process", f"{ROLES}.learner"]),
        ("actor", [f"{ROLES}.process", f"{ROLES}.actor", f"{ROLES}.evaluator"]),
        ("ci", ["rlctl_ci.web.serve", "rlctl_ci.hands", "rlctl_ci.deploy.act", "rlctl.backends.kubernetes.backend"]),
    ],
)
def test_nothing_imports_a_package_that_its_image_lacks(image: str, modules: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED, *modules], capture_output=True, text=True, check=True, timeout=100
    )
    imported = {name_of(owner) for owner in json.loads(done.stdout)} - {"rlctl"}
    made = lists(PYPROJECT, CONSTRAINTS, "torch==2.13.0", [])
    there = with_all_they_need([*made[f"{image}.txt"].splitlines(), *(["torch"] if image in TRAINS else [])])
    assert imported - there - TAKEN_WHERE_THERE == set()
    assert ("torch" in imported) is (image in TRAINS)
    assert "gymnasium" not in imported or image == "actor"
