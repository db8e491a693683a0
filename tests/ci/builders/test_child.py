"""Reading a commit, in a process with limits: what takes too much of anything ends in words, and so does its build."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rlctl_ci.builders import child
from rlctl_ci.builders.folder import Folder
from rlctl_ci.builders.none import NoBuilder
from rlctl_ci.core.build_attempt import Job
from rlctl_ci.core.errors import BuildStopped, Cancelled, no_room
from tests.ci.git.test_repository import job_of
from tests.ci.world import here, sha

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]
SPEC = "run: pole\nenv: {id: CartPole-v1}\ncode: {path: ., requirements: r.txt}\nstop: {agent_steps: 10}\n"
BOUND_S = 60.0
"""On a machine that is busy with something else; without an end these take hours."""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A commit that is fetched already."""
    folder = tmp_path / "source"
    folder.mkdir()
    for name, text in (("spec.yaml", SPEC), ("a.py", "x = 1\n"), ("r.txt", "numpy\n"), (".dockerignore", "*.md\n")):
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def endless(source: Path) -> Path:
    """Patterns and paths of which each is allowed, and that take hours together."""
    deep = source.joinpath(*["a"] * 60)
    deep.mkdir(parents=True)
    for number in range(2000):
        (deep / f"f{number}").touch()
    (source / ".dockerignore").write_text(f"{'**/a/' * 30}b\n" * 700)
    return source


def job(tmp_path: Path, stop: Callable[[], None] = lambda: None, **limits: float) -> Job:
    return replace(job_of(tmp_path, sha(1), limits=limits), stop=stop)


def test_a_child_reads_what_this_process_would(tmp_path: Path, source: Path) -> None:
    one = job(tmp_path)
    there, ours = child.read(one, source, "code"), here(job(tmp_path), source, "code")
    assert there == ours
    assert there.code is not None
    assert there.code.archive.parent == one.folder
    assert there.code.requirements == b"numpy\n"
    (source / "spec.yaml").write_text(SPEC.replace(", requirements: r.txt", ""))
    packed = child.read(job(tmp_path), source, "layer").layer
    assert packed is not None
    assert packed.file.stat().st_size == packed.size


def test_a_dockerignore_of_24_megabytes_is_refused_by_name_and_limit_and_none_of_it_is_held_here(
    tmp_path: Path, source: Path
) -> None:
    (source / ".dockerignore").write_bytes(b"a\n" * 12_000_000)
    before = resident_mib()
    with pytest.raises(BuildStopped) as refusal:
        Folder(tmp_path / "code").make(job(tmp_path), source)
    assert refusal.value.message.startswith(".dockerignore:65537: the file goes on beyond 128 KiB")
    assert resident_mib() - before < 20


def test_requirements_of_24_megabytes_are_refused_by_name_and_limit(tmp_path: Path, source: Path) -> None:
    (source / "r.txt").write_bytes(b"a\n" * 12_000_000)
    with pytest.raises(BuildStopped, match=r"^r\.txt:524289: the file goes on beyond 1024 KiB"):
        Folder(tmp_path / "code").make(job(tmp_path), source)


def test_reading_a_commit_ends_when_its_build_is_cancelled(tmp_path: Path, endless: Path) -> None:
    began = time.monotonic()

    def cancelled() -> None:
        if time.monotonic() > began + 1.0:
            raise Cancelled("by ana")

    with pytest.raises(Cancelled):
        Folder(tmp_path / "code").make(job(tmp_path, cancelled, time_s=20.0), endless)
    assert time.monotonic() - began < BOUND_S


def test_reading_a_commit_ends_after_the_time_of_a_build(
    tmp_path: Path, endless: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "READING_CPU_S", 5)
    began = time.monotonic()
    with pytest.raises(BuildStopped, match=r"take more than 2 s to be read$") as refusal:
        Folder(tmp_path / "code").make(job(tmp_path, time_s=2.0), endless)
    assert (refusal.value.code, refusal.value.hint) == ("timeout", "limits.time_s in ci.yaml")
    assert time.monotonic() - began < BOUND_S


def test_reading_a_commit_gets_no_more_of_the_processor_than_allowed(
    tmp_path: Path, endless: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "READING_CPU_S", 1)
    with pytest.raises(BuildStopped, match="more than 1 s of processor time") as refusal:
        Folder(tmp_path / "code").make(job(tmp_path, time_s=30.0), endless)
    assert refusal.value.code == "timeout"


def test_reading_a_commit_gets_no_more_memory_than_allowed(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    greedy = tmp_path / "greedy"
    greedy.mkdir()
    text = (
        "import os\ntry:\n    bytearray(2 << 30)\nexcept MemoryError:\n    os.write(2, b'MemoryError')\n    os._exit(1)"
    )
    (greedy / "sitecustomize.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", before_ours(greedy))
    with pytest.raises(BuildStopped, match="take more than 512 MiB to be read") as refusal:
        child.read(job(tmp_path), source, "code")
    assert refusal.value.code == "memory"


@pytest.mark.parametrize("name", ["KUBECONFIG", "RLCTL_CI_TOKEN_FILE", "AWS_SECRET_ACCESS_KEY"])
def test_the_child_has_nothing_of_our_environment(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    spy = tmp_path / "spy"
    spy.mkdir()
    (spy / "sitecustomize.py").write_text(
        f"import os\nopen({str(tmp_path / 'seen')!r}, 'w').write(repr(dict(os.environ)))\n"
    )
    monkeypatch.setenv("PYTHONPATH", before_ours(spy))
    monkeypatch.setenv(name, "ours")
    child.read(job(tmp_path), source, "spec")
    seen = (tmp_path / "seen").read_text()
    assert "PYTHONPATH" in seen
    assert "ours" not in seen


def test_a_spec_that_is_wrong_is_told_by_a_builder_that_builds_nothing(tmp_path: Path, source: Path) -> None:
    (source / "spec.yaml").write_text("run: pole\nenvv: 1\n")
    with pytest.raises(BuildStopped, match=r"spec\.yaml:2:1: envv: unknown key"):
        NoBuilder().make(job(tmp_path), source)


def test_a_child_that_ends_without_an_answer_says_why_in_words(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "sitecustomize.py").write_text("import os\nos.write(2, b'it is broken\\n')\nos._exit(3)\n")
    monkeypatch.setenv("PYTHONPATH", before_ours(broken))
    with pytest.raises(BuildStopped, match=r"^the commit cannot be read: it is broken$"):
        child.read(job(tmp_path), source, "spec")


def test_a_disk_that_is_full_while_a_commit_is_read_is_no_fault_of_the_commit(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "sitecustomize.py").write_text(
        "import errno\nfrom rlctl_ci.builders import source\n"
        "def contents(*_):\n    try:\n        raise OSError(errno.ENOSPC, 'No space left on device')\n"
        "    except OSError as error:\n        raise source.BuildStopped('code', 'x') from error\n"
        "source.contents = contents\n"
    )
    monkeypatch.setenv("PYTHONPATH", before_ours(full))
    with pytest.raises(OSError, match="No space left on device") as caught:
        child.read(job(tmp_path), source, "spec")
    assert no_room(caught.value) is not None


def before_ours(folder: Path) -> str:
    """PYTHONPATH of a child that finds the modules of a folder first."""
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


def resident_mib() -> float:
    """Of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / (1 << 20)
