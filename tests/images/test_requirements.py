"""Packages of each image: enough for its roles, and versions that are tested."""

import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from rlctl.images.requirements import (
    LOCK,
    SOURCES,
    TRACKERS,
    TRACKERS_LOCK,
    Release,
    default_torch,
    lists,
    main,
    name_of,
    parse,
)
from scripts.lock import APART, make, make_beside, text, wanted

ROOT = Path(__file__).parents[2]
RELEASES = parse((ROOT / LOCK).read_text())
BESIDE = parse((ROOT / "rlctl" / "images" / TRACKERS_LOCK).read_text())
TORCH = default_torch(RELEASES)
CPU_WHEEL = "sha256:6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b"
"""Of torch 2.13.0 without CUDA, for CPython 3.11 on x86-64."""
ONE, TWO = "sha256:" + "1" * 64, "sha256:" + "2" * 64
SMALL = f"""# of all
# in: core actor
Rich==14.0 ; python_version < '4' \\
    --hash={ONE} \\
    --hash={TWO}

# in: torch
torch==2.0 \\
    --hash={ONE}
# in: torch-cpu
torch==2.0+cpu \\
    --hash={TWO}
# in: torch-needs
sympy==1.0 --hash={ONE}
# in: torch-cuda
nvidia-x==1.0 --hash={ONE}
# in: box2d
box2d==2.3.10 --hash={ONE}
"""


def names(listed: str) -> set[str]:
    return {name_of(release.name) for release in parse(re.sub(r"(?m)^--only-binary.*$", "", listed))}


def test_a_lock_is_read_with_markers_and_every_hash() -> None:
    rich = parse(SMALL)[0]
    assert (rich.name, rich.version, rich.marker, rich.hashes) == ("Rich", "14.0", "python_version < '4'", (ONE, TWO))
    assert rich.sets == {"core", "actor"}
    assert parse(str(rich))[0].hashes == (ONE, TWO)


@pytest.mark.parametrize(
    "line", ["rich>=14", "rich==14.0", "-e .", "--index-url https://example.org", "rich==14 --hash=md5:0"]
)
def test_a_line_without_version_and_hash_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="no release with its hashes"):
        parse(line)


def test_an_unknown_extra_is_named_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="no extra `d`; there is actor, box2d, core"):
        lists(parse(SMALL), "torch==2.0", ["d"])


def test_torch_comes_from_lists_of_its_own() -> None:
    made = lists(parse(SMALL), "torch==2.0")
    assert ONE in made["torch.txt"]
    assert TWO in made["torch-cpu.txt"]
    assert names(made["torch-cuda.txt"]) == {"nvidia-x"}
    assert "torch" not in names(made["actor.txt"]) | names(made["core.txt"])
    whole = lists(RELEASES, TORCH)
    assert sorted(file for file, listed in whole.items() if "torch" in names(listed)) == ["torch-cpu.txt", "torch.txt"]


def test_a_build_that_asks_for_torch_without_cuda_gets_no_other() -> None:
    made = lists(parse(SMALL), "torch==2.0+cpu")
    assert made["torch.txt"] == made["torch-cpu.txt"]
    assert ONE not in made["torch.txt"]
    assert made["torch-cuda.txt"] == ""


def test_another_torch_needs_hashes_of_its_own() -> None:
    with pytest.raises(ValueError, match=r"TORCH: torch==2.1 is not in requirements.lock, so it needs its hashes"):
        lists(parse(SMALL), "torch==2.1")
    made = lists(parse(SMALL), f"torch==2.1+cu126 --hash={ONE} --hash={TWO} nvidia-y==1 --hash={ONE}")
    assert made["torch.txt"] == f"torch==2.1+cu126 --hash={ONE} --hash={TWO}\nnvidia-y==1 --hash={ONE}\n"
    assert made["torch-cuda.txt"] == ""


def test_a_base_with_its_own_torch_keeps_it() -> None:
    made = lists(RELEASES, "")
    assert (made["torch.txt"], made["torch-needs.txt"], made["torch-cuda.txt"]) == ("", "", "")
    assert "sympy" not in names(made["learner.txt"])


def test_further_extras_are_for_the_actor_alone() -> None:
    made = lists(RELEASES, TORCH, ["atari"])
    assert "ale-py" in names(made["actor.txt"])
    assert "ale-py" not in names(made["core.txt"]) | names(made["learner.txt"])


