"""Thousands of actors: what the manager says and does for each stays bounded."""

from __future__ import annotations

import itertools
import resource
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rlctl_agents.manager import timing
from rlctl_agents.manager.accounting.counters import LONGEST_NAME
from rlctl_agents.manager.events import BURST, BURST_S, Events
from rlctl_agents.manager.membership.leases import Holder, Leases
from rlctl_agents.manager.membership.registry import MOST_GAUGES
from rlctl_agents.manager.status.report import LISTED, UNWELL, StatusBuilder, counts, listed
from rlctl_agents.manager.timing import LONGEST_S, Every
from rlctl_agents.manager.web.status_page import page
from rlctl_agents.runtime.gauges import BASE_ROWS, GROUP
from rlctl_agents.runtime.logs import Lines
from rlctl_agents.runtime.process import allow_many_files
from rlctl_agents.types.control import Average, Histogram, Report
from rlctl_agents.types.experience import ModelRef
from tests.manager.world import Run, Time, boot, experience
from tests.support.samples import size

H = Histogram([1.0], [3, 4], 5.0)
MANY = size(3_000, 10_000)
REPORT_EVERY_S = timing.report_every_s(MANY)


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with so many actors, of which a hundred have fallen silent."""
    run = Run(tmp_path_factory.mktemp("run"))
    run.join("modelpool", 1)
    said = experience()
    for number in range(MANY):
        run.join("actor", 100 + number, prefer=None, experience=said)
    run.join("learner", 2)
    for reports, first in ((1.0, 0), (1.0, 100), (3.0, 100)):
        run.time.now += reports * REPORT_EVERY_S
        for number in range(first, MANY):
            run.report("actor", 100 + number, counters={"env_steps": 10 * run.time.now})
    run.report("modelpool", 1)
    run.report("learner", 2)
    return run


@pytest.mark.slow
def test_status_and_page_stay_small_and_name_those_who_are_silent(crowd: Run) -> None:
    status = StatusBuilder(crowd.manager, cores=8).build()
    assert status["members"]["actor"] == {"live": MANY, "silent": 100}
    actors = status["roles"]["actor"]
    assert len(actors) <= LISTED
    assert sum(entry.get("silent", False) for entry in actors) >= UNWELL
    assert len(msgspec.json.encode(status)) < 100_000
    text = page(status, [], status["time"])
    assert len(text.encode()) < 150_000
    assert f"and {MANY + 2 - 50:,} more, 50 of them silent" in text
    assert "95 more processes have said nothing" in text


@pytest.mark.slow
def test_rates_span_several_reports_however_rare_they_are(crowd: Run) -> None:
    crowd.manager.turn()
    assert crowd.manager.members.report_every_s == pytest.approx(REPORT_EVERY_S, rel=0.01)
    assert crowd.manager.members.rates.window_s >= 3 * crowd.manager.members.report_every_s


def test_actors_report_rarely_and_the_few_others_every_second() -> None:
    assert timing.report_every_s(10_002) == pytest.approx(20, rel=0.01)
    assert timing.report_every_s(10_002, "learner") == 1.0
    assert timing.report_every_s(40) == 1.0


@pytest.mark.slow
def test_those_who_came_first_hear_that_they_shall_report_more_rarely(crowd: Run) -> None:
    assert crowd.report("actor", 200).report_every_s == pytest.approx(REPORT_EVERY_S, rel=0.01)
    assert crowd.report("modelpool", 1).report_every_s == 1.0


def holders(count: int) -> list[Holder]:
    return [Holder("actor", index, boot(index), 0.0, 0.0) for index in range(count)]


def test_of_a_small_run_everybody_is_listed() -> None:
    members = holders(LISTED)
    assert listed(members, {boot(3)}) == members
    assert counts(members, {boot(3)}) == {"live": LISTED, "silent": 1}


def test_of_many_the_silent_ones_are_listed_and_an_even_sample() -> None:
    members = holders(1000)
    shown = [one.index for one in listed(members, {boot(7), boot(993)})]
    assert shown == sorted(set(shown))
    assert {7, 993} <= set(shown)
    assert len(shown) <= LISTED
    assert max(later - earlier for earlier, later in itertools.pairwise(shown)) <= 12
    assert len(listed(members, {boot(index) for index in range(1000)})) <= LISTED


def test_the_lowest_free_index_is_found_although_leases_come_and_go() -> None:
    time = Time()
    leases = Leases(time)
    for number in range(5):
        leases.grant("actor", boot(number), None)
    time.now += 10
    for number in (0, 2, 4):
        leases.hear(boot(number), leaving=False)
    time.now += 6
    assert [one.index for one in leases.expire()] == [1, 3]
    again = [leases.grant("actor", boot(10 + number), None).holder.index for number in range(3)]
    assert again == [1, 3, 5]
    assert leases.grant("learner", boot(99), None).holder.index == 0


def test_of_many_events_at_once_the_first_are_told_and_the_others_counted(tmp_path: Path) -> None:
    time = Time()
    events = Events(tmp_path / "events.jsonl", time)
    for number in range(BURST + 400):
        events.add("lease", f"actor {number} joined", role="actor")
    events.add("lease", "learner 0 joined", role="learner")
    told = [event["text"] for event in events.since(0)[0]]
    assert len(told) == BURST + 1
    assert told[-1] == "learner 0 joined", "other roles are not drowned"
    events.settle()
    assert len(events.since(0)[0]) == BURST + 1, "not yet"
    time.now += BURST_S
    events.settle()
    newest = events.since(BURST + 1)[0]
    assert [(event["text"], event["count"]) for event in newest] == [
        ("and 400 more like this, the last one: actor 499 joined", 400)
    ]
    events.add("lease", "actor 7 joined", role="actor")
    assert events.since(BURST + 2)[0][0]["text"] == "actor 7 joined"


def test_remembered_lines_are_bounded_in_bytes() -> None:
    lines = Lines(max_characters=100)
    lines.add(["a" * 60, "b" * 60, "c" * 10])
    assert lines.since(0) == (["b" * 60, "c" * 10], 3)
    lines.add(["d" * 500])
    assert lines.since(0)[0] == ["d" * 500], "the newest is never left out"


def test_what_takes_long_is_done_more_rarely() -> None:
    time = Time()
    every = Every(1.0, time)
    assert every.due()
    time.now += 0.05
    every.spent()
    assert every.period_s == 1.0
    time.now += 1
    assert every.due()
    time.now += 0.5
    every.spent()
    assert every.period_s == pytest.approx(5.0)
    time.now += 4.4
    assert not every.due()
    time.now += 0.2
    assert every.due()
    every.spent()
    assert every.period_s == 1.0


def test_a_duty_that_has_waited_for_a_volume_is_done_again_soon() -> None:
    time = Time()
    every = Every(1.0, time)
    assert every.due()
    time.now += 45
    every.spent()
    time.now += LONGEST_S
    assert every.due()


def test_the_newest_report_of_a_process_is_kept_without_what_only_an_attacker_sends(tmp_path: Path) -> None:
    run, long = Run(tmp_path), "x" * (LONGEST_NAME + 1)
    run.join("actor", 3)
    run.join("learner", 2)
    many = {f"{number}": 1.0 for number in range(MOST_GAUGES + 5)}
    for role, number in (("actor", 3), ("learner", 2)):
        run.report(
            role, number, gauges={long: 1.0, "epsilon": 0.5}, histograms={long: Histogram([], [0]), "h": H},
            averages={long: Average(0.0, 0), **dict.fromkeys(many, Average(1.0, 1))}, model=ModelRef(long, 1, 1),
        )  # fmt: skip
    actor, learner = (run.manager.members.seen[boot(number)] for number in (3, 2))
    assert actor.gauges == {"epsilon": 0.5}
    assert (actor.histograms, actor.averages, actor.model) == ({}, {}, None)
    assert (learner.histograms, len(learner.averages)) == ({"h": H}, MOST_GAUGES)


def test_reports_of_learners_are_taken_without_a_look_at_those_of_all_actors(tmp_path: Path) -> None:
    class Unseen(dict[str, Report]):
        def items(self) -> Any:
            raise AssertionError("there may be ten thousand actors")

    run = Run(tmp_path)
    run.join("actor", 3)
    members, gauges = run.manager.members, {GROUP: 1.0, BASE_ROWS: 0.0}
    members.seen = Unseen(members.seen)
    for index, number in enumerate((2, 4)):
        run.join("learner", number, index)
        run.report("learner", number, gauges=gauges)
    assert members.ledger.store().lives["main"].boots == {boot(2), boot(4)}


def test_open_files_are_allowed_as_far_as_the_system_lets_us() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = min(256, before[0])
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
    try:
        wanted = soft + 100 if before[1] == resource.RLIM_INFINITY else min(soft + 100, before[1])
        assert allow_many_files(soft + 100) == wanted
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == wanted
        assert allow_many_files(10) == wanted, "never less"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_nobody_speaks_for_a_process_of_another_role(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.join("actor", 3)
    run.join("learner", 2)
    run.learn(2, steps=100, version=1)
    assert not run.report("actor", 2, gauges={"stopping": 1.0}, counters={"updates": 1e9}).known
    assert run.manager.members.totals.sum("learner", "updates") == 1
    assert run.manager.members.totals.sum("actor", "updates") == 0
    run.after(4, ("actor", 3))
    assert [one.role for one in run.manager.members.leases.live()] == ["actor", "learner"], "it did not leave"
