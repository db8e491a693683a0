"""Fetching: by full name, from the configured place alone, with nothing executed and no way out of the folder."""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
import ssl
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from rlctl_ci.builders.folder import Folder
from rlctl_ci.builders.source import spec_at
from rlctl_ci.core.build_attempt import Job
from rlctl_ci.core.errors import BuildStopped, Cancelled, Transient, no_room
from rlctl_ci.git.refs import fault
from rlctl_ci.git.repository import Git, unpack
from rlctl_ci.sandbox import keeper
from rlctl_ci.sandbox.programs import Bounds, Programs, clean
from rlctl_ci.store.records import Build
from tests.ci import https_forge
from tests.ci.world import project, sha
from tests.end_to_end.conftest import wait_until

pytestmark = pytest.mark.processes

NASTY = [
    "x;$(id)", "a|b&c", "feat/`id`", "$IFS", "quote'quote", 'double"quote', "{braces}", "ümläut", "-x",
    "--upload-pack=id",
    "a;touch${IFS}/tmp/owned", "$(touch${IFS}owned)", "`touch${IFS}owned`", "a&&touch${IFS}owned", "a>owned", "a<b",
    "!!", "%s%n", "<script>", "a#b", "%2e%2e", "日本", "x" * 200, "@", "a@b", "1e3", "0", "null", "a'--", "a=b", "a,b",
    "|touch${IFS}owned", ";touch${IFS}owned;", "&touch${IFS}owned&", "(a)", "a/-b", "ext::sh${IFS}-c${IFS}touch",
]  # fmt: skip


def git(folder: Path, *arguments: str) -> str:
    who = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a"}
    return subprocess.run(
        ["git", *arguments], cwd=folder, env={**os.environ, **who}, check=True, capture_output=True, text=True
    ).stdout.strip()