def test_trackers_are_for_core_alone_and_go_together_with_it() -> None:
    made = lists([*RELEASES, *BESIDE], TORCH, ["wandb", "atari"])
    assert {"wandb", "protobuf"} - names(made["trackers.txt"]) == {"protobuf"}, "core has that already"
    assert "mlflow" not in names(made["trackers.txt"])
    assert "wandb" not in names(made["actor.txt"]) | names(made["core.txt"]) | names(made["dev.txt"])
    assert lists([*RELEASES, *BESIDE], TORCH)["trackers.txt"] == ""
    core = {name_of(one.name) for one in RELEASES if "core" in one.sets}
    assert not core & {name_of(one.name) for one in BESIDE}
    assert {name for one in BESIDE for name in one.sets} == TRACKERS


def test_the_lock_of_trackers_is_of_the_project_as_it_is() -> None:
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    there = {name_of(one.name): one.version for one in BESIDE}
    for requirement in (Requirement(line) for extra in TRACKERS for line in asked[extra]):
        assert requirement.specifier.contains(there[name_of(requirement.name)]), f"make lock: {requirement}"


def test_a_lock_of_trackers_takes_core_as_it_is() -> None:
    extras = {"core": ["numpy"], "wandb": ["wandb"], "mlflow": ["mlflow"]}
    project = {"name": "thing", "dependencies": ["rich>=14"], "optional-dependencies": extras}
    core = frozenset({"core"})
    locked = [Release("numpy", "2", "", (ONE,), core), Release("rich", "14", "", (ONE,), core)]
    before = [Release("wandb", "0.1", "", (ONE,)), Release("rich", "13", "", (ONE,))]
    made = make_beside({**PROJECT, "project": project}, locked, before, resolved)
    found = {one.name: (one.version, *one.sets) for one in made}
    assert found == {"mlflow": ("9", "mlflow"), "wandb": ("0.1", "wandb")}


def test_packages_are_built_nowhere_but_where_they_have_no_wheel() -> None:
    made = lists(RELEASES, TORCH, ["box2d"])
    head = made["actor.txt"].splitlines()[0]
    assert head.startswith("--only-binary ")
    assert set(head.split(" ", 1)[1].split(",")) == {name for name in names(made["actor.txt"]) if name not in SOURCES}


def test_the_lock_names_the_files_of_every_platform() -> None:
    by_name = {name_of(release.name): release for release in RELEASES if "+" not in release.version}
    assert CPU_WHEEL in {one for release in RELEASES if release.version.endswith("+cpu") for one in release.hashes}
    assert len(by_name["torch"].hashes) >= 20  # four versions of Python on Linux of two kinds, macOS and Windows
    assert len(by_name["numpy"].hashes) >= 30
    assert len(by_name) == len(RELEASES) - 1, "two versions of one package"


def resolved(requirements: Sequence[str], constraints: Sequence[str]) -> list[Release]:
    """Answer of an index: torch needs sympy and, with CUDA, triton."""
    needs = {"torch": ["torch", "sympy", "triton"]}
    found = dict.fromkeys(name for one in requirements for name in needs.get(name_of(one), [name_of(one)]))
    versions = dict(one.split("==") for one in constraints)
    return [Release(name, versions.get(name, "9"), "", (ONE,)) for name in found]


PROJECT = {
    "project": {
        "name": "thing",
        "dependencies": ["rich>=14"],
        "optional-dependencies": {"core": ["numpy"], "learner": ["thing[core]", "torch>=2"]},
    },
    "build-system": {"requires": ["hatchling"]},
    "dependency-groups": {"lock": ["uv"], "checkov": ["checkov"]},
}


def test_a_new_lock_keeps_versions_and_knows_what_each_list_needs() -> None:
    before = [Release("numpy", "3", "", (ONE,)), Release("torch", "8+cpu", "", (TWO,))]
    made = make(PROJECT, before, resolved, lambda version: [TWO] if version == "9" else [])
    sets = {f"{one.name}=={one.version}": set(one.sets) for one in made}
    assert sets == {
        "hatchling==9": {"build"}, "editables==9": {"build"}, "uv==9": {"lock"}, "numpy==3": {"core", "learner"},
        "rich==9": {"core", "learner"}, "sympy==9": {"torch-needs"}, "torch==9": {"torch"},
        "torch==9+cpu": {"torch-cpu"}, "triton==9": {"torch-cuda"},
    }  # fmt: skip
    assert parse(text(made, "# head\n")) == made


