"""Faults in what a user named or wrote: the end of a role, and what it leaves behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlctl_agents.envs.base import EnvError
from rlctl_agents.roles import actor, evaluator, learner
from rlctl_agents.runtime.process import UserFault
from tests.support.fakes import Manager, Pool, process_of, running
from tests.support.workers.small import spec_of


@pytest.mark.parametrize("role", [actor, evaluator])
def test_every_environment_is_closed_though_there_is_no_lease(role: Any, folder: Path, manager: Manager) -> None:
    Door.opened = Door.closed = 0
    spec = spec_of(env={"id": f"{__name__}:Door"})
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


def test_an_actor_whose_blocks_are_too_large_to_be_sent_says_so_before_it_acts(folder: Path, manager: Manager) -> None:
    algorithm = {"name": "impala", "unroll_length": 2000, "batch_size": 8000}
    spec = spec_of(env={"id": f"{__name__}:Wide"}, algorithm=algorithm, roles={"actor": {"envs": 16}})
    said = "segments of 16 slots at once are too large to be sent, at most 8 fit: lower roles.actor.envs or algorithm"
    with pytest.raises(UserFault, match=said):
        actor.main(process_of("actor", manager, spec))


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
    spec = spec_of(env={"id": f"{__name__}:Broken"})
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


class Wide:
    """Sees 4096 numbers: 2001 rows of 8 environments are 250 MiB."""

    def __new__(cls) -> Any:
        import gymnasium
        import numpy as np

        class Inner(gymnasium.Env[Any, Any]):
            observation_space = gymnasium.spaces.Box(0.0, 1.0, (4096,), np.float32)
            action_space = gymnasium.spaces.Discrete(2)

        return Inner()
