"""The context of a build: the same from a working copy and from an installed package."""

import os
import shutil
import tomllib
from pathlib import Path

from rlctl.images.builders.base import NAMES
from rlctl.images.context import DOCKERFILES, FILES, PACKAGE, sources, stage

ROOT = Path(__file__).parents[2]


def tree(folder: Path) -> dict[str, tuple[bytes, int, float]]:
    """Content, mode and time of every file."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mode & 0o777, path.stat().st_mtime)
        for path in folder.rglob("*")
        if path.is_file()
    }


def installed(folder: Path) -> Path:
    """The package as pip lays it down, by what pyproject.toml says of the wheel."""
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    for package in wheel["packages"]:
        shutil.copytree(ROOT / package, folder / Path(package).name)
    for source, to in wheel["force-include"].items():
        (folder / to).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, folder / to)
        else:
            shutil.copyfile(ROOT / source, folder / to)
    return folder / "rlctl"


def test_an_installed_rlctl_builds_from_the_same_files_as_a_working_copy(tmp_path: Path) -> None:
    stage(tmp_path / "copy")
    stage(tmp_path / "wheel", installed(tmp_path / "site"))
    copy, wheel = tree(tmp_path / "copy"), tree(tmp_path / "wheel")
    assert set(copy) == set(wheel)
    assert copy == wheel


def test_the_context_holds_what_the_dockerfiles_need_and_no_bytecode(tmp_path: Path) -> None:
    stage(tmp_path / "context")
    names = set(tree(tmp_path / "context"))
    assert {
        *FILES,
        "rlctl/__init__.py",
        "agents/rlctl_agents/__main__.py",
        "ci/rlctl_ci/web/static/style.css",
        "templates/init/environment/spec.yaml",
    } <= names
    assert not [name for name in names if "__pycache__" in name or name.startswith("tests")]


def test_modes_and_times_follow_content_alone(tmp_path: Path) -> None:
    package = installed(tmp_path / "site")
    stage(tmp_path / "before", package)
    os.utime(package / "__init__.py", (5, 5))
    (package / "__init__.py").chmod(0o600)
    (package / "plan.py").write_text("PLAN = 1\n")
    stage(tmp_path / "after", package)
    before, after = tree(tmp_path / "before"), tree(tmp_path / "after")
    assert {name for name in before if before[name] != after[name]} == {"rlctl/plan.py"}
    assert before["rlctl/plan.py"][2] != after["rlctl/plan.py"][2]


def test_every_image_is_a_target_of_a_dockerfile_that_is_there() -> None:
    assert tuple(DOCKERFILES) == (*NAMES, "ci")
    there = dict(sources(PACKAGE))
    for name, file in DOCKERFILES.items():
        assert f" AS {name}\n" in there[file].read_text()
