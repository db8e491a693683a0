"""Fetching: what it leaves on our disk, starts, and tells to whom; and its messages when it fails."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from rlctl.images.builders.base import Ended
from rlctl_ci.builders.folder import Folder
from rlctl_ci.core.errors import BuildStopped, Transient
from rlctl_ci.git.plumbing import cause, environment, hint
from rlctl_ci.git.repository import Git
from tests.ci.git.test_repository import Repository, git, job_of
from tests.ci.world import project, sha

pytestmark = pytest.mark.processes
FORMATS = " ".join(f"$Format:%{one}$" for one in ("GG", "G?", "GS", "GK", "GF", "GP", "GT", "(describe)", "(trailers)"))
SIGNATURES = {
    "gpg": "-----BEGIN PGP SIGNATURE-----\n\n iQ==\n -----END PGP SIGNATURE-----",
    "gpgsm": "-----BEGIN SIGNED MESSAGE-----\n iQ==\n -----END SIGNED MESSAGE-----",
    "ssh-keygen": "-----BEGIN SSH SIGNATURE-----\n iQ==\n -----END SSH SIGNATURE-----",
}


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


def signed(repository: Repository, signature: str) -> str:
    """The head again, with something in the place of a signature."""
    head, _, message = git(repository.folder, "cat-file", "commit", "HEAD").partition("\n\n")
    text = f"{head}\ngpgsig {signature}\n\n{message}\n"
    made = subprocess.run(
        ["git", "hash-object", "-t", "commit", "-w", "--stdin"], cwd=repository.folder, input=text.encode(),
        capture_output=True, check=True,
    )  # fmt: skip
    commit = made.stdout.decode().strip()
    git(repository.folder, "update-ref", "refs/heads/main", commit)
    return commit


@pytest.mark.parametrize("program", SIGNATURES)
def test_neither_hooks_nor_filters_nor_attributes_nor_signatures_of_a_repository_are_executed(
    tmp_path: Path, repository: Repository, program: str
) -> None:
    owned = tmp_path / "owned"
    for name in ("post-checkout", "pre-commit", "reference-transaction", "post-index-change"):
        hook = repository.folder / ".git" / "hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\ntouch {owned}\n")
    attributes = "[attr]all export-subst\n* all filter=evil diff=evil merge=evil\n*.py export-subst\n"
    repository.commit(".gitattributes", attributes)
    repository.commit(".gitconfig", f'[filter "evil"]\n smudge = touch {owned}\n')
    repository.commit(".gitmodules", f'[submodule "x"]\n path = x\n url = ext::sh -c touch% {owned}\n')
    repository.commit("setup.py", f"open({str(owned)!r}, 'w')\n# {FORMATS}\n")
    commit = signed(repository, SIGNATURES[program])
    for hook in (repository.folder / ".git" / "hooks").iterdir():
        hook.chmod(0o755)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / program).write_text(f"#!/bin/sh\nenv > {owned}\n")
    (tmp_path / "bin" / program).chmod(0o755)
    job = job_of(tmp_path, commit)
    ours = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    source = Git(job.project, tmp_path / "store", ours).fetch(job)
    made = Folder(tmp_path / "code")
    made.push(job, made.make(job, source))
    assert not owned.exists()
    assert FORMATS in (source / "setup.py").read_text(), "files are taken as they are"


def test_no_attribute_of_a_commit_leaves_files_out_of_what_is_deployed(tmp_path: Path, repository: Repository) -> None:
    repository.commit(".gitattributes", "* export-ignore\n")
    job = job_of(tmp_path, repository.commit("sub/.gitattributes", "*.py export-ignore\n"))
    source = Git(job.project, tmp_path / "store").fetch(job)
    found = {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()}
    assert found == {"spec.yaml", ".gitattributes", "sub/.gitattributes"}


def test_the_token_is_told_to_what_asks_the_repository_alone(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t0ken")
    about = project(repository="https://forge.invalid/x", git_token_file=tmp_path / "token")
    told = [" ".join(environment(about, tmp_path, {}, far=far).values()) for far in (True, False)]
    assert ["Authorization" in one for one in told] == [True, False]
    assert ["protocol.https.allow" in one for one in told] == [True, False]


def kib(store: Path) -> float:
    found = 0
    for folder, _, names in os.walk(store):  # passes over folders that another build removes meanwhile
        for name in names:
            with suppress(FileNotFoundError):
                found += Path(folder, name).stat().st_size
    return found / 1024


def test_a_push_brings_what_is_new_and_not_the_whole_tree_again(tmp_path: Path, repository: Repository) -> None:
    repository.commit("data", os.urandom(1 << 20).hex())
    sizes = []
    for number in range(3):
        job = job_of(tmp_path, repository.commit("n", str(number)))
        source = Git(job.project, tmp_path / "store").fetch(job)
        assert (source / "n").read_text() == str(number)
        sizes.append(kib(tmp_path / "store"))
    assert sizes[0] > 1000
    assert sizes[2] < sizes[0] + 30
    (bare,) = (tmp_path / "store").glob("*-source.git")
    assert git(bare, "rev-list", "--count", "--all") == "1", "no more of its history than the last commit"


def test_the_history_of_a_branch_is_asked_for_once(tmp_path: Path, repository: Repository) -> None:
    git(repository.folder, "config", "uploadpack.allowFilter", "true")
    for _ in range(60):
        git(repository.folder, "commit", "--quiet", "--allow-empty", "-m", os.urandom(2000).hex())
    sizes, bad = [], git(repository.folder, "rev-parse", "HEAD")
    for number in range(3):
        job = job_of(tmp_path, repository.commit("n", str(number)))
        assert not Git(job.project, tmp_path / "store").before_or_same(job, bad)
        sizes.append(kib(tmp_path / "store"))
    assert sizes[0] > 100
    assert sizes[2] < sizes[0] + 30


def test_what_is_kept_of_a_repository_has_an_end_also_with_several_builds_at_once(
    tmp_path: Path, repository: Repository
) -> None:
    commits = [repository.commit("data", os.urandom(400 << 10).hex()) for _ in range(12)]
    jobs = [job_of(tmp_path, commit, limits={"source_mib": 1}) for commit in commits]

    def fetched(job: object, store: str) -> tuple[int, float]:
        source = Git(jobs[0].project, tmp_path / store).fetch(job)  # type: ignore[arg-type]
        return (source / "data").stat().st_size, kib(tmp_path / store)

    in_turn = [fetched(job, "in turn") for job in jobs]
    assert max(kept for _, kept in in_turn) > 4096, "it is kept for as long as there is room"
    jobs = [job_of(tmp_path, commit, limits={"source_mib": 1}) for commit in commits]
    with ThreadPoolExecutor(3) as pool:
        at_once = list(pool.map(lambda job: fetched(job, "at once"), jobs))
    for found in (in_turn, at_once):
        assert {size for size, _ in found} == {800 << 10}
        assert max(kept for _, kept in found) < 5 * 1024 + 200


def test_a_commit_that_is_too_large_is_not_tried_again(tmp_path: Path, repository: Repository) -> None:
    job = job_of(tmp_path, repository.commit("data", os.urandom(2 << 20).hex()), limits={"source_mib": 1})
    with pytest.raises(BuildStopped, match="larger than 1 MiB") as stopped:
        Git(job.project, tmp_path / "store").fetch(job)
    assert "limits.source_mib" in stopped.value.hint
    packs_well = job_of(tmp_path, repository.commit("data", "x" * (2 << 20)), limits={"source_mib": 1})
    with pytest.raises(BuildStopped, match="holds more than 1 MiB") as stopped:
        Git(job.project, tmp_path / "store").fetch(packs_well)
    assert "limits.source_mib" in stopped.value.hint


def test_a_copy_that_a_loss_of_power_has_damaged_is_made_anew(tmp_path: Path, repository: Repository) -> None:
    repository.commit("data", os.urandom(1 << 20).hex())
    for number in range(2):
        job = job_of(tmp_path, repository.commit("n", str(number)))
        Git(job.project, tmp_path / "store").fetch(job)
    pack = max((tmp_path / "store").glob("*-source.git/objects/pack/*.pack"), key=lambda path: path.stat().st_size)
    pack.chmod(0o600)
    os.truncate(pack, 1000)
    again = job_of(tmp_path, repository.commit("n", "2"))
    with pytest.raises(Transient, match="damaged"):
        Git(job.project, tmp_path / "store").fetch(again)
    assert (Git(job.project, tmp_path / "store").fetch(again) / "n").read_text() == "2"


SSH = (
    "fatal: Could not read from remote repository.", "", "Please make sure you have the correct access rights",
    "and the repository exists.",
)  # fmt: skip
SAID = {
    "fatal: '/x' does not appear to be a git repository": (
        "fatal: '/x' does not appear to be a git repository", *SSH),
    "fatal: detected dubious ownership in repository at '/x/.git'": (
        "fatal: detected dubious ownership in repository at '/x/.git'", "To add an exception for this directory, call:",
        "", "\tgit config --global --add safe.directory /x/.git", *SSH),
    "ssh: connect to host x port 22: Connection refused": ("ssh: connect to host x port 22: Connection refused", *SSH),
    "No ED25519 host key is known for x and you have requested strict checking.": (
        "No ED25519 host key is known for x and you have requested strict checking.",
        "Host key verification failed.", *SSH),
    "Host key for x has changed and you have requested strict checking.": (
        "@@@@@@@@", "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @", "@@@@@@@@",
        "Add correct host key in /k to get rid of this message.", "Offending ED25519 key in /k:1",
        "Host key for x has changed and you have requested strict checking.", "Host key verification failed.", *SSH),
    "git@x: Permission denied (publickey).": ("git@x: Permission denied (publickey).", *SSH),
    "fatal: repository 'https://x/y/' not found": (
        "remote: Repository not found.", "fatal: repository 'https://x/y/' not found"),
    "error: object 1: hasDotgit: contains '.git'": (
        "error: object 1: hasDotgit: contains '.git'", "fatal: fsck error in packed object",
        "fatal: index-pack failed"),
    "warning: something": ("warning: something",),
    "exit 128": (),
}  # fmt: skip


@pytest.mark.parametrize("first", SAID)
def test_the_cause_of_a_failure_is_said_and_not_what_came_of_it(first: str) -> None:
    assert cause(Ended(128, SAID[first])) == first


@pytest.mark.parametrize(
    ("said", "do"),
    [
        ("dubious ownership", "run as the user"),
        ("No ED25519 host key is", "git_known_hosts"),
        ("Permission denied (publickey)", "git_key_file"),
        ("fatal: Authentication failed for 'https://x/'", "git_token_file"),
        ("fatal: Out of memory, malloc failed (tried to allocate 41943041 bytes)", "limits.git_memory_mib"),
        ("fatal: early EOF", ""),
    ],
)
def test_a_failure_that_is_known_comes_with_what_to_do(said: str, do: str) -> None:
    found = hint(Ended(128, (said,)))
    assert do in found
    assert bool(do) == bool(found)


def test_a_repository_that_is_not_there_is_named(tmp_path: Path) -> None:
    about = project(repository=str(tmp_path / "nowhere"))
    with pytest.raises(Transient, match=r"nowhere' does not appear to be a git repository"):
        Git(about, tmp_path / "store").look("refs/heads/main")


def test_a_token_that_cannot_be_read_is_no_bug_of_ours(tmp_path: Path) -> None:
    about = project(repository="https://127.0.0.1:1/x", git_token_file=tmp_path / "token")
    with pytest.raises(BuildStopped, match=r"git_token_file: \S+token cannot be read: no such file"):
        Git(about, tmp_path / "store").look("refs/heads/main")
    job = job_of(tmp_path, sha(1))
    with pytest.raises(BuildStopped, match="git_token_file"):
        Git(about, tmp_path / "store").fetch(job)


def test_a_proxy_is_asked_unless_it_is_not_for_this_host(tmp_path: Path) -> None:
    about = project(repository="https://127.0.0.1:2/x")
    ours = {key: value for key, value in os.environ.items() if "proxy" not in key.lower()}
    ours |= {"HTTPS_PROXY": "http://127.0.0.1:1"}
    with pytest.raises(Transient, match=r"127.0.0.1 port 1 "):
        Git(about, tmp_path / "store", ours).look("refs/heads/main")
    with pytest.raises(Transient, match=r"127.0.0.1 port 2 "):
        Git(about, tmp_path / "store", {**ours, "NO_PROXY": "127.0.0.1"}).look("refs/heads/main")


def test_git_gets_as_long_as_a_build_and_its_limit_is_named(tmp_path: Path, repository: Repository) -> None:
    job = job_of(tmp_path, repository.head, limits={"time_s": 0.001})
    with pytest.raises(Transient, match=r"more than 0.001 s") as late:
        Git(job.project, tmp_path / "store").fetch(job)
    assert late.value.hint == "limits.time_s"
