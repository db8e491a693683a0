"""IMPALA: what actors recorded is reproduced, and the loss is the one written down in docs/algorithms/impala.md."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rlctl.spec import algorithms as specs
from rlctl.spec.schema import Network
from rlctl_agents.algorithms.base import ActInputs, AlgorithmError, Batch, Loss, below
from rlctl_agents.algorithms.impala import Impala, standardised
from rlctl_agents.ops.vtrace import vtrace
from rlctl_agents.training.trainer import Trainer
from rlctl_agents.types.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Spaces, Tuple, choices
from tests.algorithms.world import Actor, Anything

VECTOR = Box((3,), "float32")
MIXED = Dict(
    {
        "camera": Box((2, 40, 40), "uint8", 0, 255),
        "room": Discrete(4),
        "speed": VECTOR,
        "doors": MultiBinary(2),
        "keys": MultiDiscrete((2, 3)),
    }
)
ACTIONS: dict[str, Space] = {
    "discrete": Discrete(5),
    "continuous": Box((2,), "float32", -2.0, 2.0),
    "tuple": Tuple((Discrete(3), Box((2,), "float32"), MultiBinary(2))),
    "dict": Dict({"a": MultiDiscrete((2, 4)), "b": Box((), "float64", 0.0, 1.0)}),
}
MASKED: dict[str, Space] = {
    "discrete": Discrete(5),
    "multi-discrete": MultiDiscrete((3, 5)),
    "dict": Dict({"b": Discrete(4), "a": MultiDiscrete((2, 3)), "c": Box((2,), "float32")}),
}
PLAYED = [pytest.param(one, False, id=name) for name, one in ACTIONS.items()]
PLAYED += [pytest.param(one, True, id=f"{name}-masked") for name, one in MASKED.items()]
"""Action spaces, and whether there are masks of legal actions."""
CHOSEN = Spaces(
    Dict({"grid": Box((6, 7, 3), "uint8", 0, 255), "speed": VECTOR}),
    Tuple((Discrete(3), Box((2,), "float32", -2.0, 1.0))),
)
CHOICES: list[dict[str, Any]] = [
    {"gaussian": {"std": "network"}},
    {"gaussian": {"squash": True}, "core": "gru"},
    {"gaussian": {"squash": True, "std": "network", "log_std_init": -1.0}},
    {"torso": "small_cnn", "core": "lstm", "layer_norm": True},
    {"torso": "mlp", "layer_norm": True, "share": True},
    {"torso": "impala_cnn", "layer_norm": True, "share": False},
    {"gains": {"hidden": 1.0, "policy": 1.0, "value": 0.1}, "share": False},
]


class Moody(nn.Module):
    """A torso that answers otherwise in train mode."""

    def __init__(self, space: Space) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5))
        self.features = 8

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        features: Tensor = self.layers(obs["obs"])
        return features


def play(
    spaces: Spaces, network: dict[str, Any], segments: int = 4, slots: int = 6, **settings: Any
) -> tuple[Impala, list[Batch]]:
    """A policy and what it gathered, over several segments."""
    config = specs.Impala.model_validate({"unroll_length": 5, **settings})
    model = Network.model_validate({"width": 12, "hidden": [16], **network})
    algorithm = Impala(config, model, spaces, seed=3)
    for weight in algorithm.net.parameters():  # far from the uniform policy of the start
        weight.data += 0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel()))
    actor = Actor(algorithm, Impala.schema(config, model, spaces), Anything(slots, 1, spaces), seed=2)
    return algorithm, [actor.segment() for _ in range(segments)]


@pytest.mark.parametrize(("returns", "moves"), [("auto", False), (True, True), (False, False)])
def test_clipped_rewards_leave_returns_as_they_are_and_the_network_as_actors_have_it(returns: Any, moves: bool) -> None:
    spaces, network = Spaces(VECTOR, ACTIONS["discrete"]), {"normalize": {"returns": returns}}
    learner, (batch,) = play(spaces, network, segments=1, reward_clip=0.1)
    actor, _ = play(spaces, network, segments=0)  # it is not told how rewards are clipped
    assert learner.net.state_dict().keys() == actor.net.state_dict().keys()
    with torch.no_grad():
        means = {name: float(value) for name, value in learner.loss(batch).metrics.items()}
        learner.update_statistics(batch, means, lambda sums: sums)
    assert (learner.net.returns is not None and float(learner.net.returns.batches) > 0) is moves


@pytest.mark.parametrize(("clip", "kept"), [(0.1, False), (None, True)])
def test_a_scale_of_returns_from_before_rewards_were_clipped_is_given_up(clip: float | None, kept: bool) -> None:
    spaces = Spaces(VECTOR, ACTIONS["discrete"])
    before, (batch,) = play(spaces, {}, segments=1)
    now, _ = play(spaces, {}, segments=0, reward_clip=clip)
    for algorithm in (before, now):
        assert algorithm.net.returns is not None
        algorithm.net.returns.update(-0.5, 0.25 + 0.35**2, algorithm.net.value, batch_size=640)
    now.net.load_state_dict(before.net.state_dict())
    obs, first = below(batch.fields, "obs"), batch.fields["first"]
    with torch.no_grad():
        wanted = before.net.unroll(obs, first, {})[1]
        now.begun()
        assert now.net.returns is not None
        torch.testing.assert_close(now.net.unroll(obs, first, {})[1], wanted, rtol=1e-3, atol=1e-3)
    assert (float(now.net.returns.deviation) < 0.5) is kept


def learned_log_prob(algorithm: Impala, batch: Batch) -> torch.Tensor:
    fields = batch.fields
    params, _ = algorithm.net.unroll(below(fields, "obs"), fields["first"], below(fields, "core"))
    legal = fields["legal"][:-1] if "legal" in fields else None
    return algorithm.net.distribution.score(params[:-1], below(fields, "action"), legal).log_prob


@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("obs", [VECTOR, MIXED], ids=["vector", "mixed"])
def test_learner_reproduces_the_log_probabilities_of_the_actors(obs: Space, action: str, core: str) -> None:
    require_equal(*play(Spaces(obs, ACTIONS[action]), {"core": core}))


@pytest.mark.parametrize("network", CHOICES, ids=str)
def test_learner_reproduces_the_log_probabilities_of_the_actors_whatever_the_network(network: dict[str, Any]) -> None:
    require_equal(*play(CHOSEN, network))


def require_equal(algorithm: Impala, batches: list[Batch]) -> None:
    """Log-probabilities of the learner and of the actors."""
    ends = torch.cat([batch.fields["truncated"] | batch.fields["terminated"] for batch in batches])
    assert ends[:-1].sum() > 10  # otherwise this proves nothing about resets
    for batch in batches:
        torch.testing.assert_close(
            learned_log_prob(algorithm, batch), batch.fields["log_prob"], rtol=0, atol=1e-5, check_dtype=True
        )
        metrics = algorithm.loss(batch).metrics
        assert abs(metrics["rho"] - 1) < 1e-5
        assert abs(metrics["kl"]) < 1e-6


@pytest.mark.parametrize(
    ("action", "entries"),
    [
        ("discrete", [("action", None)]),
        ("multi-discrete", [("action", 0), ("action", 1)]),
        ("dict", [("action.a", 0), ("action.a", 1), ("action.b", None)]),
    ],
)
def test_learner_reproduces_log_probabilities_under_masks_of_legal_actions(
    action: str, entries: list[tuple[str, int | None]]
) -> None:
    algorithm, batches = play(Spaces(VECTOR, MASKED[action], legal=True), {"core": "lstm"})
    for batch in batches:
        fields = batch.fields
        masks = fields["legal"][:-1].split(list(choices(MASKED[action])), -1)
        for (name, entry), mask in zip(entries, masks, strict=True):
            taken = fields[name] if entry is None else fields[name][..., entry]
            assert (mask.gather(-1, taken.unsqueeze(-1)).squeeze(-1) | ~fields["valid"]).all()
    require_equal(algorithm, batches)


@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_wrong_memory_at_the_start_of_a_segment_would_be_noticed(core: str) -> None:
    algorithm, batches = play(Spaces(VECTOR, Discrete(5)), {"core": core})
    fields = batches[1].fields
    forgot = Batch({**fields, "core.h": torch.zeros_like(fields["core.h"])}, batches[1].version)
    assert (learned_log_prob(algorithm, forgot) - fields["log_prob"]).abs().max() > 1e-3


@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
def test_experience_has_exactly_the_fields_of_the_schema(core: str) -> None:
    config, network = specs.Impala(), Network.model_validate({"core": core})
    fields = Impala.schema(config, network, Spaces(MIXED, ACTIONS["dict"], legal=False)).fields
    described = {field.name: (field.dtype, field.shape, field.per) for field in fields}
    expected: dict[str, tuple[str, tuple[int, ...], str]] = {
        "obs.camera": ("uint8", (2, 40, 40), "row+1"),
        "obs.doors": ("int8", (2,), "row+1"),
        "obs.keys": ("int64", (2,), "row+1"),
        "obs.room": ("int64", (), "row+1"),
        "obs.speed": ("float32", (3,), "row+1"),
        "first": ("bool", (), "row+1"),
        "action.a": ("int64", (2,), "row"),
        "action.b": ("float64", (), "row"),
        "reward": ("float32", (), "row"),
        "terminated": ("bool", (), "row"),
        "truncated": ("bool", (), "row"),
        "valid": ("bool", (), "row"),
        "log_prob": ("float32", (), "row"),
    }
    state = {"none": (), "lstm": ("core.c", "core.h"), "gru": ("core.h",)}[core]
    expected |= dict.fromkeys(state, ("float32", (256,), "segment"))
    assert described == expected


def test_schema_has_masks_of_legal_actions_when_the_spaces_have() -> None:
    schema = Impala.schema(specs.Impala(), Network(), Spaces(VECTOR, Discrete(4), legal=True))
    (legal,) = (field for field in schema.fields if field.name == "legal")
    assert (legal.dtype, legal.shape, legal.per) == ("bool", (4,), "row+1")
    both = Tuple((Discrete(4), Box((1,), "float32"), MultiDiscrete((2, 3))))
    fields = Impala.schema(specs.Impala(), Network(), Spaces(VECTOR, both, legal=True)).fields
    assert [field.shape for field in fields if field.name == "legal"] == [(9,)]
    with pytest.raises(AlgorithmError, match="need a Discrete or a MultiDiscrete in the action"):
        Impala.schema(specs.Impala(), Network(), Spaces(VECTOR, Box((1,), "float32"), legal=True))


def test_loss_is_the_sum_written_in_the_documentation() -> None:
    settings: dict[str, Any] = {
        "value_coef": 0.3,
        "entropy_coef": 0.02,
        "lambda": 0.9,
        "gamma": 0.8,
        "reward_clip": 0.5,
        "advantage": "vtrace",
    }
    algorithm, batches = play(Spaces(VECTOR, Discrete(5)), {}, **settings)
    fields = batches[2].fields
    fields["log_prob"] = fields["log_prob"] + 0.3 * torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
    params, value = algorithm.net.unroll(below(fields, "obs"), fields["first"], {})
    policy = torch.distributions.Categorical(logits=params[:-1])
    log_prob = policy.log_prob(fields["action"])  # type: ignore[no-untyped-call]
    target, advantage = vtrace(
        log_prob - fields["log_prob"],
        fields["reward"].clamp(-0.5, 0.5),
        torch.where(fields["terminated"], 0.0, 0.8),
        value,
        fields["valid"],
        lambda_=0.9,
    )
    expected = torch.zeros(())
    for t in range(5):
        for b in range(6):
            if fields["valid"][t, b]:
                expected = expected - log_prob[t, b] * advantage[t, b]
                expected = expected + 0.3 * 0.5 * (target[t, b] - value[t, b]) ** 2
                expected = expected - 0.02 * policy.entropy()[t, b]  # type: ignore[no-untyped-call]
    loss = algorithm.loss(Batch(fields, batches[2].version))
    torch.testing.assert_close(loss.total, expected, rtol=1e-5, atol=1e-5)
    assert loss.rows == fields["valid"].sum()
    weights = list(algorithm.net.parameters())
    for got, wanted in zip(
        torch.autograd.grad(loss.total, weights), torch.autograd.grad(expected, weights), strict=True
    ):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def test_mean_over_two_halves_of_a_batch_is_the_mean_over_the_batch() -> None:
    algorithm, batches = play(Spaces(VECTOR, Discrete(5)), {"core": "lstm"})
    whole = batches[1]

    def columns(start: int, stop: int) -> Batch:
        return Batch(
            {
                name: value[start:stop] if name.startswith("core") else value[:, start:stop]
                for name, value in whole.fields.items()
            },
            whole.version[:, start:stop],
        )

    one, two, both = (algorithm.loss(batch) for batch in (columns(0, 2), columns(2, 6), whole))
    assert one.rows + two.rows == both.rows
    torch.testing.assert_close((one.total + two.total) / (one.rows + two.rows), both.total / both.rows)


@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
def test_what_stands_in_rows_that_are_not_valid_changes_neither_loss_nor_gradient(core: str) -> None:
    algorithm, batches = play(Spaces(VECTOR, ACTIONS["tuple"]), {"core": core}, advantage_norm=True)
    fields = next(batch.fields for batch in batches if not batch.fields["valid"].all())
    weights = list(algorithm.net.parameters())
    before = algorithm.loss(Batch(fields, batches[0].version))
    gradient = torch.autograd.grad(before.total, weights)
    unused = ~fields["valid"]
    for name, junk in (("reward", 1e9), ("log_prob", math.nan), ("terminated", True), ("action.0", 2)):
        fields[name] = fields[name].masked_fill(unused, junk)
    after = algorithm.loss(Batch(fields, batches[0].version))
    assert torch.equal(before.total, after.total)
    for one, two in zip(gradient, torch.autograd.grad(after.total, weights), strict=True):
        assert torch.equal(one, two)
    assert all(torch.equal(before.metrics[name], after.metrics[name]) for name in before.metrics)


def test_a_batch_without_a_valid_row_has_loss_and_gradient_zero() -> None:
    algorithm, batches = play(Spaces(VECTOR, Discrete(5)), {}, advantage_norm=True)
    fields = {**batches[0].fields, "valid": torch.zeros(5, 6, dtype=torch.bool)}
    loss = algorithm.loss(Batch(fields, batches[0].version))
    assert loss.rows == 0
    assert loss.total == 0
    gradient = torch.autograd.grad(loss.total, list(algorithm.net.parameters()))
    assert all((part == 0).all() for part in gradient)
    assert all(metric.isfinite() for metric in loss.metrics.values())


def test_every_weight_learns() -> None:
    mixed = Spaces(MIXED, ACTIONS["tuple"])
    for spaces, network in (
        (mixed, {}), (mixed, {"core": "lstm"}), (mixed, {"torso": "impala_cnn"}), *((CHOSEN, one) for one in CHOICES),
    ):  # fmt: skip
        algorithm, batches = play(spaces, network)
        gradient = torch.autograd.grad(algorithm.loss(batches[1]).total, list(algorithm.net.parameters()))
        assert all(part.abs().max() > 0 for part in gradient)


def test_normalised_advantages_have_mean_0_and_deviation_1_over_the_valid_rows() -> None:
    random = torch.Generator().manual_seed(0)
    valid = torch.rand(7, 5, generator=random) < 0.6
    advantage = torch.where(valid, 30 + 10 * torch.randn(7, 5, generator=random), 0.0)
    scaled = standardised(advantage, valid, valid.sum().float())
    assert (scaled[~valid] == 0).all()
    torch.testing.assert_close(scaled[valid].mean(), torch.tensor(0.0), rtol=0, atol=1e-5)
    torch.testing.assert_close(scaled[valid].std(correction=0), torch.tensor(1.0), rtol=0, atol=1e-5)


def test_normalised_advantages_make_the_policy_gradient_independent_of_the_scale_of_rewards() -> None:
    spaces = Spaces(VECTOR, Discrete(5))
    normed, batches = play(spaces, {}, advantage_norm=True, gamma=0.0, entropy_coef=0.0, value_coef=0.0)
    for weight in normed.net.value.parameters():
        weight.data.zero_()
    fields = batches[0].fields
    large = Batch({**fields, "reward": 1000 * fields["reward"]}, batches[0].version)
    total = normed.loss(batches[0]).total
    torch.testing.assert_close(total, normed.loss(large).total, rtol=1e-4, atol=1e-5)
    assert normed.net.returns is not None
    normed.net.returns.variance.fill_(1e6)  # of returns, which are normalised by default
    torch.testing.assert_close(total, normed.loss(large).total, rtol=1e-4, atol=1e-5)


def test_greedy_actions_ignore_the_noise_and_are_the_likeliest() -> None:
    algorithm, _ = play(Spaces(VECTOR, Discrete(5)), {})
    obs, first = {"obs": torch.randn(50, 3)}, torch.zeros(50, dtype=torch.bool)
    one, two = (algorithm.act(ActInputs(obs, first, {}, torch.full((50, 1), u), None, True)) for u in (0.01, 0.99))
    assert torch.equal(one.action["action"], two.action["action"])
    assert torch.equal(one.action["action"], algorithm.net.step(obs, first, {})[0].argmax(-1))


def test_equal_noise_gives_equal_actions_whoever_acts_beside() -> None:
    algorithm, _ = play(Spaces(VECTOR, Discrete(5)), {})
    obs, noise = torch.randn(50, 3), torch.rand(50, 1)
    none = torch.zeros(50, dtype=torch.bool)
    whole = algorithm.act(ActInputs({"obs": obs}, none, {}, noise, None, False))
    half = algorithm.act(ActInputs({"obs": obs[::2]}, none[::2], {}, noise[::2], None, False))
    assert torch.equal(whole.action["action"][::2], half.action["action"])


def test_learning_rate_falls_to_zero_over_the_rows_given_and_stays_without_them() -> None:
    spaces = Spaces(VECTOR, Discrete(2))
    falling = Impala(specs.Impala(lr=0.1, lr_schedule=specs.Schedule(agent_steps=1000)), Network(), spaces, seed=0)
    optimizer = falling.make_optimizer()
    rates = []
    for rows in (0, 250, 1000, 2000):
        falling.set_progress(rows, optimizer)
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([0.1, 0.075, 0, 0])
    constant = Impala(specs.Impala(lr=0.1), Network(), spaces, seed=0)
    optimizer = constant.make_optimizer()
    constant.set_progress(10**9, optimizer)
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_rmsprop_has_its_epsilon_outside_the_root() -> None:
    config = specs.Impala(optimizer="rmsprop", lr=0.5, rmsprop_decay=0.9, optimizer_eps=2.0)
    algorithm = Impala(config, Network(), Spaces(VECTOR, Discrete(2)), seed=0)
    optimizer = algorithm.make_optimizer()
    weight = list(algorithm.net.value.parameters())[1]  # the bias, one number
    before = weight.item()
    weight.grad = torch.full_like(weight, 3.0)
    optimizer.step()
    assert weight.item() - before == pytest.approx(-0.5 * 3 / (math.sqrt(0.1 * 9) + 2))


def test_scaling_the_loss_leaves_rmsprop_as_it_is_when_epsilon_is_scaled_alike() -> None:
    steps = []
    for scale in (1.0, 640.0):
        config = specs.Impala(optimizer="rmsprop", optimizer_eps=1e-5 * scale)
        algorithm = Impala(config, Network(), Spaces(VECTOR, Discrete(2)), seed=0)
        optimizer = algorithm.make_optimizer()
        weight = list(algorithm.net.value.parameters())[1]  # the bias, one number
        before = weight.item()
        weight.grad = torch.full_like(weight, 1e-3 * scale)
        optimizer.step()
        steps.append(weight.item() - before)
    assert steps[0] == pytest.approx(steps[1])


def test_clips_outside_the_papers_assumption_are_refused_before_training() -> None:
    with pytest.raises(AlgorithmError, match=r"c_max must not exceed rho_max, got 2\.0 > 1\.0"):
        Impala(specs.Impala(c_max=2.0), Network(), Spaces(VECTOR, Discrete(2)), seed=0)


def test_a_network_that_does_not_fit_is_an_algorithm_error() -> None:
    with pytest.raises(AlgorithmError, match="nature_cnn needs an observation"):
        Impala(specs.Impala(), Network(torso="nature_cnn"), Spaces(VECTOR, Discrete(2)), seed=0)


@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
def test_with_dropout_and_batch_norm_the_learner_reproduces_the_log_probabilities_of_the_actors(core: str) -> None:
    network = {"torso": f"{__name__}:Moody", "core": core}
    algorithm, batches = play(Spaces(VECTOR, ACTIONS["discrete"]), network)
    weights = {name: value.clone() for name, value in algorithm.net.state_dict().items()}
    for batch in batches:
        torch.testing.assert_close(learned_log_prob(algorithm, batch), batch.fields["log_prob"], rtol=0, atol=1e-5)
        algorithm.loss(batch).total.backward()  # type: ignore[no-untyped-call]
    for name, value in algorithm.net.state_dict().items():
        assert torch.equal(value, weights[name]), f"learning from a batch moved {name} by itself"


def test_a_network_with_dropout_gives_the_same_greedy_answers_twice_also_after_it_got_weights() -> None:
    network = Network.model_validate({"torso": f"{__name__}:Moody"})
    spaces = Spaces(VECTOR, ACTIONS["continuous"])
    algorithm = Impala(specs.Impala(), network, spaces, seed=3)
    algorithm.net.load_state_dict(Impala(specs.Impala(), network, spaces, seed=4).net.state_dict())
    obs, first = {"obs": torch.ones(6, 3)}, torch.zeros(6, dtype=torch.bool)
    one, two = (algorithm.act(ActInputs(obs, first, {}, torch.full((6, 2), 0.5), None, True)) for _ in range(2))
    assert torch.equal(one.action["action"], two.action["action"])
    assert torch.equal(one.action["action"][0], one.action["action"][5])
    assert not any(module.training for module in algorithm.net.modules())


def taught(batch: Batch, spaces: Spaces, updates: int = 1, **settings: Any) -> tuple[Impala, Trainer, dict[str, float]]:
    """After so many updates on the same batch, with the metrics of the last."""
    given = {"unroll_length": 5, "batch_size": 30, "lr": 1e-3, "value_minibatch_size": 10, **settings}
    model = Network.model_validate({"hidden": [16], "share": False})
    algorithm = Impala(specs.Impala.model_validate(given), model, spaces, seed=3)
    trainer = Trainer(algorithm, policy="main", lineage=1, device=torch.device("cpu"))
    return algorithm, trainer, [trainer.update(batch).stats for _ in range(updates)][-1]


@pytest.mark.parametrize(
    ("obs", "action", "legal"),
    [(VECTOR, "discrete", True), (VECTOR, "continuous", False), (MIXED, "dict", True)],
    ids=["masked", "continuous", "dict"],
)
def test_the_pass_over_the_value_moves_the_value_alone_and_shows_no_metrics(
    obs: Space, action: str, legal: bool
) -> None:
    spaces = Spaces(obs, ACTIONS[action], legal=legal)
    _, (_, batch) = play(spaces, {"share": False}, segments=2)
    once, _, plain = taught(batch, spaces, value_batches=0)
    often, trainer, shown = taught(batch, spaces, value_batches=1)
    for (name, one), two in zip(once.net.named_parameters(), often.net.parameters(), strict=True):
        assert torch.equal(one, two) == (not name.startswith("value"))
    assert trainer.optimizer_steps == often.steps_per_batch == 4
    assert shown == plain
    state = trainer._optimizer.state
    assert {int(state[one]["step"]) for one in often.net.policy.parameters()} == {1}, "no moment moves on"
    assert {int(state[one]["step"]) for one in often.net.value.parameters()} == {4}


@pytest.mark.parametrize("action", MASKED)
def test_the_pass_over_the_value_corrects_nothing_where_actors_had_the_same_policy_and_masks(action: str) -> None:
    algorithm, (_, batch) = play(Spaces(VECTOR, MASKED[action], legal=True), {"share": False}, segments=2)
    fields, valid = batch.fields, batch.fields["valid"]
    value = algorithm.net.unroll(below(fields, "obs"), fields["first"], {})[1].detach()
    discount = 0.99 * ~fields["terminated"]
    on_policy = vtrace(torch.zeros_like(value[1:]), fields["reward"], discount, value, valid, lambda_=0.95)
    found = algorithm._regression(batch).fields["value_target"]
    torch.testing.assert_close(found[0], on_policy.target[valid], rtol=0, atol=1e-4)


def test_the_pass_over_the_value_brings_it_closer_to_its_targets() -> None:
    spaces = Spaces(VECTOR, Discrete(5))
    _, (_, batch) = play(spaces, {}, segments=2)
    _, _, before = taught(batch, spaces, updates=5, value_batches=0)
    _, _, after = taught(batch, spaces, updates=5, value_batches=1)
    assert after["explained_variance"] > before["explained_variance"]


def test_the_pass_over_the_value_has_older_batches_too_of_which_the_newest_are_held() -> None:
    spaces = Spaces(VECTOR, Discrete(5))
    _, (_, batch) = play(spaces, {}, segments=2)
    algorithm, trainer, _ = taught(batch, spaces, updates=4, value_batches=3, buffer_batches=2)
    rows = int(batch.fields["valid"].sum())
    assert trainer.consumed_steps == 4 * rows
    assert trainer.learned_steps == 4 * rows + (1 + 2 + 3 + 3) * rows
    assert len(algorithm._older) == 2
    batch.fields["reward"].fill_(7.0)  # memory that is used again
    assert all(not (held.fields["reward"] == 7.0).any() for held in algorithm._older)


def test_after_a_policy_step_without_a_finite_loss_the_value_is_left_as_it_is() -> None:
    spaces = Spaces(VECTOR, Discrete(5))
    _, (_, batch) = play(spaces, {}, segments=2)
    algorithm, trainer, _ = taught(batch, spaces, value_batches=1)
    before = {name: value.clone() for name, value in algorithm.net.state_dict().items()}
    at = batch.fields["valid"].nonzero()[0]
    batch.fields["reward"][tuple(at)] = math.inf
    assert trainer.update(batch).skipped == 1
    assert all(torch.equal(value, before[name]) for name, value in algorithm.net.state_dict().items())


class Mine(Impala):
    def loss(self, batch: Batch) -> Loss:
        return super().loss(batch)


@pytest.mark.parametrize(
    ("kind", "network", "own"),
    [(Impala, {}, True), (Impala, {"core": "lstm"}, False), (Impala, {"share": True}, False), (Mine, {}, False),
     (Impala, {"torso": "small_cnn"}, False), (Impala, {"torso": "small_cnn", "share": False}, True)],
    ids=str,
)  # fmt: skip
def test_a_value_that_shares_a_torso_with_the_policy_has_no_pass_of_its_own(
    kind: type[Impala], network: dict[str, Any], own: bool
) -> None:
    model = Network.model_validate(network)
    spaces = Spaces(Box((6, 7, 3), "uint8", 0, 255) if "torso" in network else VECTOR, Discrete(3))
    algorithm = kind(specs.Impala(), model, spaces, seed=0)
    assert algorithm.steps_per_batch == (1 + 16 if own else 1)
    if not own and kind is Impala:
        with pytest.raises(AlgorithmError, match=r"value_batches is for a value that shares no torso .* got 2"):
            Impala(specs.Impala(value_batches=2), model, spaces, seed=0)
