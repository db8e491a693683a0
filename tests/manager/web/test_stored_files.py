"""Files of a run through its manager: what may be asked for, in pieces, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlctl.backends.stored_files import FilesOfManager
from rlctl.errors import BackendUnreachable, RlctlError
from rlctl.spec.layout import Layout
from rlctl_agents.manager.web.stored_files import LARGEST_PIECE_BYTES, StoredFiles


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    layout = Layout(tmp_path / "run")
    layout.make()
    (layout.models / "best.json").write_bytes(b"0123456789")
    (layout.results / "evaluations.jsonl").write_bytes(b"{}")
    (layout.results / "status.json").write_bytes(b"{}")
    (layout.run / "secret.json").write_bytes(b"{}")
    return layout


def ask(layout: Layout, **query: str) -> tuple[int, Any]:
    answer = StoredFiles(layout).answer(query)
    return answer.status, json.loads(answer.body)


def through(layout: Layout) -> FilesOfManager:
    """As the command line asks, without the way between."""
    from urllib.parse import parse_qsl, urlsplit

    def get(target: str) -> Any:
        parts = urlsplit(target)
        assert parts.path == "/files"
        answer = StoredFiles(layout).answer(dict(parse_qsl(parts.query)))
        if answer.status >= 400:
            raise RlctlError(json.loads(answer.body)["error"]["message"])
        return json.loads(answer.body)

    return FilesOfManager(get)


def test_files_come_in_pieces(layout: Layout) -> None:
    files = through(layout)
    assert files.sizes("models") == {"best.json": 10}
    assert files.sizes("checkpoints") == {}
    assert files.sizes("results") == {"evaluations.jsonl": 2}
    pieces = [files.read("models", "best.json", offset, 4) for offset in (0, 4, 8, 12)]
    assert pieces == [b"0123", b"4567", b"89", b""]


def test_a_piece_is_never_larger_than_an_answer_may_be(layout: Layout) -> None:
    (layout.models / "large").write_bytes(bytes(LARGEST_PIECE_BYTES + 5))
    assert len(through(layout).read("models", "large", 0, 10**14)) == LARGEST_PIECE_BYTES


@pytest.mark.parametrize(
    "query",
    [
        {}, {"folder": "run"}, {"folder": "../run"}, {"folder": "models", "name": "../run/secret.json"},
        {"folder": "models", "name": "best.json"}, {"folder": "models", "name": "best.json", "offset": "-1"},
        {"folder": "models", "name": "best.json", "offset": "0", "length": "9" * 20},
        {"folder": "results", "name": "status.json", "offset": "0", "length": "9"},
        {"folder": "models", "name": "link", "offset": "0", "length": "9"},
        {"folder": "models", "name": ".hidden", "offset": "0", "length": "9"},
    ],
)  # fmt: skip
def test_nothing_else_can_be_had(layout: Layout, query: dict[str, str]) -> None:
    (layout.models / "link").symlink_to(layout.run / "secret.json")
    (layout.models / ".hidden").write_bytes(b"x")
    status, said = ask(layout, **query)
    assert status in (400, 404)
    assert set(said) == {"error"}


def test_a_piece_is_asked_for_again_for_a_minute_and_a_refusal_is_not() -> None:
    broken = BackendUnreachable("broke off")
    answers: list[Any] = [{"files": {"best.json": 2}}, broken, broken, broken, {"data": "aGk="}]
    slept: list[float] = []

    def get(target: str) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    files = FilesOfManager(get, sleep=slept.append)
    assert files.sizes("models") == {"best.json": 2}
    assert files.read("models", "best.json", 0, 2) == b"hi"
    assert slept == [0.0, 1.0, 2.0]
    answers += [RlctlError("it is not there"), *[broken] * 8, {"data": ""}]
    with pytest.raises(RlctlError, match="it is not there"):
        files.read("models", "best.json", 0, 2)
    with pytest.raises(BackendUnreachable):
        files.read("models", "best.json", 0, 2)
    assert answers == [{"data": ""}]
    assert sum(slept) == pytest.approx(60.0, abs=5.0)


def test_a_manager_that_never_answered_is_told_at_once() -> None:
    def get(target: str) -> Any:
        raise BackendUnreachable("there is none")

    slept: list[float] = []
    with pytest.raises(BackendUnreachable, match="there is none"):
        FilesOfManager(get, sleep=slept.append).sizes("models")
    assert slept == []


@pytest.mark.parametrize("answer", [None, [], {"files": {"a": "1"}}, {"data": 5}, {"data": "é"}, {}])
def test_an_answer_that_is_none_is_told(answer: Any) -> None:
    files = FilesOfManager(lambda path: answer)
    with pytest.raises(BackendUnreachable, match="does not say"):
        files.sizes("models")
    with pytest.raises(BackendUnreachable, match="does not say"):
        files.read("models", "best.json", 0, 1)
