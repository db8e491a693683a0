"""Code of a commit as a folder of this machine: one for equal content, made by several at once or by one that dies."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from rlctl_ci.builders.append import Append
from rlctl_ci.builders.folder import Folder
from rlctl_ci.core.build_attempt import Job
from rlctl_ci.core.errors import BuildStopped, Cancelled
from rlctl_ci.sandbox.locks import held
from tests.ci.git.test_repository import job_of
from tests.ci.world import here, sha

SPEC = "run: pole\nenv: {id: CartPole-v1}\ncode: {path: src}\nstop: {agent_steps: 10}\n"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A commit that is fetched already."""
    folder = tmp_path / "source"
    for name in ("src/pkg/a.py", "src/pkg/b.py", "other.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x = 1\n")
    (folder / "spec.yaml").write_text(SPEC)
    return folder


def build(tmp_path: Path, number: int) -> Job:
    job = job_of(tmp_path, sha(1))
    return replace(job, build=replace(job.build, id=number))


def test_builds_that_make_the_same_code_at_once_share_one_folder(tmp_path: Path, source: Path) -> None:
    for number in range(120):
        (source / "src" / f"m{number}.py").write_text("x = 1\n")
    maker, jobs = Folder(tmp_path / "code", here), [build(tmp_path, number) for number in range(1, 7)]
    made = [maker.make(job, source) for job in jobs]
    with ThreadPoolExecutor(6) as pool:
        found = {one.reference for each in pool.map(maker.push, jobs, made) for one in each}
    (folder,) = found
    assert len(list(Path(folder).iterdir())) == 121
    assert {path.name for path in (tmp_path / "code").iterdir()} == {
        ".lock", Path(folder).name, f"{Path(folder).name}.provenance.json"
    }  # fmt: skip
    assert json.loads(Path(f"{folder}.provenance.json").read_text())["subject"]


def test_what_builds_that_were_killed_have_begun_goes_with_the_next_one(tmp_path: Path, source: Path) -> None:
    left = tmp_path / "code" / f".{'a' * 64}.7.part"
    (left / "pkg").mkdir(parents=True)
    (left / "pkg" / "a.py").write_text("x = 1\n")
    for path in (left / "pkg" / "a.py", left / "pkg", left):
        path.chmod(0o500)
    maker, job = Folder(tmp_path / "code", here), build(tmp_path, 1)
    (artifact,) = maker.push(job, maker.make(job, source))
    assert not left.exists()
    assert Path(artifact.reference).is_dir()


def test_a_build_that_is_cancelled_waits_for_no_folder(tmp_path: Path, source: Path) -> None:
    def cancelled() -> None:
        raise Cancelled("by ana")

    maker, job = Folder(tmp_path / "code", here), replace(build(tmp_path, 1), stop=cancelled)
    made = maker.make(job, source)
    (tmp_path / "code").mkdir()
    with held(tmp_path / "code" / ".lock"), pytest.raises(Cancelled):
        maker.push(job, made)


def test_a_build_that_is_cancelled_ends_between_two_files_and_leaves_no_folder(tmp_path: Path, source: Path) -> None:
    looks: list[None] = []

    def cancelled() -> None:
        looks.append(None)
        if len(looks) > 1:
            raise Cancelled("by ana")

    maker, job = Folder(tmp_path / "code", here), replace(build(tmp_path, 1), stop=cancelled)
    made = maker.make(job, source)
    with pytest.raises(Cancelled):
        maker.push(job, made)
    assert not (tmp_path / "code" / made.digest).exists()
    again = build(tmp_path, 2)
    assert len(list(Path(maker.push(again, made)[0].reference).rglob("*.py"))) == 2


@pytest.mark.parametrize("maker", [Folder(Path("/nonexistent"), here), Append(read=here)])
def test_a_link_out_of_the_code_stops_every_builder_in_words(tmp_path: Path, source: Path, maker: Folder) -> None:
    (source / "src" / "pkg" / "other.py").symlink_to("../../other.py")
    with pytest.raises(BuildStopped, match=r"^pkg/other.py links to ../../other.py, which leads out of the code"):
        maker.make(build(tmp_path, 1), source)


@pytest.mark.parametrize("maker", [Folder(Path("/nonexistent"), here), Append(read=here)])
def test_code_that_lies_in_a_submodule_stops_every_builder_in_words(
    tmp_path: Path, source: Path, maker: Folder
) -> None:
    (source / "docs").mkdir()
    (source / "src" / "vendor" / "lib").mkdir(parents=True)
    with pytest.raises(BuildStopped, match=r"of submodules and of git LFS nothing is fetched: src/vendor/lib$"):
        maker.make(build(tmp_path, 1), source)
