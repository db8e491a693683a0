"""All roles in one thread: the order of lock-step, seats and sources of every kind, and what is refused."""

from __future__ import annotations

import contextlib
import threading
from typing import Any, cast

import numpy as np
import pytest
import torch

from rlctl.spec.schema import Spec
from rlctl_agents.acting.bootstrap import make_algorithm
from rlctl_agents.acting.rollout import LockStepBroken
from rlctl_agents.algorithms.impala import Impala
from rlctl_agents.algorithms.ppo import Ppo
from rlctl_agents.debugging.session import DebugSession, OwnTorch, arranged, evaluation_seed
from rlctl_agents.experience.on_policy import OnPolicySource, on_policy
from rlctl_agents.experience.sources import Needs
from rlctl_agents.runtime.process import UserFault
from rlctl_agents.training.trainer import Trainer, Updated
from rlctl_agents.types.experience import ModelRef
from tests.training.test_sync import SPEC, run_processes

DQN = "tests.training.outside.double_dqn:DoubleDqn"


def spec_of(tiny: str = "Mixed", **changes: Any) -> Spec:
    return Spec.model_validate(
        {
            "run": "test",
            "env": {"id": f"tests.envs.tiny:{tiny}"},
            "algorithm": {"name": "impala", "unroll_length": 5, "batch_size": 40},
            "model": {"hidden": [8]},
            "roles": {"actor": {"envs": 4, "replicas": 2}},
            **changes,
        }
    )


def ppo(**changes: Any) -> dict[str, Any]:
    return {"name": "ppo", "unroll_length": 5, "batch_size": 40, "minibatch_size": 20, "epochs": 2, **changes}


