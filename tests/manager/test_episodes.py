"""Recorded episodes that the manager keeps: names, numbers, and no more than so many."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlctl_agents.manager import episodes
from rlctl_agents.manager.episodes import AT_ONCE_S, KEPT, Episodes
from rlctl_agents.types.control import Recorded, Reply
from tests.manager.world import ACTOR, JUDGE, Run, Time, boot, everybody


def crash(body: bytes = b"body", number: int = ACTOR, kind: str = "crash") -> Recorded:
    return Recorded(boot(number), kind, b'{"format":1}', body)  # type: ignore[arg-type]


def test_a_crash_is_kept_on_the_volume_and_told_with_the_command_that_plays_it_again(run: Run) -> None:
    everybody(run)
    said = run.manager.recorded(crash())
    assert said == Reply(True, "actor/0@1")
    assert (run.layout.episodes / "actor-0-1-crash.episode").read_bytes() == b'{"format":1}\nbody'
    (event,) = [one for one in run.manager.events.since(0)[0] if one["kind"] == "episode"]
    assert event["text"].endswith("its environment failed: rlctl repro r actor/0@1")
    again = run.manager.recorded(crash())
    assert again == Reply(False, "this process has told its crash already"), "it would push out those of others"
    assert run.manager.recorded(crash(number=JUDGE, kind="best")) == Reply(True, "evaluator/0@2")
    assert [one["kind"] for one in run.manager.events.since(0)[0]].count("episode") == 1


def test_nobody_has_episodes_kept_that_are_not_theirs(run: Run) -> None:
    everybody(run)
    for recorded in (crash(kind="best"), crash(number=77), crash(number=1)):
        why = f"process {recorded.boot} has no role that records {recorded.kind} episodes"
        assert run.manager.recorded(recorded) == Reply(False, why)
    odd = Recorded(boot(ACTOR), "crash", b"two\nlines", b"")
    assert run.manager.recorded(odd) == Reply(False, "the description of an episode must be one line")
    assert not list(run.layout.episodes.glob("*.episode"))


def test_the_newest_are_kept_and_no_name_is_given_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episodes, "KEPT", {"crash": 3, "extreme": 2})
    time = Time()
    keeps = Episodes(tmp_path / "episodes", time)

    def keep(number: int) -> str:
        time.now += AT_ONCE_S
        return keeps.keep("actor-3", crash(number=number))

    names = [keep(number) for number in range(5)]
    assert names == [f"actor/3@{number}" for number in range(1, 6)]
    assert keeps.keep("evaluator-0", crash(kind="worst")) == "evaluator/0@6"
    kept = sorted(path.name for path in (tmp_path / "episodes").iterdir())
    assert kept == [*(f"actor-3-{number}-crash.episode" for number in (3, 4, 5)), "evaluator-0-6-worst.episode"]
    assert Episodes(tmp_path / "episodes").keep("actor-3", crash()) == "actor/3@7", "by another manager"


def test_of_thousands_that_crash_at_once_no_more_are_written_than_are_kept(tmp_path: Path) -> None:
    time, folder = Time(), tmp_path / "episodes"
    keeps = Episodes(folder, time)
    for number in range(KEPT["crash"]):
        time.now += 0.1
        keeps.keep("actor-3", crash(number=number))
    for _ in range(2):
        with pytest.raises(ValueError, match="64 others that crashed within 60 s are kept"):
            keeps.keep("actor-3", crash(number=1000))
    assert len(list(folder.iterdir())) == KEPT["crash"]
    assert keeps.keep("evaluator-0", crash(kind="best")) == "evaluator/0@65", "no crash, and of few"
    time.now += AT_ONCE_S
    assert keeps.keep("actor-3", crash(number=1000)) == "actor/3@66", "it has not told of its crash yet"


def test_of_thousands_that_crash_at_once_few_send_their_record(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    everybody(run)
    question = Recorded(boot(ACTOR), "crash", b"", b"")
    assert run.manager.recorded(question) == run.manager.recorded(question) == Reply(True), "an answer may be lost"
    keeps = run.manager.state.episodes
    for number in range(1000, 1000 + KEPT["crash"] - 1):
        keeps.reserve(boot(number))
    with pytest.raises(ValueError, match="64 others that crashed"):
        keeps.reserve(boot(2000))
    assert run.manager.recorded(crash()) == Reply(True, "actor/0@1"), "its place is kept"
    assert run.manager.recorded(question) == Reply(False, "this process has told its crash already")


def test_large_ones_are_fewer_and_the_newest_stays_however_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(episodes, "KEPT_BYTES", 100)
    keeps = Episodes(tmp_path / "episodes")
    for number, size in enumerate((30, 30, 30, 30, 500)):
        keeps.keep("actor-0", crash(bytes(size), number))
        total = sum(path.stat().st_size for path in (tmp_path / "episodes").iterdir())
        assert total <= 100 or size == 500
    assert [path.name for path in (tmp_path / "episodes").iterdir()] == ["actor-0-5-crash.episode"]
