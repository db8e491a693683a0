"""The injection corpus: each word in each place, from the hook to pages, JSON, logs, commands and a repository."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from rlctl.image_names import Reference
from rlctl_ci.builders.folder import Folder
from rlctl_ci.client import Client
from rlctl_ci.config.settings import Config
from rlctl_ci.core.logs import Log, Masker
from rlctl_ci.core.service import Service
from rlctl_ci.forges.find import FORGES
from rlctl_ci.git.refs import fault, slug
from rlctl_ci.git.repository import Git
from rlctl_ci.store.records import Push
from rlctl_ci.web.app import make
from tests.ci.corpus import WORDS
from tests.ci.git.test_repository import Repository, git, job_of, kept
from tests.ci.world import MAIN, here, no_hands, sha
from tests.cli.conftest import Rlctl, rlctl
from tests.support.samples import sample

__all__ = ["rlctl"]

SECRET = b"a secret of sixteen or more"
HARMLESS = "harmless"
BRANCHES = [word for word in WORDS if not fault(f"refs/heads/{word}")]
PLACES = ("author", "title", "delivery", "event", "branch", "path")
ALL_CASES = [(place, word) for place in PLACES for word in WORDS if place != "branch" or word in BRANCHES]
CASES = sample("injection", ALL_CASES, 50)
STARTED = (
    "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.startfile", "pty.spawn",
    "socket.connect",
)  # fmt: skip
_watching: list[list[tuple[str, Any]]] = []


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if _watching and (event in STARTED or (event == "open" and _writes(arguments))):
        what = kept(arguments[1])[0] if event == "subprocess.Popen" else arguments[0]
        for found in _watching:
            found.append((event, what))


def _writes(arguments: tuple[Any, ...]) -> bool:
    _, mode, flags = arguments
    return bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)) or any(sign in (mode or "") for sign in "wax+")


@cache
def _listen() -> None:
    """Hear every event of this process from now on; once, because no hook can be taken away again."""
    sys.addaudithook(_hear)


@contextmanager
def watched() -> Iterator[list[tuple[str, Any]]]:
    """Programs that this process starts, hosts that it asks, and files that it opens for writing."""
    _listen()
    found: list[tuple[str, Any]] = []
    _watching.append(found)
    try:
        yield found
    finally:
        _watching.remove(found)


def outside(found: list[tuple[str, Any]], folder: Path) -> list[tuple[str, Any]]:
    """Everything but files below the folder, and bytecode of modules that are imported now."""
    return [(event, what) for event, what in found if event != "open" or not _inside(what, folder)]


def _inside(what: Any, folder: Path) -> bool:
    if isinstance(what, int):
        return True
    path = Path(os.fsdecode(what))
    return path.is_relative_to(folder) or "__pycache__" in path.parts


class Skeleton(HTMLParser):
    """Elements and names of attributes, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(" ".join([tag, *(name for name, _ in attrs)]))

    def handle_endtag(self, tag: str) -> None:
        self.found.append(f"/{tag}")

    def handle_comment(self, data: str) -> None:
        self.found.append("comment")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder in which words that are executed would leave `owned`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def service(folder: Path) -> Iterator[Service]:
    (folder / "secret").write_bytes(SECRET)
    project = {
        "forge": "github", "repository": str(folder / "work"), "secret_file": folder / "secret", "run": "pole",
        "branches": ["main", *BRANCHES],
    }  # fmt: skip
    config = {"state": folder / "state", "projects": {"pole": project}, "hooks_per_minute": 1_000_000}
    found = Service(Config.model_validate(config), no_hands)
    yield found
    found.close()


@pytest.fixture
def http(service: Service) -> TestClient:
    app = make(service)
    return TestClient(app, base_url="http://127.0.0.1:8710", client=("127.0.0.1", 1), follow_redirects=False)


def hook(http: TestClient, place: str, word: str, number: int) -> Any:
    """A signed push with the word in that place."""
    forge = FORGES["github"]
    said = {"author": "ana", "title": "faster", "branch": "main"} | ({place: word} if place in PLACES[:2] else {})
    ref = f"refs/heads/{word}" if place == "branch" else MAIN
    body = forge.example(Push(ref, sha(number), said["author"], said["title"]))
    if place == "path":
        body["commits"] = [{"added": [word], "modified": [], "removed": []}]
    raw = json.dumps(body).encode()
    signed = forge.sign(raw, SECRET, delivery=f"{number}", now=0)
    headers = {name.lower().encode(): value.encode() for name, value in signed}
    as_header = re.sub(rb"[\x00\r\n]", b" ", word.encode("utf-8", "replace"))[:4000]  # as far as HTTP carries it
    if place == "delivery":
        headers[b"x-github-delivery"] = as_header
    if place == "event":
        headers[b"x-github-event"] = as_header
    return http.post("/hooks/github/pole", content=raw, headers=headers)  # type: ignore[arg-type]


def safe(text: str) -> bool:
    """Nothing that a terminal or a reader of pages takes for more than a sign."""
    return not any(unicodedata.category(sign) in ("Cc", "Cf", "Cs", "Zl", "Zp") for sign in text if sign not in "\t\n")


def test_the_corpus_is_large_and_its_branches_are_such_as_git_allows() -> None:
    assert len(ALL_CASES) >= 500
    assert len(BRANCHES) >= 60