def versions(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Of the weights behind the rows of every batch that is learned from after this."""
    seen: list[list[int]] = []
    update = Trainer.update

    def updating(self: Trainer, batch: Any) -> Updated:
        seen.append(np.unique(batch.version.numpy()).tolist())
        return update(self, batch)

    monkeypatch.setattr(Trainer, "update", updating)
    return seen


@pytest.mark.parametrize(
    ("env", "algorithm", "expected"),
    [
        ("Mixed", {"name": "impala", "unroll_length": 5, "batch_size": 40}, [[0], [0], [1], [2]]),
        ("Duel", {"name": "impala", "unroll_length": 5, "batch_size": 80}, [[0], [0], [1], [2]]),
        ("Mixed", ppo(), [[0], [1], [2], [3]]),
    ],
)
def test_update_k_is_learned_from_segments_of_the_version_that_lock_step_says(
    env: str, algorithm: dict[str, Any], expected: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = versions(monkeypatch)
    followed = arranged(spec_of(env, algorithm=algorithm))
    session = DebugSession(followed)
    for number in range(4):
        session.update()
        assert session.updates == session.trainer.version == number + 1
    session.close()
    assert followed.notes == []
    assert seen == expected
    assert [actor.sender.blocks for actor in session.actors] == [4, 4]


@pytest.mark.processes
@pytest.mark.parametrize("core", ["none", "gru"])
def test_ppo_has_the_weights_of_processes_in_lock_step_bit_for_bit(core: str) -> None:
    algorithm = {"name": "ppo", "unroll_length": 5, "batch_size": 40, "minibatch_size": 10, "epochs": 2}
    values = {**SPEC, "algorithm": algorithm, "model": {"hidden": [16], "core": core, "width": 8}}
    processes = run_processes(0, values, 8)
    followed = arranged(Spec.model_validate(values))
    session = DebugSession(followed)
    found = [session.weights.newest.sha256]
    while len(found) < 8:
        session.update()
        found.append(session.weights.newest.sha256)
    session.close()
    assert found == processes
    assert len(set(found)) == 8
    assert followed.notes == []


def test_seats_that_act_in_turn_cannot_be_in_lock_step_and_are_debugged_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    followed = arranged(spec_of("Turns", algorithm={"name": "impala", "unroll_length": 5, "batch_size": 80}))
    session = DebugSession(followed)
    with pytest.raises(LockStepBroken):
        session.update()
    session.close()
    seen = versions(monkeypatch)
    followed = arranged(spec_of("Turns"), in_turn=True)
    session = DebugSession(followed)
    for _ in range(6):
        assert session.update().finite
    session.close()
    assert followed.notes == [
        "not in lock-step: seats of the environment act in turn; each actor in turn makes segments with the newest "
        "weights"
    ]
    assert max(max(batch) for batch in seen) > 0


def test_an_algorithm_with_a_replay_of_its_own_learns_by_the_receivers_interface_alone() -> None:
    algorithm = {"name": DQN, "unroll_length": 20, "batch_size": 100, "params": {"reuse": 4.0}}
    followed = arranged(cartpole(algorithm))
    session = DebugSession(followed)
    for _ in range(5):
        session.update()
    steps = sum(actor.metrics.values().counters["agent_steps"] for actor in session.actors)
    session.close()
    assert followed.notes[0].startswith("not in lock-step: batches come from tests.training.outside.double_dqn:Ring")
    assert steps > 1_000, "what the ring wants before the first batch"
    assert session.episodes()[0] > 0


@pytest.mark.parametrize(
    ("name", "env"),
    [("dqn", "CartPole-v1"), ("apex_dqn", "CartPole-v1"), ("sac", "Pendulum-v1"), ("td3", "Pendulum-v1")],
)
def test_what_learns_from_a_replay_is_followed_in_this_thread_and_repeats(name: str, env: str) -> None:
    spec = spec_of(
        env={"id": env}, algorithm={"name": name, "batch_size": 64, "minibatch_size": 32},
        replay={"capacity": 1000, "learning_starts": 300, "samples_per_insert": 4},
    )  # fmt: skip
    followed, losses, threads = arranged(spec), [], threading.active_count()
    assert followed.notes[0].startswith("not in lock-step: batches come from a replay; each actor in turn")
    for _ in range(2):
        session = DebugSession(followed)
        losses.append([session.update().stats["grad_norm"] for _ in range(30)])
        steps = sum(actor.metrics.values().counters["agent_steps"] for actor in session.actors)
        assert session.trainer.consumed_steps <= steps
        assert 4 * (steps - 300) >= 29 * 64, "samples per insert hold"
        session.close()
    assert losses[0] == losses[1]
    assert threading.active_count() <= threads, "one of a test before may have ended meanwhile"


def test_a_replay_that_does_not_fit_into_memory_is_refused_with_a_capacity_that_would() -> None:
    rows = {"capacity": 10**13}
    spec = spec_of(env={"id": "CartPole-v1"}, algorithm={"name": "dqn"}, replay=rows)
    with contextlib.closing(DebugSession(arranged(spec))):
        pass  # no session fills it
    rows["learning_starts"] = 10**12
    spec = spec_of(env={"id": "CartPole-v1"}, algorithm={"name": "dqn"}, replay=rows)
    with pytest.raises(UserFault, match=r"replay\.capacity: 2,000,000,000,000 rows in 1 shard of .*would fit"):
        DebugSession(arranged(spec))


@pytest.mark.parametrize(
    ("env", "algorithm"),
    [
        ("Mixed", {"name": "impala", "unroll_length": 5, "batch_size": 40}),
        ("Turns", {"name": "impala", "unroll_length": 5, "batch_size": 40}),
        ("Clock", {"name": "dqn", "batch_size": 64, "minibatch_size": 32}),
    ],
)
def test_it_computes_in_fp32_whatever_the_spec_says_and_tells_so(env: str, algorithm: dict[str, Any]) -> None:
    spec = spec_of(env, algorithm=algorithm, model={"hidden": [8], "precision": "bf16"})
    for one in (spec, spec.model_copy(update={"policies": {"main": spec.policy()}, "algorithm": None, "model": None})):
        followed = arranged(one, in_turn=env == "Turns")
        assert "model.precision: the network computes in fp32, so its numbers are others" in followed.notes
        made = make_algorithm(followed.spec, "main", followed.spaces)
        assert cast(Any, made.net)._bf16 is None


def cartpole(algorithm: dict[str, Any]) -> Spec:
    return spec_of(env={"id": "CartPole-v1"}, algorithm=algorithm)


class Elsewhere(Impala):
    source = f"{__name__}:threaded"


def threaded(needs: Needs) -> OnPolicySource:
    source = on_policy(needs)

    class Other:
        """Receives in a thread, as the on-policy source does in a learner."""

        def start(self) -> None:
            thread = threading.Thread(target=self.receive)
            thread.start()
            thread.join()

        def receive(self) -> None:
            with pytest.raises(UserFault, match="receives in another"):
                needs.receiver.poll(0.0)

        def take(self, timeout_s: float) -> None:
            return None

        give_back, update_priorities, close = source.give_back, source.update_priorities, source.close

    return Other()  # type: ignore[return-value]


def test_a_source_that_receives_in_a_thread_of_its_own_is_refused_by_name() -> None:
    algorithm = {"name": f"{__name__}:Elsewhere", "unroll_length": 5, "batch_size": 40}
    session = DebugSession(arranged(spec_of(algorithm=algorithm)))
    with pytest.raises(UserFault, match=f"{__name__}:threaded, receives in a thread of its own"):
        session.update()
    session.close()


@pytest.mark.parametrize(
    ("changes", "kept", "said"),
    [
        ({}, (2, 4), ""),
        ({"roles": {"actor": {"envs": 32, "replicas": 4}}}, (4, 2), "4 x 2 environments instead of 4 x 32"),
        ({"roles": {"actor": {"envs": 1, "replicas": 3}}}, (1, 8), "1 x 8 environments instead of 3 x 1"),
        ({"env": {"id": "tests.envs.tiny:Duel"}}, (2, 2), "2 x 2 environments instead of 2 x 4"),
        ({"roles": {"actor": {"envs": 8}, "learner": {"replicas": 1, "gpu": 1}}}, (1, 8), "computes on the CPU"),
        ({"roles": {"actor": {"envs": 4, "replicas": 2}, "learner": {"replicas": 2}}}, (2, 4), "instead of 2"),
    ],
)
def test_environments_are_as_many_as_lock_step_wants_and_every_change_is_told(
    changes: dict[str, Any], kept: tuple[int, int], said: str
) -> None:
    spec, _, notes = arranged(spec_of(**changes))
    assert (spec.roles.actor.replicas, spec.roles.actor.envs) == kept
    assert spec.sync
    assert (spec.roles.learner.replicas, spec.roles.learner.gpu) == (1, 0)
    assert len(notes) == (said != "")
    assert said in "".join(notes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"roles": {"actor": {"replicas": 0}}}, "roles.actor.replicas is 0"),
        ({"sync": True, "roles": {"actor": {"envs": 3}}}, "algorithm.batch_size is 40: algorithm.batch_size must be"),
        (
            {"env": {"id": "tests.envs.tiny:Duel"}, "algorithm": {"unroll_length": 5, "batch_size": 35}},
            "or a multiple of seats",
        ),
        ({"env": {"id": "Nix-v7"}}, "Gymnasium has no Nix-v7"),
        ({"algorithm": {"name": "tests.nix:Algorithm"}}, "tests.nix"),
    ],
)
def test_what_cannot_be_debugged_is_told_in_a_sentence(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserFault, match=said):
        DebugSession(arranged(spec_of(**changes)))


def test_values_that_no_learner_takes_are_an_error_where_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    session = DebugSession(arranged(spec_of()))
    act = session.actors[0].policy.algorithm.act

    def wrong(inputs: Any) -> Any:
        made = act(inputs)
        return made._replace(record={name: one + torch.nan for name, one in made.record.items()})

    monkeypatch.setattr(session.actors[0].policy.algorithm, "act", wrong)
    with pytest.raises(ValueError, match="segments that no learner takes: log_prob holds nan"):
        session.update()
    session.close()


def test_an_evaluation_changes_nothing_of_what_is_learned_after_it() -> None:
    def trained(evaluates: bool) -> str:
        session = DebugSession(arranged(spec_of(algorithm=ppo())))
        for _ in range(3):
            session.update()
            if evaluates:
                assert len(session.evaluate(2).returns) == 2
        session.close()
        return session.weights.newest.sha256

    assert trained(True) == trained(False)


def test_evaluations_have_other_seeds_than_the_actors_and_each_other() -> None:
    seeds = [evaluation_seed(7, ModelRef("main", 1, version)) for version in (1, 2)]
    assert len({7, *seeds}) == 3
    assert evaluation_seed(7, ModelRef("main", 1, 1)) == seeds[0]


def test_roles_do_not_share_torchs_random_numbers() -> None:
    one, other = OwnTorch(1.0), OwnTorch(2.0)
    before = torch.get_rng_state()
    with one():
        torch.manual_seed(1)
        first = torch.rand(())
        with other():
            torch.manual_seed(2)
            assert torch.get_num_threads() == 2
        second = torch.rand(())
    with other():
        torch.rand(())
    with one():
        third = torch.rand(())
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert [first, second, third] == [torch.rand(()) for _ in range(3)]
    torch.set_rng_state(before)


def test_blocks_are_settled_once() -> None:
    session = DebugSession(arranged(spec_of()))
    session.actors[0].act(1)
    (block,) = session.receiver.poll(0.0)
    session.receiver.settle(block, "consumed", 5)
    session.receiver.settle(block, "stale")
    with pytest.raises(ValueError, match="1 rows of a block of which 0 are not settled"):
        session.receiver.settle(block, "consumed", 1)
    with pytest.raises(ValueError, match="read-only"):
        block.fields["reward"][:] = 0
    session.close()


class Mine(Ppo):
    """PPO of one's own, as it is."""


def test_a_class_derived_from_ppo_learns_from_the_policy_that_acted_as_ppo_does() -> None:
    losses = []
    params = {"minibatch_size": 32, "epochs": 2}
    own = {"name": "tests.debugging.test_session:Mine", "max_lag_versions": 0, "params": params}
    for algorithm in ({"name": "ppo", **params}, own):
        spec = spec_of(env={"id": "CartPole-v1"}, algorithm={**algorithm, "unroll_length": 8, "batch_size": 64})
        session = DebugSession(arranged(spec))
        losses.append([session.update().stats["grad_norm"] for _ in range(4)])
        session.close()
    assert losses[0] == losses[1]
