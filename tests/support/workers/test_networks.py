"""Networks in a role: eval mode, and what they draw from torch's generator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rlctl.spec.layout import Layout
from rlctl_agents import algorithms
from rlctl_agents.acting.bootstrap import make_algorithm, make_env, seed_torch, work
from rlctl_agents.algorithms.impala import Impala
from rlctl_agents.envs.base import Env
from rlctl_agents.models.weights import digest, pack
from rlctl_agents.roles import evaluator, learner
from rlctl_agents.runtime.manager_session import ManagerSession, Snapshot
from rlctl_agents.runtime.process import Process
from rlctl_agents.types.control import Experience, Match, Quota
from rlctl_agents.types.experience import ModelRef
from rlctl_agents.types.spaces import Space
from rlctl_agents.wire.sockets import Wire
from tests.support.fakes import Manager, Pool, process_of, running, wait_until
from tests.support.workers.small import SPEC, spec_of


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
    spec = spec_of(algorithm={"name": f"{__name__}:Training", "unroll_length": 5, "batch_size": 40})
    env = make_env(spec, 1)
    net = make_algorithm(spec, "main", env.spaces).net
    env.close()
    assert not any(module.training for module in net.modules())


def test_a_learner_begins_with_torchs_generator_as_the_seed_says_whatever_was_drawn_before(
    folder: Path, manager: Manager, pool: Pool
) -> None:
    env = make_env(SPEC, 1)
    manager.experience = Experience(env.spaces, algorithms.schema_of(SPEC, env.spaces, "main"), env.frame_skip)
    env.close()
    states: list[Tensor] = []
    for spec in (SPEC, SPEC, spec_of(seed=5)):
        torch.rand(len(states) + 1)
        wire, process = Wire(), process_of("learner", manager, spec, volume=folder)
        member = ManagerSession(process, wire)
        lease = learner.join(process, member)
        assert lease is not None
        made = learner.Learner(process, wire, member, lease, Layout(folder), torch.device("cpu"))
        states.append(torch.get_rng_state())
        made.close()
        member.close()
        wire.close()
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])


def test_an_actor_begins_with_torchs_generator_as_seed_role_and_index_say(folder: Path, manager: Manager) -> None:
    drawn = []

    class Drawer:
        def __init__(self, process: Process, wire: Wire, member: ManagerSession, env: Env) -> None:
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
