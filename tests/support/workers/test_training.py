"""Actor, learner and evaluator as they run, in threads, with a small manager and modelpool over the real wire."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlctl.spec.layout import Layout
from rlctl_agents.algorithms.base import Batch
from rlctl_agents.roles import actor, evaluator, learner, modelpool
from rlctl_agents.runtime.health import RESET_S, SIMULATOR_S
from rlctl_agents.runtime.manager_session import ManagerSession
from rlctl_agents.runtime.process import UserFault
from rlctl_agents.training.stored_policy import load_kept
from rlctl_agents.training.trainer import Diverged, Trainer, Updated
from rlctl_agents.types.control import Commit, Match, Quota
from rlctl_agents.types.experience import ModelRef
from rlctl_agents.weights import publisher
from tests.support.fakes import Manager, Pool, process_of, running, wait_until
from tests.support.workers.small import SPEC, consumed, spec_of


def test_actor_learner_and_evaluator_train_measure_save_and_account_for_every_row(
    folder: Path, manager: Manager, pool: Pool
) -> None:
    learns = process_of("learner", manager, SPEC, volume=folder)
    acts, measures = process_of("actor", manager, SPEC), process_of("evaluator", manager, SPEC)
    with (
        running(learner.main, learns) as learner_raised,
        running(evaluator.main, measures) as evaluator_raised,
        running(actor.main, acts) as actor_raised,
    ):
        wait_until(lambda: consumed(manager) >= 400, "ten updates")
        manager.checkpoint = 4
        wait_until(lambda: bool(manager.commits), "the generation")
        assert pool.newest is not None
        manager.matches["evaluator"] = Match(2, {0: pool.newest}, (), 11, quota=Quota(6, "sample"))
        wait_until(lambda: bool(manager.results), "the evaluation")
        manager.matches["evaluator"] = None
    assert (learner_raised, actor_raised, evaluator_raised) == ([], [], [])

    result = manager.results[0]
    assert (result.match, result.mode, len(result.returns)) == (2, "sample", 6)
    assert set(result.lengths) == {5}

    last = {role: manager.newest(role) for role in ("actor", "learner")}
    assert last["actor"] is not None
    assert last["learner"] is not None
    (sent,) = last["actor"].sent.values()
    (account,) = last["learner"].accounts.values()
    assert sent.produced == sent.sent + sent.dropped
    assert last["actor"].pending == 0
    decided = account.consumed + account.stale + account.fenced + account.invalid
    assert account.received == decided + account.queued
    assert account.consumed > last["learner"].counters["consumed_steps"] > 400, "a row after an end is no agent step"
    assert last["learner"].counters["updates"] * 40 == account.consumed
    assert last["learner"].histograms["lag_versions"].total >= 0
    assert {"loss.entropy", "grad_norm", "lr", "entropy_coef", "queue_rows"} <= last["learner"].gauges.keys()
    averages, updates = last["learner"].averages, last["learner"].counters["updates"]
    assert {one.count for one in averages.values()} == {updates}, "of every update"
    assert {"loss.entropy", "loss.total", "grad_norm"} <= averages.keys()
    assert not {"lr", "entropy_coef"} & averages.keys()
    wanted = {"env_steps", "agent_steps", "frames", "episodes", "env_seconds", "inference_seconds"}
    assert wanted | {"wait_credit_seconds", "wait_model_seconds", "cpu_seconds"} <= last["actor"].counters.keys()

    ordered, final = (commit.generation for commit in manager.commits)
    assert (ordered.number, final.number) == (4, 5), "an orderly stop saves once more"
    assert final.steps == last["learner"].counters["consumed_steps"]
    part = Layout(folder).checkpoints / final.parts["learner"]
    assert hashlib.sha256(part.read_bytes()).hexdigest() == final.sha256["learner"]


def test_a_second_learner_goes_on_from_the_newest_generation_and_fences_what_was_made_before(
    folder: Path, manager: Manager, pool: Pool
) -> None:
    acts = process_of("actor", manager, SPEC)
    with running(actor.main, acts) as raised:
        with running(learner.main, process_of("learner", manager, SPEC, volume=folder)):
            wait_until(lambda: consumed(manager) >= 400, "ten updates")
        told = manager.newest("learner")
        assert told is not None
        rows, version = manager.commits[-1].generation.steps, manager.commits[-1].generation.ref.version
        assert rows >= 400
        manager.next_lineage = 2
        second = process_of("learner", manager, SPEC, volume=folder)
        with running(learner.main, second):
            wait_until(lambda: pool.newest is not None and pool.newest.lineage == 2, "the new lineage")
            wait_until(lambda: consumed(manager) >= 200, "updates of the second learner")
    assert raised == []
    assert min(ref.version for ref in pool.models if ref.lineage == 2) == version
    assert manager.commits[-1].generation.steps == rows + consumed(manager)
    last = manager.newest("learner")
    assert last is not None
    taken = sum(account.consumed for account in told.accounts.values())
    assert last.gauges["base_rows"] == taken > rows, "with the rows after episodes' ends"


def test_a_learner_asks_until_the_manager_has_decided_about_its_generation_and_goes_on_meanwhile(
    folder: Path, manager: Manager, pool: Pool
) -> None:
    manager.again = 3
    with (
        running(actor.main, process_of("actor", manager, SPEC)),
        running(learner.main, process_of("learner", manager, SPEC, volume=folder)) as raised,
    ):
        wait_until(lambda: consumed(manager) >= 80, "updates")
        manager.checkpoint = 1
        wait_until(lambda: manager.asked >= 2, "a second question")
        seen = consumed(manager)
        wait_until(lambda: consumed(manager) > seen and bool(manager.commits), "more updates, and the commit")
        assert manager.asked == 4
    assert raised == []
    assert [commit.generation.number for commit in manager.commits] == [1, 2]


def test_a_learner_that_cannot_ask_the_manager_saves_the_next_generation_all_the_same(
    folder: Path, manager: Manager, pool: Pool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    call, refused = ManagerSession.call, list[Commit]()

    def calling(self: ManagerSession, request: Any, *arguments: Any, **named: Any) -> Any:
        if isinstance(request, Commit) and not refused:
            refused.append(request)
            raise MemoryError("no socket is left")
        return call(self, request, *arguments, **named)

    monkeypatch.setattr(ManagerSession, "call", calling)
    with (
        running(actor.main, process_of("actor", manager, SPEC)),
        running(learner.main, process_of("learner", manager, SPEC, volume=folder)) as raised,
    ):
        for number in (1, 2):
            manager.checkpoint = number
            wait_until(lambda: bool(refused), "a generation that the manager does not hear of")
        wait_until(lambda: bool(manager.commits), "the next one")
    assert raised == []
    assert "generation 1 was not saved: the manager cannot be asked: MemoryError: no socket is left" in caplog.text
    assert manager.commits[0].generation.number == 2


def test_a_learner_that_ends_leaves_a_generation_that_waits_for_others_to_the_manager(
    folder: Path, manager: Manager, pool: Pool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(learner, "LAST_GENERATION_S", 3.0)  # time to write on a busy disk, and to ask again
    manager.again = 10**6
    with running(actor.main, process_of("actor", manager, SPEC)), caplog.at_level(logging.INFO):
        with running(learner.main, process_of("learner", manager, SPEC, volume=folder)) as raised:
            wait_until(lambda: consumed(manager) >= 80, "updates")
        asked = manager.asked
    assert raised == []
    assert asked >= 2
    assert "the last generation is the manager's to commit" in caplog.text
    assert "was not saved" not in caplog.text
    assert not [thread for thread in threading.enumerate() if thread.name == "generations" and thread.is_alive()]


def test_a_learner_whose_newest_generation_is_damaged_goes_on_from_the_one_before(
    folder: Path, manager: Manager, pool: Pool
) -> None:
    with running(actor.main, process_of("actor", manager, SPEC)):
        with running(learner.main, process_of("learner", manager, SPEC, volume=folder)):
            wait_until(lambda: consumed(manager) >= 80, "updates")
            manager.checkpoint = 1
            wait_until(lambda: bool(manager.commits), "a generation")
            seen = consumed(manager)
            wait_until(lambda: consumed(manager) > seen, "more updates")
        older, newer = manager.commits[0].generation, manager.commits[-1].generation
        assert newer.steps > older.steps
        damaged = Layout(folder).checkpoints / newer.parts["learner"]
        damaged.write_bytes(damaged.read_bytes()[:-1])
        manager.next_lineage = 2
        with running(learner.main, process_of("learner", manager, SPEC, volume=folder)):
            wait_until(lambda: pool.newest is not None and pool.newest.lineage == 2, "the new lineage")
    assert min(ref.version for ref in pool.models if ref.lineage == 2) == older.ref.version


def test_a_learner_that_has_diverged_saves_no_last_generation_over_those_to_go_on_from(
    folder: Path, manager: Manager, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = Trainer.update

    def updating(self: Trainer, batch: Batch | None) -> Updated:
        if manager.commits and self.consumed_steps > manager.commits[0].generation.steps:
            raise Diverged("the tenth update in a row without a finite gradient")
        return update(self, batch)

    monkeypatch.setattr(Trainer, "update", updating)
    with (
        running(actor.main, process_of("actor", manager, SPEC)),
        running(learner.main, process_of("learner", manager, SPEC, volume=folder)) as raised,
    ):
        wait_until(lambda: consumed(manager) >= 80, "updates")
        manager.checkpoint = 1
        wait_until(lambda: bool(raised), "its end")
    assert isinstance(raised[0], Diverged)
    assert [commit.generation.number for commit in manager.commits] == [1]


def test_a_learner_does_not_run_away_from_a_modelpool_that_is_gone(folder: Path, manager: Manager) -> None:
    spec = spec_of(algorithm={"name": "impala", "unroll_length": 5, "batch_size": 40, "max_lag_versions": 6})
    learns = process_of("learner", manager, spec, volume=folder)
    with running(learner.main, learns) as learner_raised, running(actor.main, process_of("actor", manager, spec)):
        with Pool(folder) as pool:
            wait_until(lambda: consumed(manager) >= 400, "ten updates")
        wait_until(lambda: learns.metrics.values().counters["wait_model_seconds"] > 0.5, "the learner to wait")
        reached = pool.newest
        assert reached is not None
        report = manager.newest("learner")
        assert report is not None
        assert report.model is not None
        assert report.model.version <= reached.version + 6
        with Pool(folder, boot="pool2") as pool:
            wait_until(lambda: consumed(manager) >= 40 * (reached.version + 10), "the learner to go on")
    assert learner_raised == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_learner_does_not_go_on_when_nobody_publishes_any_more(
    folder: Path, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copied(self: Trainer) -> Callable[[], bytes]:
        def pack() -> bytes:
            raise ValueError("a fault of ours")

        return pack

    monkeypatch.setattr(Trainer, "copied", copied)
    learns = process_of("learner", manager, SPEC, volume=folder)
    with Pool(folder), running(actor.main, process_of("actor", manager, SPEC)), running(learner.main, learns) as raised:
        wait_until(lambda: bool(raised), "its end")
    assert [str(error) for error in raised] == ["weights are not published any more"]


def test_a_learner_whose_weights_cannot_be_brought_to_actors_says_so_before_it_learns(
    folder: Path, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "MOST_BYTES", 10)
    learns = process_of("learner", manager, SPEC, volume=folder)
    with running(actor.main, process_of("actor", manager, SPEC)), running(learner.main, learns) as raised:
        wait_until(lambda: bool(raised), "its end")
    assert isinstance(raised[0], UserFault)
    assert "cannot be brought to actors: choose a smaller `model`" in str(raised[0])


@pytest.mark.parametrize("sync", [False, True])
def test_the_update_that_reaches_stop_steps_is_the_last_until_more_are_asked_for_though_some_rows_are_no_steps(
    folder: Path, manager: Manager, pool: Pool, sync: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, update = list[int](), Trainer.update

    def updating(self: Trainer, batch: Batch | None) -> Updated:
        begun.append(self.consumed_steps)
        return update(self, batch)

    monkeypatch.setattr(Trainer, "update", updating)
    rows = 20 if sync else 40  # lock-step: a segment of 5 rows from each of 4 environments
    spec = spec_of(sync=sync, algorithm={"name": "impala", "unroll_length": 5, "batch_size": rows})
    learns = process_of("learner", manager, spec, volume=folder)
    manager.stop_steps = 40
    with running(learner.main, learns) as raised, running(actor.main, process_of("actor", manager, spec)):
        for limit in (40, 120):
            manager.stop_steps = limit
            wait_until(lambda limit=limit: consumed(manager) >= limit, f"{limit} steps")  # type: ignore[misc]
            wait_until(lambda: learns.metrics.values().gauges.get("rests") == 1, "rest")
            reports = len(manager.reports)
            wait_until(lambda reports=reports: len(manager.reports) > reports + 20, "reports")  # type: ignore[misc]
            assert 0 < begun[-1] < limit <= consumed(manager) < limit + rows
            if limit == 40:
                assert len(begun) == limit // rows + 1, "batches of as many rows end below: some rows are no steps"
    assert raised == []
    assert manager.commits[-1].generation.steps == consumed(manager)


def test_a_learner_that_rests_publishes_its_last_weights_whatever_their_version_and_says_so(
    folder: Path, manager: Manager, pool: Pool
) -> None:
    algorithm = {"name": "impala", "unroll_length": 5, "batch_size": 40, "max_lag_versions": 100}
    spec = spec_of(algorithm={**algorithm, "publish_every_updates": 100})
    manager.stop_steps = 160
    learns = process_of("learner", manager, spec, volume=folder)
    with running(learner.main, learns) as raised, running(actor.main, process_of("actor", manager, spec)):
        wait_until(lambda: learns.metrics.values().gauges.get("rests") == 1, "160 steps")
        wait_until(lambda: pool.newest is not None and pool.newest.version > 0, "the last weights")
        reports = len(manager.reports)
        wait_until(lambda: len(manager.reports) > reports + 20, "reports")
        report = manager.newest("learner")
        assert report is not None
        assert report.model is not None
        assert report.model == pool.newest
        assert {put.ref.version for put in pool.puts} == {0, report.model.version}, "the first weights and the last"
    assert raised == []


def test_an_evaluator_leaves_off_when_the_manager_wants_something_else_of_it(
    folder: Path, manager: Manager, pool: Pool
) -> None:
    spec = spec_of(env={"id": "tests.envs.tiny:Clock", "kwargs": {"length": 10**9}})
    measures = process_of("evaluator", manager, spec)

    def steps() -> float:
        return measures.metrics.values().counters.get("agent_steps", 0.0)

    learns = process_of("learner", manager, spec, volume=folder)
    with running(evaluator.main, measures) as raised, running(learner.main, learns):
        wait_until(lambda: pool.newest is not None, "the first weights")
        assert pool.newest is not None
        manager.matches["evaluator"] = Match(2, {0: pool.newest}, (), 11, quota=Quota(10, "greedy"))
        wait_until(lambda: steps() > 0, "games without end")
        assert measures.metrics.values().gauges["plays"] == 2
        assert measures.metrics.values().gauges["envs"] == 10
        assert measures.pulse.silent_s == SIMULATOR_S + 9 * RESET_S, "its environments are reset one after the other"
        manager.matches["evaluator"] = None
        for wanted in ("to be told", "to leave off"):
            reports, before = len(manager.reports), steps()
            wait_until(lambda reports=reports: len(manager.reports) > reports + 20, wanted)  # type: ignore[misc]
        assert steps() == before
        assert measures.metrics.values().gauges["plays"] == 0
    assert raised == []
    assert manager.results == []


def test_an_evaluator_brings_a_model_that_shall_be_kept_also_to_a_modelpool_that_knows_it_no_more(
    folder: Path, manager: Manager
) -> None:
    serves, learns = (process_of(role, manager, SPEC, volume=folder) for role in ("modelpool", "learner"))
    measures = process_of("evaluator", manager, SPEC)
    with running(evaluator.main, measures) as raised:
        with running(modelpool.main, serves) as served, running(learner.main, learns) as learned:
            wait_until(lambda: serves.pulse.ready, "the first weights")
            first = ModelRef("main", 1, 0)
            manager.matches["evaluator"] = Match(2, {0: first}, (), 11, quota=Quota(6, "greedy"))
            wait_until(lambda: bool(manager.results), "an evaluation that keeps nothing")
            assert (manager.results[0].kept, manager.results[0].fault) == ("", "")
        manager.matches["evaluator"] = Match(3, {0: first}, (), 12, quota=Quota(6, "greedy", keep_above=-1e9))
        wait_until(lambda: measures.metrics.values().gauges["plays"] == 3, "the evaluator plays what it has")
        again = process_of("modelpool", manager, SPEC, name="modelpool-again", volume=folder)
        with running(modelpool.main, again) as served_again:
            wait_until(lambda: len(manager.results) == 2, "a modelpool that keeps the model")
        manager.matches["evaluator"] = None
    assert (raised, served, learned, served_again) == ([], [], [], [])
    described, _ = load_kept(Layout(folder).models / manager.results[1].kept)
    assert (described.ref, described.steps, described.algorithm["batch_size"]) == (first, 0, 40)