class Repository:
    """A repository with one commit; it is made once and copied, because that takes git half a dozen processes."""

    _made: ClassVar[tempfile.TemporaryDirectory[str] | None] = None

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "work"
        if Repository._made is None:
            Repository._made = tempfile.TemporaryDirectory(prefix="rlctl-repository-")
            self._make(Path(Repository._made.name) / "work")
        shutil.copytree(Path(Repository._made.name) / "work", self.folder)
        self.head = (self.folder / ".git/refs/heads/main").read_text().strip()

    def _make(self, folder: Path) -> None:
        folder.mkdir()
        git(folder, "init", "--quiet", "--initial-branch=main")
        git(folder, "config", "maintenance.auto", "false")
        (folder / "spec.yaml").write_text(
            "run: pole\nenv: {id: CartPole-v1}\ncode: {path: .}\nstop: {agent_steps: 10}\n"
        )
        git(folder, "add", "-A")
        git(folder, "commit", "--quiet", "-m", "x")

    def commit(self, name: str, text: str) -> str:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        git(self.folder, "add", "-A")
        git(self.folder, "commit", "--quiet", "-m", "x")
        return git(self.folder, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


def job_of(tmp_path: Path, commit: str, ref: str = "refs/heads/main", **fields: Any) -> Job:
    folder = tmp_path / f"job-{len(list(tmp_path.iterdir()))}"
    folder.mkdir()
    about = project(repository=str(tmp_path / "work"), **fields)
    build = Build(1, "pole", ref, commit, "r", 0, "fetching", "", "", "", "", "", "hook", 0.0, 0.0, 1, 0.0, "", 0.0, "")
    return Job(build, about, folder, lambda line: None, lambda: None)


def fetcher(tmp_path: Path, job: Job) -> Git:
    return Git(job.project, tmp_path / "store")


def test_a_commit_becomes_files(tmp_path: Path, repository: Repository) -> None:
    job = job_of(tmp_path, repository.head)
    source = fetcher(tmp_path, job).fetch(job)
    assert (source / "spec.yaml").read_text().startswith("run: pole")
    assert not (source / ".git").exists()


@pytest.mark.parametrize(
    "attributes",
    ["* text eol=crlf", "* ident", "* text=auto eol=crlf", "* crlf", "* working-tree-encoding=UTF-16",
     "[attr]all text eol=crlf ident\n* all", "* export-ignore", "* export-subst", "* filter=lfs"],
)  # fmt: skip
def test_files_are_deployed_byte_for_byte_as_they_are_committed_whatever_gitattributes_say(
    tmp_path: Path, repository: Repository, attributes: str
) -> None:
    wanted = {"a.py": b"x = 1\n# $Id$ $Format:%H$\n", "b.txt": b"one\r\ntwo\n", "c.bin": b"\x00\r\n\n$Id$"}
    wanted[".gitattributes"] = f"{attributes}\n".encode()
    for name, content in wanted.items():
        (repository.folder / name).write_bytes(content)
    blobs = git(repository.folder, "hash-object", "-w", "--no-filters", *wanted).split()
    entries = [f"100644,{blob},{name}" for name, blob in zip(wanted, blobs, strict=True)]
    git(repository.folder, "update-index", "--add", *(word for one in entries for word in ("--cacheinfo", one)))
    git(repository.folder, "commit", "--quiet", "-m", "x")
    job = job_of(tmp_path, git(repository.folder, "rev-parse", "HEAD"))
    source = fetcher(tmp_path, job).fetch(job)
    assert {name: (source / name).read_bytes() for name in wanted} == wanted


def test_a_branch_is_found_among_thousands_whose_names_end_alike(tmp_path: Path, repository: Repository) -> None:
    names = [f"refs/heads/z{number}/refs/heads/main" for number in range(3000)]
    lines = "".join(f"{repository.head} {name}\n" for name in sorted(names))
    (repository.folder / ".git" / "packed-refs").write_text(f"# pack-refs with: peeled fully-peeled sorted \n{lines}")
    assert fetcher(tmp_path, job_of(tmp_path, repository.head)).look("refs/heads/main") == repository.head


def test_a_hook_that_lies_in_our_copy_is_not_run(tmp_path: Path, repository: Repository) -> None:
    job = job_of(tmp_path, repository.head)
    fetcher(tmp_path, job).fetch(job)
    (bare,) = (tmp_path / "store").glob("*-source.git")
    hook = bare / "hooks" / "reference-transaction"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path / 'owned'}\n")
    hook.chmod(0o755)
    again = job_of(tmp_path, repository.commit("more", "x"))
    assert (fetcher(tmp_path, again).fetch(again) / "more").is_file()
    assert not (tmp_path / "owned").exists()
    git(bare, "update-ref", "refs/rlctl/probe", repository.head)
    assert (tmp_path / "owned").exists(), "git runs it where nothing says otherwise"


def test_a_repository_that_sends_us_elsewhere_is_not_followed(tmp_path: Path, repository: Repository) -> None:
    with elsewhere(tmp_path) as (first, asked):
        ours = {"PATH": os.environ["PATH"], "SSL_CERT_FILE": str(tmp_path / "cert.pem")}
        found = Git(project(repository=f"https://localhost:{first}/pole.git"), tmp_path / "store", ours)
        with pytest.raises(Transient):
            found.look("refs/heads/main")
    assert asked == [f"localhost:{first}"], "nothing but what ci.yaml names is asked"


@contextmanager
def elsewhere(folder: Path) -> Iterator[tuple[int, list[str]]]:
    """A server that answers everything with a redirect; its port, and the hosts that were asked for."""
    asked: list[str] = []
    cert, key = https_forge.certificate("localhost")
    (folder / "cert.pem").write_text(cert)
    (folder / "key.pem").write_text(key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.headers["Host"])
            self.send_response(302)
            self.send_header("Location", f"https://localhost:{second.server_port}{self.path}")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    first, second = (ThreadingHTTPServer(("127.0.0.1", 0), Handler) for _ in range(2))
    for server in (first, second):
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield first.server_port, asked
    finally:
        for server in (first, second):
            server.shutdown()
            server.server_close()


