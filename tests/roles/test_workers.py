"""Actor, learner and evaluator as they run, in threads, with a small manager and modelpool over the real wire."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rlctl.spec.layout import Layout
from rlctl.spec.schema import Spec
from rlctl_agents.algorithms.impala import Impala
from rlctl_agents.envs.base import Env, EnvError
from rlctl_agents.models.weights import digest, pack
from rlctl_agents.roles import actor, evaluator, learner
from rlctl_agents.roles.member import Member, Snapshot
from rlctl_agents.roles.probe import experience_of
from rlctl_agents.roles.process import Process, UserFault
from rlctl_agents.roles.worker import make_algorithm, make_env, seed_torch, work
from rlctl_agents.types.control import Match, Quota
from rlctl_agents.types.experience import ModelRef
from rlctl_agents.types.spaces import Space
from rlctl_agents.wire.sockets import Wire
from tests.roles.chain import private_folder
from tests.roles.fakes import Manager, Pool, process_of, running, wait_until

NEWEST = ModelRef("main", -1, -1)


def spec_of(**changes: Any) -> Spec:
    return Spec.model_validate(
        {
            "run": "test",
            "env": {"id": "tests.envs.tiny:Mixed"},
            "algorithm": {"name": "impala", "segment_steps": 5, "batch_rows": 40, "max_lag_versions": 100},
            "model": {"hidden": [8]},
            "roles": {"actor": {"envs": 4}},
            **changes,
        }
    )


SPEC = spec_of()


@pytest.fixture
def folder() -> Iterator[Path]:
    with private_folder() as folder:
        Layout(folder).make()
        yield folder


@pytest.fixture
def manager(folder: Path) -> Iterator[Manager]:
    with Manager(folder) as manager:
        manager.matches["actor"] = Match(1, {0: NEWEST}, (0,), 7)
        yield manager


@pytest.fixture
def pool(folder: Path) -> Iterator[Pool]:
    with Pool(folder) as pool:
        yield pool


def consumed(manager: Manager) -> float:
    report = manager.newest("learner")
    return report.counters.get("consumed_rows", 0.0) if report is not None else 0.0


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
    assert account.consumed > last["learner"].counters["consumed_rows"] > 400, "a row after an end is no agent step"
    assert last["learner"].counters["updates"] * 40 == account.consumed
    assert last["learner"].histograms["lag_versions"].total >= 0
    assert {"loss.entropy", "grad_norm", "lr", "queue_rows"} <= last["learner"].gauges.keys()
    wanted = {"env_steps", "agent_steps", "frames", "episodes", "env_seconds", "inference_seconds"}
    assert wanted | {"wait_credit_seconds", "wait_model_seconds", "cpu_seconds"} <= last["actor"].counters.keys()

    ordered, final = (commit.generation for commit in manager.commits)
    assert (ordered.number, final.number) == (4, 5), "an orderly stop saves once more"
    assert final.rows == last["learner"].counters["consumed_rows"]
    part = Layout(folder).checkpoints / final.parts["learner"]
    assert hashlib.sha256(part.read_bytes()).hexdigest() == final.sha256["learner"]


def test_a_second_learner_goes_on_from_the_newest_generation_and_fences_what_was_made_before(
    folder: Path, manager: Manager, pool: Pool
) -> None:
    acts = process_of("actor", manager, SPEC)
    with running(actor.main, acts) as raised:
        with running(learner.main, process_of("learner", manager, SPEC, volume=folder)):
            wait_until(lambda: consumed(manager) >= 400, "ten updates")
        rows, version = manager.commits[-1].generation.rows, manager.commits[-1].generation.ref.version
        assert rows >= 400
        manager.next_lineage = 2
        second = process_of("learner", manager, SPEC, volume=folder)
        with running(learner.main, second):
            wait_until(lambda: pool.newest is not None and pool.newest.lineage == 2, "the new lineage")
            wait_until(lambda: consumed(manager) >= 200, "updates of the second learner")
    assert raised == []
    assert min(ref.version for ref in pool.models if ref.lineage == 2) == version
    assert manager.commits[-1].generation.rows == rows + consumed(manager)


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
        assert newer.rows > older.rows
        damaged = Layout(folder).checkpoints / newer.parts["learner"]
        damaged.write_bytes(damaged.read_bytes()[:-1])
        manager.next_lineage = 2
        with running(learner.main, process_of("learner", manager, SPEC, volume=folder)):
            wait_until(lambda: pool.newest is not None and pool.newest.lineage == 2, "the new lineage")
    assert min(ref.version for ref in pool.models if ref.lineage == 2) == older.ref.version


def test_a_learner_does_not_run_away_from_a_modelpool_that_is_gone(folder: Path, manager: Manager) -> None:
    spec = spec_of(algorithm={"name": "impala", "segment_steps": 5, "batch_rows": 40, "max_lag_versions": 6})
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


def test_a_learner_stops_at_the_first_update_that_reaches_stop_rows_and_goes_on_when_it_is_raised(
    folder: Path, manager: Manager, pool: Pool
) -> None:
    learns = process_of("learner", manager, SPEC, volume=folder)
    manager.stop_rows = 200
    with running(learner.main, learns) as raised, running(actor.main, process_of("actor", manager, SPEC)):
        for limit in (200, 400):
            manager.stop_rows = limit
            wait_until(lambda limit=limit: consumed(manager) >= limit, f"{limit} rows")  # type: ignore[misc]
            wait_until(lambda: learns.metrics.values().gauges["queue_rows"] >= 80, "more than it may learn from")
            reports = len(manager.reports)
            wait_until(lambda reports=reports: len(manager.reports) > reports + 20, "reports")  # type: ignore[misc]
            assert limit <= consumed(manager) < limit + 40, "a batch has 40 rows at most"
    assert raised == []
    assert manager.commits[-1].generation.rows == consumed(manager)


def test_a_learner_that_rests_publishes_its_last_weights_whatever_their_version_and_says_so(
    folder: Path, manager: Manager, pool: Pool
) -> None:
    algorithm = {"name": "impala", "segment_steps": 5, "batch_rows": 40, "max_lag_versions": 100}
    spec = spec_of(algorithm={**algorithm, "publish_every_updates": 100})
    manager.stop_rows = 160
    learns = process_of("learner", manager, spec, volume=folder)
    with running(learner.main, learns) as raised, running(actor.main, process_of("actor", manager, spec)):
        wait_until(lambda: learns.metrics.values().gauges.get("rests") == 1, "160 rows")
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
        manager.matches["evaluator"] = None
        for wanted in ("to be told", "to leave off"):
            reports, before = len(manager.reports), steps()
            wait_until(lambda reports=reports: len(manager.reports) > reports + 20, wanted)  # type: ignore[misc]
        assert steps() == before
    assert raised == []
    assert manager.results == []


@pytest.mark.parametrize("role", [actor, evaluator])
def test_every_environment_is_closed_though_there_is_no_lease(role: Any, folder: Path, manager: Manager) -> None:
    Door.opened = Door.closed = 0
    spec = spec_of(env={"id": "tests.roles.test_workers:Door"})
    process = process_of(role.__name__.rpartition(".")[2], manager, spec)
    process.stop.set()
    role.main(process)
    assert Door.closed == Door.opened > 0


@pytest.mark.parametrize(
    ("role", "changes", "said"),
    [
        (actor, {"env": {"id": "NoSuchEnv-v0"}}, "NoSuchEnv"),
        (actor, {"env": {"id": "no_such_module:Env"}}, "no_such_module"),
        (evaluator, {"env": {"id": "NoSuchEnv-v0"}}, "NoSuchEnv"),
        (actor, {"algorithm": {"name": "no_such_module:Algorithm"}}, "no_such_module"),
    ],
)
def test_what_only_the_user_can_mend_ends_a_role_with_one_sentence(
    role: Any, changes: dict[str, Any], said: str, folder: Path, manager: Manager
) -> None:
    name = role.__name__.rpartition(".")[2]
    with pytest.raises(UserFault, match=said):
        role.main(process_of(name, manager, spec_of(**changes)))


def test_a_learner_that_is_to_have_a_gpu_where_there_is_none_says_so(folder: Path, manager: Manager) -> None:
    import torch

    if torch.cuda.is_available():
        return
    spec = spec_of(roles={"learner": {"gpu": 1}, "actor": {"envs": 4}})
    with pytest.raises(UserFault, match=r"roles.learner.gpu is 1, but there is no GPU"):
        learner.main(process_of("learner", manager, spec, volume=folder))


def test_an_environment_that_breaks_while_it_runs_ends_the_actor_with_where_it_happened(
    folder: Path, manager: Manager, pool: Pool
) -> None:
    spec = spec_of(env={"id": "tests.roles.test_workers:Broken"})
    acts = process_of("actor", manager, spec)
    with (
        running(learner.main, process_of("learner", manager, spec, volume=folder)),
        pytest.raises(EnvError, match=r"NaN.*seed \d+, step 7"),
    ):
        actor.main(acts)


class Broken:
    """Gives NaN as its seventh reward."""

    def __new__(cls) -> Any:
        import gymnasium
        import numpy as np

        class Inner(gymnasium.Env[Any, Any]):
            observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
            action_space = gymnasium.spaces.Discrete(2)
            steps = 0

            def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
                super().reset(seed=seed)
                return np.zeros(1, np.float32), {}

            def step(self, action: Any) -> Any:
                self.steps += 1
                return np.zeros(1, np.float32), float("nan") if self.steps == 7 else 0.0, False, False, {}

        return Inner()


class Door:
    """Counts how many were opened, and how many closed."""

    opened = 0
    closed = 0

    def __new__(cls) -> Any:
        import gymnasium
        import numpy as np

        class Inner(gymnasium.Env[Any, Any]):
            observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
            action_space = gymnasium.spaces.Discrete(2)

            def close(self) -> None:
                Door.closed += 1

        Door.opened += 1
        return Inner()


class Training(Impala):
    """Of a user who thinks of the training mode."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.net.train()


