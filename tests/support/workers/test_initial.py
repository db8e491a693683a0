"""A learner that begins from another run's policy, and goes on from its own generations."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load

from rlctl.spec.layout import Layout
from rlctl_agents.acting.bootstrap import make_algorithm, make_env
from rlctl_agents.models.weights import pack
from rlctl_agents.roles import actor, learner
from rlctl_agents.runtime.process import UserFault
from rlctl_agents.types.experience import ModelRef
from tests.policies.test_initial import stored
from tests.support.fakes import Manager, Pool, process_of, running, wait_until
from tests.support.workers.small import SPEC, consumed, spec_of

FROM = spec_of(init={"run": "other@best"})


def test_a_learner_waits_for_the_policy_begins_with_its_weights_and_later_goes_on_from_its_own(
    folder: Path, manager: Manager, pool: Pool
) -> None:
    env = make_env(SPEC, 1)
    other = make_algorithm(spec_of(seed=9), "main", env.spaces)
    env.close()
    with running(actor.main, process_of("actor", manager, FROM)) as raised:
        with running(learner.main, process_of("learner", manager, FROM, volume=folder)):
            wait_until(lambda: manager.newest("learner") is not None, "the learner to be there")
            assert not pool.puts, "it waits"
            stored(Layout(folder).init, other, {"hidden": [8]}, env.spaces)
            wait_until(lambda: consumed(manager) >= 80, "updates")
        first = load(pool.models[ModelRef("main", 1, 0)][1])
        assert first.keys() == other.net.state_dict().keys()
        assert all(torch.equal(value, first[name]) for name, value in other.net.state_dict().items())
        assert pool.models[ModelRef("main", 1, 0)][1] == pack(other.net.state_dict(), 0), (
            "learned from no steps of its own"
        )
        saved, manager.next_lineage = manager.commits[-1].generation, 2
        with running(learner.main, process_of("learner", manager, FROM, volume=folder)):
            wait_until(lambda: pool.newest is not None and pool.newest.lineage == 2, "the new lineage")
    assert raised == []
    assert min(ref.version for ref in pool.models if ref.lineage == 2) == saved.ref.version > 0


def test_a_learner_ends_with_the_users_fault_when_the_policy_does_not_fit(
    folder: Path, manager: Manager, pool: Pool
) -> None:
    env = make_env(SPEC, 1)
    stored(
        Layout(folder).init,
        make_algorithm(spec_of(model={"hidden": [9]}), "main", env.spaces),
        {"hidden": [9]},
        env.spaces,
    )
    env.close()
    with running(actor.main, process_of("actor", manager, FROM)):
        process = process_of("learner", manager, FROM, volume=folder)
        with running(learner.main, process) as raised:
            wait_until(lambda: bool(raised), "the fault")
    assert isinstance(raised[0], UserFault)
    assert "in other@best, and float32 [8" in str(raised[0])


def test_a_learner_that_waits_for_the_policy_ends_when_asked_to(folder: Path, manager: Manager, pool: Pool) -> None:
    learns, acts = process_of("learner", manager, FROM, volume=folder), process_of("actor", manager, FROM)
    with running(actor.main, acts), running(learner.main, learns) as raised:
        wait_until(lambda: manager.newest("learner") is not None, "the learner to be there")
    assert raised == []
