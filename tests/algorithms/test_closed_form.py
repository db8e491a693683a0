"""The loss of PPO and APPO on mlps in closed form: where it is taken, and that its gradient is that of autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rlctl.spec import algorithms as specs
from rlctl.spec.schema import Gaussian, Network
from rlctl_agents.algorithms.appo import Appo
from rlctl_agents.algorithms.base import Batch, Loss, below
from rlctl_agents.algorithms.clipped import Adam, ClippedAlgorithm
from rlctl_agents.algorithms.ppo import Ppo
from rlctl_agents.models.distributions import ActionDistribution
from rlctl_agents.models.policy import ActorCritic
from rlctl_agents.models.torso import Mlp, Torso
from rlctl_agents.training.trainer import Trainer
from rlctl_agents.types.spaces import Box, Dict, Discrete, MultiDiscrete, Space, Spaces
from tests.algorithms.test_impala import VECTOR
from tests.algorithms.world import Actor, Anything

REAL = Box((2, 2), "float32", (-1.0, -2.0, -3.0, 0.0), (1.0, 2.0, 5.0, 8.0))
SEVERAL = Dict({"code": Discrete(5), "numbers": Box((3,), "float32")})


def made(obs: Space, action: Space, network: dict[str, Any], **settings: Any) -> Ppo:
    config = specs.Ppo.model_validate({"unroll_length": 5, "batch_size": 60, "minibatch_size": 20, **settings})
    return Ppo(config, Network.model_validate({"hidden": [16, 12], **network}), Spaces(obs, action), seed=3)


def minibatch(algorithm: Ppo, obs: Space, action: Space) -> Batch:
    """A prepared minibatch, far enough from the policy that ratios are clipped."""
    spaces = Spaces(obs, action)
    schema = Ppo.schema(algorithm.config, Network.model_validate({}), spaces)
    with torch.no_grad():
        whole = algorithm.prepare(Actor(algorithm, schema, Anything(12, 1, spaces), seed=2).segment(), lambda x: x)
        assert whole is not None
        rng = torch.Generator().manual_seed(1)
        for weight in algorithm.net.parameters():
            weight.add_(torch.randn(weight.shape, generator=rng), alpha=0.3)
    return next(iter(algorithm.minibatches(whole, rng)))


def gradients(algorithm: Ppo, batch: Batch) -> tuple[Loss, list[Tensor]]:
    algorithm.net.zero_grad()
    loss = algorithm.loss(batch)
    (loss.total / loss.rows).backward()  # type: ignore[no-untyped-call]
    return loss, [one.grad for one in algorithm.net.parameters() if one.grad is not None]


@pytest.mark.parametrize("action", [Discrete(2), Discrete(7), REAL], ids=["two", "seven", "real"])
@pytest.mark.parametrize("obs", [VECTOR, SEVERAL, Discrete(6)], ids=["vector", "several", "code"])
@pytest.mark.parametrize(
    "network",
    [{}, {"activation": "relu"}, {"hidden": []}, {"hidden": [9]}, {"gaussian": {"log_std_init": 1.6}}],
    ids=["tanh", "relu", "no layer", "one layer", "bounded deviation"],
)
def test_the_gradient_is_that_of_autograd(network: dict[str, Any], obs: Space, action: Space) -> None:
    algorithm = made(obs, action, network, value_clip=0.2, entropy_coef=0.05)
    batch = minibatch(algorithm, obs, action)
    assert algorithm._closed_form is not None
    loss, found = gradients(algorithm, batch)
    algorithm._closed_form = None
    wanted_loss, wanted = gradients(algorithm, batch)
    assert len(found) == len(wanted) == len(list(algorithm.net.parameters()))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-6)
        assert bool(other.abs().sum() > 0)
    torch.testing.assert_close(loss.total, wanted_loss.total)
    torch.testing.assert_close(loss.metrics, wanted_loss.metrics)
    assert float(loss.metrics["clipped"]) > 0
    assert not any(one.requires_grad for one in loss.metrics.values())


class ByAutograd(Ppo):
    def _has_closed_form(self) -> bool:
        return False


class AppoByAutograd(Appo):
    def _has_closed_form(self) -> bool:
        return False


@pytest.mark.parametrize("action", [Discrete(3), REAL], ids=["options", "real"])
@pytest.mark.parametrize(("fast", "slow"), [(Ppo, ByAutograd), (Appo, AppoByAutograd)])
def test_updates_are_those_of_autograd(
    fast: type[ClippedAlgorithm], slow: type[ClippedAlgorithm], action: Space
) -> None:
    """Trained from the same segments in the same order, restored in between from what the other has saved."""
    spaces, network = Spaces(VECTOR, action), Network(hidden=[16])
    adam = {"lr": 1e-3, "adam_beta1": 0.8, "adam_beta2": 0.95, "optimizer_eps": 1e-3}  # none of them torch's own
    config = fast.settings.model_validate({"unroll_length": 5, "batch_size": 60, "minibatch_size": 20, **adam})
    schema = fast.schema(config, network, spaces)
    both = [kind(config, network, spaces, seed=3) for kind in (fast, slow)]
    learners = [Trainer(one, policy="main", lineage=1, device=torch.device("cpu")) for one in both]
    assert [type(one._optimizer) for one in learners] == [Adam, torch.optim.Adam]
    actor = Actor(both[0], schema, Anything(12, 1, spaces), seed=2)
    for step in range(4):
        if step == 2:
            states = [one.capture().pack() for one in learners]
            assert [one.restore(state) for one, state in zip(learners, reversed(states), strict=True)] == ["", ""]
        batch = actor.segment()
        steps = []
        for learner in learners:
            torch.manual_seed(step)
            steps.append(learner.update(batch).steps)
        assert steps[0] == steps[1] > 1
    for name, one in both[0].net.state_dict().items():
        torch.testing.assert_close(one, both[1].net.state_dict()[name], rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize(
    ("network", "action"),
    [
        ({"core": "lstm"}, Discrete(2)),
        ({"share": True}, Discrete(2)),
        ({"layer_norm": True}, Discrete(2)),
        ({"precision": "bf16"}, Discrete(2)),
        ({"gaussian": {"squash": True}}, REAL),
        ({"gaussian": {"std": "network"}}, REAL),
        ({}, MultiDiscrete((2, 3))),
        ({}, Dict({"one": Discrete(2), "other": Discrete(3)})),
    ],
    ids=str,
)
def test_another_network_is_left_to_autograd(network: dict[str, Any], action: Space) -> None:
    assert not made(VECTOR, action, network)._has_closed_form()
    assert made(VECTOR, Discrete(2), {})._has_closed_form()


class Wider(nn.Linear):
    pass


class Leaky(Mlp):
    pass


class Tempered(ActionDistribution):
    pass


def hooked(net: ActorCritic) -> None:
    net.policy.register_forward_hook(lambda *_: None)


def watched(net: ActorCritic) -> None:
    net.torso.register_full_backward_pre_hook(lambda *_: None)


def replaced(net: ActorCritic) -> None:
    net.policy = Wider(12, 2)


def normed(net: ActorCritic) -> None:
    nn.utils.parametrizations.weight_norm(net.policy)


def frozen(net: ActorCritic) -> None:
    net.value.weight.requires_grad_(False)


def double(net: ActorCritic) -> None:
    net.double()


def subclassed(net: ActorCritic) -> None:
    net.torso.mlp = Leaky(3, Network(hidden=[16, 12]))


def activated(net: ActorCritic) -> None:
    assert isinstance(net.torso, Torso)
    assert net.torso.mlp is not None
    net.torso.mlp.activate = torch.sigmoid


def scored(net: ActorCritic) -> None:
    net.distribution = Tempered(Discrete(2), Gaussian())


def seeing(net: ActorCritic) -> None:
    net.value_torso = Torso(Box((3,), "uint8", 0, 255), Network(hidden=[16, 12]))


CHANGES = [hooked, watched, replaced, normed, frozen, double, subclassed, activated, scored, seeing]


@pytest.mark.parametrize("change", CHANGES, ids=lambda one: one.__name__)
def test_a_network_that_somebody_changed_is_left_to_autograd_from_the_next_batch_on(
    change: Callable[[ActorCritic], None],
) -> None:
    algorithm = made(VECTOR, Discrete(2), {})
    minibatch(algorithm, VECTOR, Discrete(2))
    assert algorithm._closed_form is not None
    change(algorithm.net)
    assert not algorithm._has_closed_form()
    if change not in (double, scored):
        minibatch(algorithm, VECTOR, Discrete(2))
        assert algorithm._closed_form is None


def test_masks_of_legal_actions_are_left_to_autograd() -> None:
    config = specs.Ppo.model_validate({"unroll_length": 5, "batch_size": 60, "minibatch_size": 20})
    spaces = Spaces(VECTOR, Discrete(3), legal=True)
    assert not Ppo(config, Network.model_validate({}), spaces, seed=3)._has_closed_form()


class Half(Ppo):
    """Leaves the value out of its loss."""

    def loss(self, batch: Batch) -> Loss:
        obs = {name: one[:1] for name, one in below(batch.fields, "obs").items()}
        params, _ = self.net.unroll_seen(obs, batch.fields["first"][:1], {})
        score = self.net.distribution.score(params, below(batch.fields, "action"), None)
        rows = torch.tensor(float(score.log_prob.numel()))
        return Loss(-(score.log_prob * batch.fields["advantage"]).sum(), rows, {"entropy": score.entropy.mean()})


class Frozen(Ppo):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.net.torso.requires_grad_(False)


@pytest.mark.parametrize("kind", [Half, Frozen])
def test_a_class_that_trains_only_some_of_the_network_learns(kind: type[Ppo]) -> None:
    spaces = Spaces(VECTOR, Discrete(2))
    config = specs.Ppo.model_validate({"unroll_length": 5, "batch_size": 60, "minibatch_size": 20})
    algorithm = kind(config, Network(hidden=[16]), spaces, seed=3)
    before = {name: one.clone() for name, one in algorithm.net.named_parameters()}
    learner = Trainer(algorithm, policy="main", lineage=1, device=torch.device("cpu"))
    schema = Ppo.schema(config, Network(), spaces)
    learner.update(Actor(algorithm, schema, Anything(12, 1, spaces), seed=2).segment())
    still = {name for name, one in algorithm.net.named_parameters() if torch.equal(one, before[name])}
    part = "value" if kind is Half else "torso"
    assert still
    assert all(name.startswith(part) for name in still)