def test_two_versions_of_a_package_make_no_lock() -> None:
    def forked(requirements: Sequence[str], constraints: Sequence[str]) -> list[Release]:
        return [*resolved(requirements, constraints), Release("numpy", "4", "", (ONE,))]

    with pytest.raises(ValueError, match="two versions of numpy"):
        make(PROJECT, [], forked, lambda _: [TWO])


@pytest.mark.parametrize("lock", [LOCK, f"rlctl/images/{TRACKERS_LOCK}", *(str(path) for path, _ in APART.values())])
def test_a_lock_says_nothing_of_where_files_come_from(lock: str) -> None:
    assert not re.search(r"://|--(extra-)?index-url|--find-links", (ROOT / lock).read_text())


def test_the_lock_is_of_the_project_as_it_is() -> None:
    """Every requirement of pyproject.toml has a release in the lists that it belongs to, and one that it allows."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for extra, requirements in wanted(pyproject).items():
        there = {name_of(one.name): one.version for one in RELEASES if extra in one.sets}
        for requirement in map(Requirement, requirements):
            assert requirement.specifier.contains(there[name_of(requirement.name)]), (
                f"make lock: {extra}: {requirement}"
            )


def test_the_lists_are_written_where_a_build_reads_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--torch", TORCH, "--extras", "atari, box2d", str(ROOT), str(tmp_path)]) == 0
    assert {path.name for path in tmp_path.iterdir()} >= {
        "actor.txt", "build.txt", "ci.txt", "core.txt", "learner.txt", "local.txt", "dev.txt", "torch.txt",
        "torch-cpu.txt", "torch-needs.txt", "torch-cuda.txt",
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
        for asked in ("", *requirement.extras):
            if (name_of(requirement.name), asked) not in found:
                found.add((name_of(requirement.name), asked))
                below = importlib.metadata.requires(requirement.name) or []
                todo += [(Requirement(line), asked) for line in below]
    return {name for name, _ in found}


def test_every_package_of_an_image_has_a_tested_version() -> None:
    made = lists(RELEASES, TORCH, ["atari", "box2d"])
    actor = names(made["actor.txt"]) | names(made["torch.txt"]) | names(made["torch-needs.txt"])
    asked = wanted(tomllib.loads((ROOT / "pyproject.toml").read_text()))
    assert with_all_they_need([*asked["actor"], *asked["atari"], *asked["box2d"], "torch"]) <= actor
    assert with_all_they_need([*asked["ci"], *asked["kubernetes"]]) <= names(made["ci.txt"])


TAKEN_WHERE_THERE = {"fsspec", "setuptools", "tqdm"}
"""By TensorBoard and torch, which do without."""
IMPORTED = """
import importlib, importlib.metadata, json, sys
for module in sys.argv[1:]:
    importlib.import_module(module)
owners = importlib.metadata.packages_distributions()
print(json.dumps(sorted({owner for name in sys.modules if "." not in name for owner in owners.get(name, ())})))
"""


ROLES, PROCESS = "rlctl_agents.roles", "rlctl_agents.runtime.process"
TRAINS = ("learner", "actor")


@pytest.mark.processes
@pytest.mark.parametrize(
    ("image", "modules"),
    [
        ("core", [PROCESS, f"{ROLES}.manager", f"{ROLES}.modelpool", f"{ROLES}.tensorboard_server"]),
        ("learner", [PROCESS, f"{ROLES}.learner"]),
        ("actor", [PROCESS, f"{ROLES}.actor", f"{ROLES}.evaluator"]),
        (
            "ci",
            [
                "rlctl_ci.web.serve",
                "rlctl_ci.core.wiring",
                "rlctl_ci.deploy.deployment",
                "rlctl.backends.kubernetes.backend",
            ],
        ),
    ],
)
def test_nothing_imports_a_package_that_its_image_lacks(image: str, modules: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED, *modules], capture_output=True, text=True, check=True, timeout=100
    )
    imported = {name_of(owner) for owner in json.loads(done.stdout)} - {"rlctl"}
    made = lists(RELEASES, TORCH)
    there = names(made[f"{image}.txt"]) | (
        names(made["torch.txt"] + made["torch-needs.txt"]) if image in TRAINS else set()
    )
    assert imported - there - TAKEN_WHERE_THERE == set()
    assert ("torch" in imported) is (image in TRAINS)
    assert "gymnasium" not in imported or image == "actor"