@pytest.mark.parametrize(
    ("words", "full"),
    [("fatal: write error: No space left on device", True), ("error: Disk quota exceeded", True),
     ("remote: fatal: No space left on device", False)],
)  # fmt: skip
def test_a_git_that_finds_the_disk_full_says_nothing_about_the_commit(tmp_path: Path, words: str, full: bool) -> None:
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "git").write_text(f"#!/bin/sh\necho '{words}' >&2\nexit 128\n")
    (bin_ / "git").chmod(0o755)
    with pytest.raises((OSError, Transient)) as caught:
        Git(project(), tmp_path / "store", {"PATH": str(bin_)}).look("refs/heads/main")
    assert (no_room(caught.value) is not None) == full


def test_each_process_of_git_has_a_limit_of_memory_of_its_own(tmp_path: Path) -> None:
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "git").write_text("#!/bin/sh\nulimit -v >&2\nexit 1\n")
    (bin_ / "git").chmod(0o755)
    for place, mib in (("https://git.example.org/pole.git", 1024), ("/srv/pole.git", 8192)):
        with pytest.raises(Transient, match=f"answer: {mib << 10}$"):
            Git(project(repository=place), tmp_path / "store", {"PATH": str(bin_)}).look("refs/heads/main")


def test_a_file_larger_than_the_memory_of_git_is_fetched(tmp_path: Path, repository: Repository) -> None:
    (repository.folder / "large").write_bytes(os.urandom(40 << 20))
    commit = repository.commit("more", "x")
    with over_https(tmp_path) as (url, environ):
        about = project(repository=url, limits={"git_memory_mib": 72})
        job = replace(job_of(tmp_path, commit), project=about)
        source = Git(about, tmp_path / "store", environ).fetch(job)
    assert (source / "large").stat().st_size == 40 << 20


def test_a_disk_that_is_full_while_a_commit_is_unpacked_is_no_fault_of_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("a"))
    monkeypatch.setattr("rlctl_ci.git.repository.lay", full)
    with pytest.raises(BuildStopped) as caught:
        unpack(tmp_path / "a.tar", tmp_path / "to", 1 << 20)
    assert no_room(caught.value) is not None


def test_what_a_git_that_was_killed_has_left_stops_no_fetch(tmp_path: Path, repository: Repository) -> None:
    job = job_of(tmp_path, repository.head)
    fetcher(tmp_path, job).fetch(job)
    (bare,) = (tmp_path / "store").glob("*-source.git")
    left = [bare / "shallow.lock", bare / "objects" / "pack" / "tmp_pack_x1"]
    for path in left:
        path.touch()
    (bare.with_suffix(".part") / "refs").mkdir(parents=True)
    again = job_of(tmp_path, repository.commit("more", "x"))
    assert (fetcher(tmp_path, again).fetch(again) / "more").is_file()
    assert not any(path.exists() for path in left)


def test_builds_of_one_repository_fetch_one_after_the_other(tmp_path: Path, repository: Repository) -> None:
    commits = [repository.commit("n", str(number)) for number in range(4)]
    jobs = [job_of(tmp_path, commit) for commit in commits]
    with ThreadPoolExecutor() as pool:
        sources = list(pool.map(lambda job: fetcher(tmp_path, job).fetch(job), jobs))
    assert [(source / "n").read_text() for source in sources] == ["0", "1", "2", "3"]


def test_a_build_that_is_cancelled_waits_for_no_other(tmp_path: Path, repository: Repository) -> None:
    job = job_of(tmp_path, repository.head)
    found = fetcher(tmp_path, job)

    def cancelled() -> None:
        raise Cancelled("by ana")

    with found._bare("source.git", job.stop), pytest.raises(Cancelled), found._bare("source.git", cancelled):
        pytest.fail("two at once")