@pytest.mark.processes  # it starts none, but takes a minute
@pytest.mark.timeout(600)
def test_no_word_in_any_place_is_more_than_text(
    service: Service, http: TestClient, folder: Path, rlctl: Rlctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        Client, "get", lambda self, path, **query: http.get(path, params={"limit": query["limit"]}).json()
    )
    monkeypatch.setattr(Client, "log", lambda self, build, offset: _log(http, build, offset))
    hook(http, "title", HARMLESS, 1)
    shapes = {path: Skeleton(http.get(path).text).found for path in ("/builds/1",)}
    with watched() as did:
        for number, (place, word) in enumerate(CASES, 2):
            case = f"{place}: {word[:60]!r}"
            answer = hook(http, place, word, number)
            if place == "event":  # 400 where nothing of it can be shown
                assert answer.status_code in (204, 400), case
                continue
            assert answer.status_code == 202, case
            build = answer.json()["build_id"]
            Log(service.log(build), 1 << 20, Masker([]))(f"said: {word}")
            page = http.get(f"/builds/{build}").text
            logged = Skeleton(page).found
            assert logged == shapes["/builds/1"], f"{case} changes the page"
            assert safe(page), case
            document = http.get(f"/builds/{build}.json").json()
            assert safe("".join(document[key] for key in ("author", "title"))), case
            if place == "branch":
                assert document["ref"] == f"refs/heads/{word}", case
            if place == "title":  # a log says the same in every place
                assert safe(rlctl("ci", "log", str(build)).out), case
            service.queue.cancel(build, "done")
        listed = rlctl("ci", "builds", "--limit", "20")
        assert safe(listed.out)
        assert len(listed.out.splitlines()) == 21, "a word has made a line of its own"
        assert safe(http.get("/").text)
    assert not outside(did, folder), "something was started, asked, or written elsewhere"
    assert not list(folder.rglob("owned"))
    assert sum(service.reading.counts().values()) == 1 + sum(place != "event" for place, _ in CASES)


@pytest.mark.parametrize("place", ["tag", "file", "image"])
def test_a_branch_becomes_a_name_that_every_format_takes(place: str) -> None:
    slugs = {slug(f"refs/heads/{word}") for word in BRANCHES}
    assert len(slugs) == len(BRANCHES)
    for one in slugs:
        if place == "image":
            Reference.parse(f"127.0.0.1:5000/rlctl-actor:branch-{one}")
        else:
            assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", one)


@pytest.mark.processes
def test_git_is_all_that_a_branch_starts_and_its_code_becomes_a_folder(folder: Path) -> None:
    repository = Repository(folder)
    for word in BRANCHES:
        git(repository.folder, "update-ref", f"refs/heads/{word}", repository.head)
    store, made = folder / "store", Folder(folder / "code", here)
    with watched() as did:
        for word in sample("branches", BRANCHES, 4):
            job = job_of(folder, repository.head, f"refs/heads/{word}")
            fetcher = Git(job.project, store)
            assert fetcher.head(job) == repository.head, word
            source = fetcher.fetch(job)
            (artifact,) = made.push(job, made.make(job, source))
            proof = Path(f"{artifact.reference}.provenance.json").read_text()
            told = json.loads(proof)["predicate"]["buildDefinition"]["externalParameters"]
            assert told["ref"] == f"refs/heads/{word}"
    assert {what for event, what in outside(did, folder) if event == "subprocess.Popen"} == {"git"}
    assert not [event for event, what in outside(did, folder) if what != "git" and event != "open"]
    assert not [path for path in folder.rglob("owned") if ".git" not in path.parts], "there, a branch is a file"


@pytest.mark.processes
def test_files_named_as_commands_are_fetched_and_packed_as_data(folder: Path) -> None:
    repository = Repository(folder)
    names = {word for word in WORDS if "/" not in word and "\x00" not in word and len(word) < 200} - {".", ".."}
    for number, name in enumerate(sorted(names)):
        (repository.folder / f"n{number}").mkdir()
        (repository.folder / f"n{number}" / name).write_text("x = 1\n")
    head = repository.commit("last.py", "")
    job = job_of(folder, head)
    made = Folder(folder / "code")
    with watched() as did:
        source = Git(job.project, folder / "store").fetch(job)
        (artifact,) = made.push(job, made.make(job, source))
    assert {what for event, what in did if event == "subprocess.Popen"} == {"git", sys.executable}
    found = {path.name for path in Path(artifact.reference).rglob("*") if path.is_file()}
    assert len(names & found) > 150
    assert not [path for path in folder.rglob("owned") if path.parent.name[:1] != "n"]


def test_the_watch_sees_what_it_is_there_for(tmp_path: Path) -> None:
    with watched() as did:
        subprocess.run([sys.executable, "-c", ""], check=True)
        (tmp_path / "file").write_text("x")
    assert "subprocess.Popen" in {event for event, _ in did}
    assert ("open", str(tmp_path / "file")) in [(event, str(what)) for event, what in did]
    assert outside(did, tmp_path / "elsewhere")
    assert safe("plain")
    assert not safe("\x1b[31m")


def _log(http: TestClient, build: int, offset: int) -> tuple[str, int, str]:
    answer = http.get(f"/api/v1/builds/{build}/log", params={"offset": offset})
    return answer.text, int(answer.headers["x-next-offset"]), answer.headers["x-build-state"]