class Drawing(nn.Module):
    """A torso that draws from torch's own generator."""

    def __init__(self, space: Space) -> None:
        super().__init__()
        self.features = 8

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        return torch.randn(len(next(iter(obs.values()))), 8)


def test_an_algorithm_of_the_users_own_acts_and_learns_in_eval_mode_too() -> None:
    spec = spec_of(algorithm={"name": f"{__name__}:Training", "segment_steps": 5, "batch_rows": 40})
    env = make_env(spec, 1)
    net = make_algorithm(spec, "main", env.spaces).net
    env.close()
    assert not any(module.training for module in net.modules())


def test_a_learner_begins_with_torchs_generator_as_the_seed_says_whatever_was_drawn_before(
    folder: Path, manager: Manager, pool: Pool
) -> None:
    env = make_env(SPEC, 1)
    manager.experience = experience_of(SPEC, env, "main")
    env.close()
    states: list[Tensor] = []
    for spec in (SPEC, SPEC, spec_of(seed=5)):
        torch.rand(len(states) + 1)
        wire, process = Wire(), process_of("learner", manager, spec, volume=folder)
        member = Member(process, wire)
        lease = learner.join(process, member)
        assert lease is not None
        cpu, parts = torch.device("cpu"), Layout(folder).checkpoints
        made = learner.Learner(process, wire, member, lease, parts, cpu)
        states.append(torch.get_rng_state())
        made.close()
        member.close()
        wire.close()
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])


