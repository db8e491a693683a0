"""Hostile commits: each ends in words, and leaves nothing outside its folder."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from rlctl_ci.builders.folder import Folder
from rlctl_ci.builders.source import spec_at
from rlctl_ci.core.errors import BuildStopped, Transient
from rlctl_ci.git.repository import Git
from tests.ci.git.test_repository import Repository, git, job_of

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]
HEAD = "run: pole\nenv: {id: CartPole-v1}\ncode: {path: .}\nstop: {agent_steps: 10}\n"
SPECS = {
    "billion laughs": "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nrun: *c\n",
    "merge": "base: &b {run: pole}\n<<: *b\n",
    "deep": f"run: {'[' * 5000}{']' * 5000}\n",
    "tag": "run: !!python/object/apply:os.system [touch owned]\n",
    "twice": "run: pole\nrun: other\n",
    "long key": f"{'k' * 500_000}: 1\n{HEAD}",
    "a key of a line": f'"run\\u2028x": 1\n{HEAD}',
    "looks like the run": HEAD.replace("pole", "p\u043ele"),
    "right to left": HEAD.replace("pole", "pole\u202e"),
    "nul": HEAD.replace("pole", "pole\x00"),
    "too long": "#" * (2 << 20),
    "very deep": f"run: {'[' * 100_000}",
    "a very deep key": f"? {'[' * 100_000}",
    "20,000 unknown keys": HEAD + "".join(f"k{at}: 1\n" for at in range(20_000)),
    "20,000 faults": HEAD + "".join(f"k{at}: !t 1\n" for at in range(15_000)),
    "digits": f"{HEAD}seed: {'1' * 200_000}x\n",
    "a long key above many faults": f"? {'k' * 100_000}\n: [{'&x 1, ' * 20_000}]\n{HEAD}",
    "empty": "",
}


BOUND_S = 15.0
"""Of the processor, also on a slow machine; without bounds these take minutes, or all memory."""


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


@pytest.mark.parametrize("what", SPECS)
def test_a_spec_that_means_harm_is_a_spec_that_is_refused(tmp_path: Path, repository: Repository, what: str) -> None:
    (tmp_path / "spec.yaml").write_text(SPECS[what])
    job = job_of(tmp_path, repository.head)
    began = time.process_time()
    with pytest.raises(BuildStopped) as refusal:
        spec_at(job.project, tmp_path)
    assert time.process_time() - began < BOUND_S
    assert refusal.value.code == "spec"
    assert len(refusal.value.message) < 25_000
    assert not (tmp_path / "owned").exists()


def stored(folder: Path, kind: str, content: bytes) -> str:
    """An object as git itself would not make it."""
    done = subprocess.run(
        ["git", "hash-object", "-t", kind, "-w", "--literally", "--stdin"], cwd=folder, input=content,
        capture_output=True, check=True,
    )  # fmt: skip
    return done.stdout.decode().strip()


def tree(folder: Path, *entries: tuple[str, str, str]) -> str:
    """Of mode, name and object."""
    return stored(folder, "tree", b"".join(f"{m} {n}\0".encode() + bytes.fromhex(o) for m, n, o in entries))


def committed(repository: Repository, root: str) -> str:
    commit = git(repository.folder, "commit-tree", root, "-m", "x")
    git(repository.folder, "update-ref", "refs/heads/main", commit)
    return commit


@pytest.mark.parametrize("name", ["a", ".git", "..", ".", "a/b", ".GIT", "git~1", ".git\u200c"])
def test_what_only_a_forged_tree_holds_is_not_fetched(tmp_path: Path, repository: Repository, name: str) -> None:
    folder = repository.folder
    link = stored(folder, "blob", str(tmp_path).encode())
    inner = tree(folder, ("100644", "owned", stored(folder, "blob", b"x")))
    spec = ("100644", "spec.yaml", stored(folder, "blob", HEAD.encode()))
    entries = [("120000", name, link), ("40000", name, inner)] if name == "a" else [("40000", name, inner)]
    job = job_of(tmp_path, committed(repository, tree(folder, *entries, spec)))
    with pytest.raises((Transient, BuildStopped)):
        Git(job.project, tmp_path / "store").fetch(job)
    assert not (tmp_path / "owned").exists()


def test_a_submodule_and_a_pointer_of_lfs_bring_nothing_from_elsewhere_and_are_not_deployed_in_silence(
    tmp_path: Path, repository: Repository
) -> None:
    folder = repository.folder
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 9\n"
    modules = '[submodule "x"]\n path = x\n url = https://submodule.invalid/x\n'
    attributes = "* filter=lfs diff=lfs merge=lfs -text\n"
    files = {".gitattributes": attributes, ".gitmodules": modules, "model.bin": pointer, "spec.yaml": HEAD}
    entries = [("100644", name, stored(folder, "blob", text.encode())) for name, text in files.items()]
    root = tree(folder, *entries, ("160000", "x", "1" * 40))
    job = job_of(tmp_path, committed(repository, root))
    source, made = Git(job.project, tmp_path / "store").fetch(job), Folder(tmp_path / "code")
    assert (source / "model.bin").read_text() == pointer
    assert not list((source / "x").iterdir())
    with pytest.raises(BuildStopped, match=r"nothing is fetched: x, model\.bin$") as stopped:
        made.make(job, source)
    assert ".dockerignore" in stopped.value.hint
    (source / ".dockerignore").write_text("x\n*.bin\n")
    (artifact,) = made.push(job, made.make(job, source))
    assert [path.name for path in Path(artifact.reference).iterdir()] == [".gitattributes", ".gitmodules"]


@pytest.mark.parametrize("leaf", ["a file", "nothing"])
def test_a_tree_that_names_itself_again_and_again_ends_in_words(
    tmp_path: Path, repository: Repository, leaf: str
) -> None:
    folder = repository.folder
    blob = ("100644", "f", stored(folder, "blob", b"x"))
    below = tree(folder, blob) if leaf == "a file" else tree(folder)
    for _ in range(10):
        below = tree(folder, *(("40000", f"d{at}", below) for at in range(10)))
    job = job_of(tmp_path, committed(repository, below))
    began = time.monotonic()
    with pytest.raises(BuildStopped, match="more than 50000 files and folders"):
        Git(job.project, tmp_path / "store").fetch(job)
    assert time.monotonic() - began < 60
    job = job_of(tmp_path, committed(repository, tree(folder, blob)))
    assert (Git(job.project, tmp_path / "store").fetch(job) / "f").is_file(), "the next commit is fetched"


@pytest.mark.parametrize("to", ["/etc", "../../..", "sub/../../../x", "/proc/self/environ"])
def test_a_link_that_leads_out_is_refused_whatever_it_is_for(tmp_path: Path, repository: Repository, to: str) -> None:
    (repository.folder / "templates").mkdir()
    (repository.folder / "templates" / "actor.patch.yaml").symlink_to(to)
    job = job_of(tmp_path, repository.commit("more.py", ""))
    with pytest.raises(BuildStopped, match="cannot be unpacked"):
        Git(job.project, tmp_path / "store").fetch(job)