def test_a_forge_with_a_certificate_of_the_house_is_trusted_where_ssl_cert_file_says_so(
    tmp_path: Path, repository: Repository
) -> None:
    with over_https(tmp_path) as (url, environ):
        about, job = project(repository=url), job_of(tmp_path, repository.head)
        ours = {key: value for key, value in environ.items() if key != "SSL_CERT_FILE"}
        with pytest.raises(Transient, match="certificate"):
            Git(about, tmp_path / "store", ours).head(job)
        trusting = Git(about, tmp_path / "store", environ)
        assert trusting.head(job) == repository.head
        assert (trusting.fetch(job) / "spec.yaml").read_text().startswith("run: pole")


@contextmanager
def over_https(folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Address of the repository in a folder at a forge of the house, and an environment that trusts it."""
    files = [folder / "cert.pem", folder / "key.pem"]
    for file, text in zip(files, https_forge.certificate("localhost"), strict=True):
        file.write_text(text)
    ours = {key: value for key, value in os.environ.items() if not re.search("SSL_CERT|PROXY", key.upper())}
    command = [sys.executable, https_forge.__file__, str(folder), *map(str, files)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            port = server.stdout.readline().strip()
            yield f"https://localhost:{port}/work/.git", {**ours, "SSL_CERT_FILE": str(files[0])}
        finally:
            server.kill()


def test_the_branch_names_git_allows_are_data_and_nothing_outside_the_list_is_started(
    tmp_path: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    real = subprocess.Popen.__init__

    def watched(self: Any, argv: Any, *arguments: Any, **more: Any) -> None:
        assert not more.get("shell")
        started.append(kept(argv))
        real(self, argv, *arguments, **more)

    allowed = [name for name in NASTY if not fault(f"refs/heads/{name}")]
    assert len(allowed) > 20
    for name in allowed:
        git(repository.folder, "update-ref", f"refs/heads/{name}", repository.head)
    monkeypatch.setattr(subprocess.Popen, "__init__", watched)
    monkeypatch.chdir(tmp_path)
    for name in allowed:
        job = job_of(tmp_path, repository.head, f"refs/heads/{name}")
        assert fetcher(tmp_path, job).head(job) == repository.head, name
    assert {argv[0] for argv in started} == {"git"}
    assert not [path for path in tmp_path.rglob("owned") if ".git" not in path.parts]
    assert not Path("/tmp/owned").exists()


def kept(argv: Sequence[str]) -> list[str]:
    """The program that a keeper starts, with its arguments; another one as it is."""
    return list(argv[argv.index(keeper.__file__) + 8 :]) if keeper.__file__ in argv else list(argv)


def test_git_and_our_rules_agree_about_the_names_of_branches(tmp_path: Path, repository: Repository) -> None:
    for name in (
        *NASTY,
        "a..b",
        "a b",
        "a~1",
        "a^",
        "a:b",
        "a?",
        "a*",
        "a[",
        "a\\b",
        "a.lock",
        ".a",
        "a.",
        "a/",
        "/a",
        "a//b",
        "@{u}",
    ):
        done = subprocess.run(["git", "check-ref-format", f"refs/heads/{name}"], check=False)
        assert (fault(f"refs/heads/{name}") == "") == (done.returncode == 0), name


def test_a_commit_that_is_not_there_may_come_later(tmp_path: Path, repository: Repository) -> None:
    job = job_of(tmp_path, sha(12))
    with pytest.raises(Transient):
        fetcher(tmp_path, job).fetch(job)


def test_files_that_differ_between_two_commits_that_were_fetched_are_named_and_nothing_is_fetched_for_it(
    tmp_path: Path, repository: Repository
) -> None:
    (repository.folder / "gone.py").write_text("x")
    before = repository.commit("a/ümläut.py", "1")
    (repository.folder / "gone.py").rename(repository.folder / "new\nline.py")
    after = repository.commit("a/ümläut.py", "2")
    first, second = job_of(tmp_path, before), job_of(tmp_path, after)
    found = fetcher(tmp_path, first)
    assert found.changed(second, before) is None
    found.fetch(first)
    assert found.changed(second, before) is None
    found.fetch(second)
    repository.folder.rename(tmp_path / "away")
    assert found.changed(second, before) == ["a/ümläut.py", "gone.py", "new\nline.py"]
    assert found.changed(first, before) == []


def test_an_ancestor_is_known_as_one(tmp_path: Path, repository: Repository) -> None:
    later = repository.commit("a", "1")
    store = tmp_path / "store"
    old, new = job_of(tmp_path, repository.head), job_of(tmp_path, later)
    assert Git(old.project, store).before_or_same(old, later)
    assert not Git(new.project, store).before_or_same(new, repository.head)
    assert Git(new.project, store).before_or_same(new, later)


def test_a_bad_commit_that_the_repository_has_no_more_pins_nothing_and_one_that_does_not_answer_everything(
    tmp_path: Path, repository: Repository
) -> None:
    job = job_of(tmp_path, repository.head)
    assert not fetcher(tmp_path, job).before_or_same(job, sha(12))
    repository.folder.rename(tmp_path / "away")
    with pytest.raises(Transient):
        Git(job.project, tmp_path / "store").before_or_same(job, sha(13))


def test_a_repository_that_is_too_slow_may_be_faster_later(
    tmp_path: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlctl_ci.git.repository.LOOK_WITHIN_S", 0.0)
    job = job_of(tmp_path, repository.head)
    with pytest.raises(Transient, match="more than 0 s"):
        fetcher(tmp_path, job).head(job)


@pytest.mark.parametrize("kind", ["../out", "/etc/out", "link out", "device", "large", "many", "deep"])
def test_an_archive_that_leads_out_or_has_no_end_is_refused(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        info = tarfile.TarInfo("file")
        if kind == "../out":
            info.name = "../out"
        elif kind == "/etc/out":
            info.name, info.type, info.linkname = "file", tarfile.SYMTYPE, "/etc/passwd"
        elif kind == "link out":
            info.type, info.linkname = tarfile.SYMTYPE, "../../out"
        elif kind == "device":
            info.type = tarfile.CHRTYPE
        elif kind == "large":
            info.size = 2048
        elif kind == "deep":
            info.name = "a/" * 200 + "file"
        tar.addfile(info, io.BytesIO(bytes(2048)) if kind == "large" else None)
        if kind == "many":
            monkeypatch.setattr("rlctl_ci.git.repository.MAX_FILES", 3)
            for number in range(5):
                tar.addfile(tarfile.TarInfo(str(number)))
    with pytest.raises(BuildStopped):
        unpack(path, tmp_path / "to", 1024)
    assert not (tmp_path / "out").exists()


def test_unpacking_ends_between_two_files_when_the_build_does(tmp_path: Path) -> None:
    def cancelled() -> None:
        if (tmp_path / "to" / "0").exists():
            raise Cancelled("by ana")

    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for number in range(3):
            tar.addfile(tarfile.TarInfo(str(number)))
    with pytest.raises(Cancelled):
        unpack(tmp_path / "a.tar", tmp_path / "to", 1 << 20, cancelled)
    assert [path.name for path in (tmp_path / "to").iterdir()] == ["0"]


@pytest.mark.parametrize("path", ["..", "/etc", "../../etc", "sub/../../x"])
def test_code_outside_the_repository_is_refused(tmp_path: Path, repository: Repository, path: str) -> None:
    commit = repository.commit(
        "spec.yaml", f"run: pole\nenv: {{id: CartPole-v1}}\ncode: {{path: {path}}}\nstop: {{agent_steps: 10}}\n"
    )
    job = job_of(tmp_path, commit)
    with pytest.raises(BuildStopped, match=r"leads out|no such folder"):
        Folder(tmp_path / "code").make(job, fetcher(tmp_path, job).fetch(job))


@pytest.mark.parametrize("link", ["spec.yaml", "other"])
def test_a_link_that_leads_in_circles_is_said_to_be_one_or_taken_as_it_is(
    tmp_path: Path, repository: Repository, link: str
) -> None:
    (repository.folder / link).unlink(missing_ok=True)
    (repository.folder / link).symlink_to(link)
    job = job_of(tmp_path, repository.commit("more.py", ""))
    source, made = fetcher(tmp_path, job).fetch(job), Folder(tmp_path / "code")
    if link == "spec.yaml":
        with pytest.raises(BuildStopped, match="leads nowhere"):
            made.make(job, source)
    else:
        (artifact,) = made.push(job, made.make(job, source))
        assert os.readlink(Path(artifact.reference) / link) == link


def test_a_spec_of_another_run_is_refused_and_a_faulty_one_named(tmp_path: Path, repository: Repository) -> None:
    commit = repository.commit("spec.yaml", "run: other\nenv: {id: CartPole-v1}\nstop: {agent_steps: 10}\n")
    job = job_of(tmp_path, commit)
    source = fetcher(tmp_path, job).fetch(job)
    with pytest.raises(BuildStopped, match="may change pole alone"):
        spec_at(job.project, source)
    (source / "spec.yaml").write_text("run: pole\nenvv: 1\n")
    with pytest.raises(BuildStopped, match=r"spec.yaml:2:1: envv: unknown key"):
        spec_at(job.project, source)


def test_equal_code_is_one_folder_that_nobody_changes(tmp_path: Path, repository: Repository) -> None:
    first = job_of(tmp_path, repository.head)
    second = job_of(
        tmp_path, repository.commit("spec.yaml", (repository.folder / "spec.yaml").read_text() + "seed: 3\n")
    )
    maker, found = Folder(tmp_path / "code"), []
    for job in (first, second):
        source = fetcher(tmp_path, job).fetch(job)
        (source / "pkg.py").write_text("x = 1\n")
        found.append(maker.push(job, maker.make(job, source))[0].reference)
    assert found[0] == found[1], "the spec is no code"
    assert (Path(found[0]) / "pkg.py").stat().st_mode & 0o222 == 0
    assert Path(found[0]).with_name(f"{Path(found[0]).name}.provenance.json").is_file()


def test_a_program_that_takes_too_long_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    code = "import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
    code += " print(p.pid, flush=True); time.sleep(60)"
    said: list[str] = []
    with pytest.raises(BuildStopped, match="more than"):
        Programs({}, Bounds(3.0))([sys.executable, "-c", code], said.append)
    wait_until(lambda: gone(said[0]), timeout_s=60, what="the end of what it had started")


def gone(pid: str) -> bool:
    """No process, or one that only waits for being asked after; a kill is not over when it is sent."""
    try:
        return not Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return True


def test_a_cancelled_program_is_killed(tmp_path: Path) -> None:
    def stop() -> None:
        raise Cancelled("no")

    with pytest.raises(Cancelled):
        Programs({}, Bounds(60.0), stop)([sys.executable, "-c", "import time; time.sleep(60)"])


def test_a_program_gets_no_more_memory_than_allowed() -> None:
    ended = Programs({}, Bounds(60.0, memory_mib=300))(
        [sys.executable, "-c", "import time; time.sleep(0.5); bytearray(1 << 30)"]
    )
    assert ended.code != 0
    assert "MemoryError" in "\n".join(ended.lines)


def test_a_program_stands_back_as_far_as_it_is_told() -> None:
    ours = os.getpriority(os.PRIO_PROCESS, 0)
    told = Programs({}, Bounds(60.0, nice=10))(
        [sys.executable, "-c", "import os, sys; sys.stdin.read(); print(os.nice(0))"], data=b""
    )
    assert told.code == 0
    assert int(told.lines[-1]) == min(19, ours + 10)


def test_a_program_of_a_build_sees_no_cluster_and_no_token(tmp_path: Path) -> None:
    ours = {
        "PATH": "/bin",
        "KUBECONFIG": "/k",
        "KUBERNETES_SERVICE_HOST": "1",
        "RLCTL_CI_TOKEN_FILE": "/t",
        "HOME": "/root",
    }
    assert clean(ours, tmp_path) == {"PATH": "/bin", "HOME": str(tmp_path)}