def test_an_actor_begins_with_torchs_generator_as_seed_role_and_index_say(folder: Path, manager: Manager) -> None:
    drawn = []

    class Drawer:
        def __init__(self, process: Process, wire: Wire, member: Member, env: Env) -> None:
            self.env = env
            drawn.append(torch.rand(3).tolist())

        def snapshot(self) -> Snapshot:
            return Snapshot()

        def run(self) -> None: ...
        def close(self) -> None: ...

    for index in (0, 0, 1):
        torch.rand(len(drawn) + 1)
        manager.index = index
        work(process_of("actor", manager, SPEC), 1, Drawer)
    assert drawn[0] == drawn[1] != drawn[2]
    seed_torch(SPEC.seed, "evaluator", 0)
    assert torch.rand(3).tolist() != drawn[0]


def test_a_model_whose_network_draws_numbers_is_measured_alike_twice(
    folder: Path, manager: Manager, pool: Pool
) -> None:
    spec = spec_of(env={"id": "tests.envs.tiny:Reach"}, model={"torso": f"{__name__}:Drawing"}, evaluation={"envs": 2})
    env, ref = make_env(spec, 1), ModelRef("main", 1, 0)
    data = pack(make_algorithm(spec, "main", env.spaces).net.state_dict())
    env.close()
    pool.models[ref], pool.newest = (digest(data), data), ref
    with running(evaluator.main, process_of("evaluator", manager, spec)) as raised:
        for number in (2, 3):
            manager.matches["evaluator"] = Match(number, {0: ref}, (), 11, quota=Quota(8, "greedy"))
            wait_until(lambda number=number: len(manager.results) == number - 1, "the evaluation")  # type: ignore[misc]
        manager.matches["evaluator"] = None
    assert raised == []
    one, two = manager.results
    assert one.returns == two.returns
    assert len(np.unique(one.returns)) > 1
