"""Networks: every observation, both paths, equal weights from equal seeds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rlctl.spec.schema import Network
from rlctl_agents.models.inputs import ModelError
from rlctl_agents.models.policy import CORES, ActorCritic
from rlctl_agents.models.torso import (
    ImpalaCnn,
    Mlp,
    NatureCnn,
    Pixels,
    Torso,
    hold_still,
    make_torso,
    unit_factor,
)
from rlctl_agents.types.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Spaces, leaf_array, leaves

MIXED = Dict(
    {
        "camera": Box((2, 40, 44), "uint8", 0, 255),
        "depth": Box((), "float32"),
        "flags": MultiBinary(3),
        "room": Discrete(5),
        "slots": MultiDiscrete((2, 3)),
        "speed": Box((2,), "float32"),
    }
)


def observe(space: Space, *shape: int, seed: int = 0) -> dict[str, Tensor]:
    """Random observations of every leaf."""
    random = torch.Generator().manual_seed(seed)
    obs = {}
    for name, leaf in leaves(space, "obs"):
        dtype, inner = leaf_array(leaf)
        match leaf:
            case Box(dtype="uint8"):
                obs[name] = torch.randint(0, 256, (*shape, *inner), generator=random, dtype=torch.uint8)
            case Box():
                obs[name] = torch.randn(*shape, *inner, generator=random)
            case Discrete():
                obs[name] = torch.randint(0, leaf.n, shape, generator=random)
            case MultiDiscrete():
                obs[name] = torch.stack([torch.randint(0, n, shape, generator=random) for n in leaf.n], -1)
            case MultiBinary():
                obs[name] = torch.randint(0, 2, (*shape, *inner), generator=random).to(getattr(torch, dtype))
    return obs


class Own(nn.Module):
    """A torso as a user writes one."""

    def __init__(self, space: Space, scale: float = 1.0) -> None:
        super().__init__()
        self.features = 2
        self.scale = scale

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        return self.scale * obs["obs"]


class Mean(Own):
    """One feature of bytes."""

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        return obs["obs"].float().flatten(1).mean(1, keepdim=True).expand(-1, 2)


class Featureless(nn.Module):
    def __init__(self, space: Space) -> None:
        super().__init__()


class Everything(Torso):
    def __init__(self, space: Space) -> None:
        super().__init__(space, Network(torso="mlp"))


class Uninitialised(nn.Module):
    def __init__(self, space: Space) -> None:
        self.features = 2


class UninitialisedLayer(nn.Module):
    def __init__(self, space: Space) -> None:
        self.layer = nn.Linear(2, 2)


class Failing(Own):
    """Fails where it is told to."""

    def __init__(self, space: Space, where: str) -> None:
        super().__init__(space)
        if where == "init":
            raise KeyError("no weights")
        self.where = where

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        x = obs["obs"]
        match self.where:
            case "forward":
                raise LookupError("no such layer")
            case "width":
                return torch.cat([x, x], 1)
            case "dtype":
                return x.double()
            case "nan":
                return x / x
            case "flat":
                return x.reshape(1, -1)
            case "mean":
                return x.mean(0, keepdim=True)
            case "squeezed":
                return x.squeeze()
            case _:
                return (x, x)  # type: ignore[return-value]


class Normed(nn.Module):
    """Of what depends on the training mode and the random state."""

    def __init__(self, space: Space) -> None:
        super().__init__()
        self.features = 2
        self.norm = nn.BatchNorm1d(2)
        self.frozen = nn.Dropout(0.5).eval()

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        x: Tensor = self.frozen(self.norm(obs["obs"]))
        return x + torch.rand(2)


@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
@pytest.mark.parametrize("torso", ["auto", "mlp", "small_cnn", "nature_cnn", "impala_cnn"])
def test_every_leaf_of_the_observation_reaches_policy_and_value(torso: str, core: str) -> None:
    network = Network.model_validate({"torso": torso, "core": core, "width": 16, "hidden": [8]})
    net = ActorCritic(Spaces(MIXED, Discrete(3)), network, seed=0)
    obs = observe(MIXED, 4, 2)
    first = torch.zeros(4, 2, dtype=torch.bool)
    params, value = net.unroll(obs, first, net.initial_state(2))
    assert params.shape == (4, 2, 3)
    assert value.shape == (4, 2)
    for name, leaf in obs.items():
        other = {**obs, name: observe(MIXED, 4, 2, seed=7)[name]}
        assert not torch.equal(leaf, other[name])
        changed = net.unroll(other, first, net.initial_state(2))
        assert not torch.equal(changed[0], params), name
        assert not torch.equal(changed[1], value), name


@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
def test_row_by_row_equals_the_unroll_across_resets(core: str) -> None:
    network = Network.model_validate({"core": core, "width": 16, "hidden": [8]})
    net = ActorCritic(Spaces(MIXED, Discrete(3)), network, seed=0)
    obs, first = observe(MIXED, 6, 3), torch.rand(6, 3, generator=torch.Generator().manual_seed(1)) < 0.4
    state = {name: torch.randn(3, 16) for name in net.initial_state(3)}
    params, _ = net.unroll(obs, first, state)
    for t in range(6):
        row, state = net.step({name: leaf[t] for name, leaf in obs.items()}, first[t], state)
        torch.testing.assert_close(row, params[t], rtol=0, atol=1e-6)


@pytest.mark.parametrize("core", CORES)
def test_memory_forgets_at_the_first_row_of_an_episode_and_only_there(core: str) -> None:
    space = Box((2,), "float32")
    network = Network.model_validate({"core": core, "width": 8})
    net = ActorCritic(Spaces(space, Discrete(2)), network, seed=0)
    obs, state = observe(space, 1, 2), {name: torch.ones(2, 8) for name in CORES[core].state}
    first = torch.tensor([[True, False]])
    got, _ = net.unroll(obs, first, state)
    empty, _ = net.unroll(obs, torch.zeros(1, 2, dtype=torch.bool), net.initial_state(2))
    kept, _ = net.unroll(obs, torch.zeros(1, 2, dtype=torch.bool), state)
    assert torch.equal(got[0, 0], empty[0, 0])
    assert torch.equal(got[0, 1], kept[0, 1])
    assert not torch.equal(empty[0, 1], kept[0, 1])


@pytest.mark.parametrize(("core", "torchs"), [("lstm", nn.LSTM), ("gru", nn.GRU)])
def test_memory_equals_that_of_torch_where_no_episode_begins(core: str, torchs: type[nn.RNNBase]) -> None:
    space = Box((3,), "float32")
    net = ActorCritic(Spaces(space, Discrete(2)), Network.model_validate({"core": core, "width": 5}), seed=0)
    assert net.core is not None
    reference = torchs(net.core.from_input.in_features, 5)
    own = (net.core.from_input.weight, net.core.from_hidden.weight, net.core.from_input.bias)
    with torch.no_grad():
        for theirs, weight in zip(reference.parameters(), (*own, torch.zeros(len(own[2]))), strict=True):
            theirs.copy_(weight)
    x = torch.randn(7, 2, net.core.from_input.in_features)
    got, state = net.core(x, torch.zeros(7, 2, dtype=torch.bool), net.initial_state(2))
    expected, last = reference(x)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)
    for name, wanted in zip(CORES[core].state, last if core == "lstm" else (last,), strict=True):
        torch.testing.assert_close(state[name], wanted[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("core", CORES)
def test_a_memory_is_kept_at_first(core: str) -> None:
    made = CORES[core](3, 4)
    assert made.from_input.bias.tolist() == [*[0.0] * 4, *[1.0] * 4, *[0.0] * (len(made.from_input.bias) - 8)]


def test_equal_seeds_give_equal_weights_and_leave_the_random_state_alone() -> None:
    spaces, network = Spaces(MIXED, Discrete(3)), Network.model_validate({"width": 8, "core": "lstm"})
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one, two, other = (ActorCritic(spaces, network, seed=seed).state_dict() for seed in (3, 3, 4))
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["policy.weight"], other["policy.weight"])


def test_first_policy_is_nearly_uniform_and_hidden_layers_keep_the_length_of_vectors() -> None:
    net = ActorCritic(Spaces(Box((6,), "float32"), Discrete(5)), Network(), seed=0)
    params, _ = net.step({"obs": torch.randn(100, 6)}, torch.zeros(100, dtype=torch.bool), {})
    assert (params.softmax(-1) - 0.2).abs().max() < 0.02
    weight = Mlp(8, Network(hidden=[8])).layers[0].weight
    torch.testing.assert_close(weight @ weight.T, 2 * torch.eye(8), rtol=0, atol=1e-5)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("shape", "layout"),
    [((4, 84, 84), (4, 84, 84, False)), ((96, 80, 3), (3, 96, 80, True)), ((84, 84), (1, 84, 84, False))],
)
def test_channels_are_found_first_or_last(shape: tuple[int, ...], layout: tuple[int, int, int, bool]) -> None:
    pixels = Pixels.of(Box(shape, "uint8", 0, 255))
    assert pixels is not None
    assert (pixels.channels, pixels.height, pixels.width, pixels.last) == layout
    image = torch.randint(0, 256, (2, *shape), dtype=torch.uint8)
    floats = pixels.to_float(image)
    assert floats.shape == (2, *layout[:3])
    assert floats.is_contiguous(memory_format=torch.channels_last)
    expected = image.permute(0, 3, 1, 2) if layout[3] else image.view(2, *layout[:3])
    assert torch.equal(floats, expected.float())


@pytest.mark.parametrize(("frame", "axis"), [((84, 84, 3), 4), ((3, 84, 84), 2)])
@pytest.mark.parametrize("kind", ["nature_cnn", "impala_cnn"])
def test_the_colours_of_stacked_frames_are_the_channels_of_one_image(
    frame: tuple[int, ...], axis: int, kind: Any
) -> None:
    torch.manual_seed(0)
    stacked = make_torso(Box((4, *frame), "uint8", 0, 255, stack=4), Network(torso=kind, width=8))
    plain = make_torso(Box((12, 84, 84), "uint8", 0, 255), Network(torso=kind, width=8))
    plain.load_state_dict(stacked.state_dict())
    image = torch.randint(0, 256, (2, 4, *frame), dtype=torch.uint8)
    channels = image.movedim(axis, 2).flatten(1, 2).contiguous()
    torch.testing.assert_close(stacked({"obs": image}), plain({"obs": channels}), rtol=1e-4, atol=1e-5)


def test_codes_are_read_in_units_of_their_deviation_and_seen_as_they_are_by_a_network_of_ones_own() -> None:
    spaces = Spaces(Box((7, 7, 3), "uint8", 0, 255), Discrete(3))
    net = ActorCritic(spaces, Network(width=8), seed=0)
    assert net.observed is not None
    obs = {"obs": torch.randint(0, 3, (6, 4, 7, 7, 3), dtype=torch.uint8)}
    net.observed.update(obs, torch.ones(5, 4, dtype=torch.bool), lambda sums: sums)
    read: Any = net.torso.cnns[0].pixels  # type: ignore[index, union-attr]
    seen = net.observed({"obs": obs["obs"][0]})["obs"]
    assert (read.scale(seen), read.scale(obs["obs"])) == (1.0, 1 / 255)
    assert 0.9 < seen.std() < 1.1
    assert ActorCritic(spaces, Network(torso=f"{__name__}:Mean"), seed=0).observed is None


@pytest.mark.parametrize("kind", [NatureCnn, ImpalaCnn])
def test_pixels_are_scaled_to_one_whatever_their_largest_value(kind: type[NatureCnn] | type[ImpalaCnn]) -> None:
    torch.manual_seed(0)
    byte, unit = (Pixels.of(Box((1, 40, 40), dtype, 0, high)) for dtype, high in (("uint8", 255), ("float32", 1)))
    assert byte is not None
    assert unit is not None
    cnn, same = kind(byte, Network(width=8)), kind(unit, Network(width=8))
    same.load_state_dict(cnn.state_dict())
    image = torch.randint(0, 256, (3, 1, 40, 40), dtype=torch.uint8)
    torch.testing.assert_close(cnn(image), same(image.float() / 255), rtol=1e-4, atol=1e-5)


def test_nature_cnn_has_the_published_number_of_weights() -> None:
    pixels = Pixels.of(Box((4, 84, 84), "uint8", 0, 255))
    assert pixels is not None
    # 32x4x8x8+32, 64x32x4x4+64, 64x64x3x3+64, 3136x512+512
    assert sum(weight.numel() for weight in NatureCnn(pixels, Network(width=512)).parameters()) == 1_684_128


def test_impala_cnn_gives_finite_features_for_small_and_odd_images() -> None:
    pixels = Pixels.of(Box((3, 11, 10), "uint8", 0, 255))
    assert pixels is not None
    assert ImpalaCnn(pixels, Network(width=7))(torch.zeros(2, 3, 11, 10, dtype=torch.uint8)).shape == (2, 7)


def test_a_small_grid_goes_through_the_small_cnn_and_smaller_ones_have_to_be_named() -> None:
    grid = Box((10, 10, 4), "uint8", 0, 1)
    auto = make_torso(grid, Network())
    assert isinstance(auto, Torso)
    assert auto.image_names == ["obs"]
    # 16x4x3x3+16, 16*8*8x256+256
    assert sum(weight.numel() for weight in auto.parameters()) == 262_992
    assert make_torso(Box((28, 28, 3), "uint8", 0, 255), Network(width=8))(
        {"obs": torch.zeros(2, 28, 28, 3, dtype=torch.uint8)}
    ).shape == (2, 8)
    with pytest.raises(ModelError, match="at least 36x36, got 10x10: use small_cnn, impala_cnn or mlp"):
        make_torso(grid, Network(torso="nature_cnn"))
    with pytest.raises(ModelError, match="at least 3x3, got 2x9: use mlp"):
        make_torso(Box((2, 9), "uint8", 0, 1), Network(torso="small_cnn"))
    with pytest.raises(ModelError, match="needs an observation of two or three axes"):
        make_torso(Box((4,), "float32"), Network(torso="impala_cnn"))


@pytest.mark.parametrize(
    ("network", "separate"),
    [
        ({}, True),
        ({"share": True}, False),
        ({"core": "gru"}, False),
        ({"core": "gru", "share": True}, False),
        ({"torso": "impala_cnn"}, False),
        ({"torso": "impala_cnn", "share": False}, True),
        ({"torso": f"{__name__}:Own", "share": False}, True),
    ],
)
def test_policy_and_value_share_a_torso_as_the_spec_says(network: dict[str, Any], separate: bool) -> None:
    space = Box((6, 8, 3), "uint8", 0, 255) if network.get("torso") == "impala_cnn" else Box((2,), "float32")
    net = ActorCritic(
        Spaces(space, Discrete(2)), Network.model_validate({"hidden": [8], "width": 8, **network}), seed=0
    )
    obs, first = observe(space, 3, 2), torch.zeros(3, 2, dtype=torch.bool)
    before = net.unroll(obs, first, net.initial_state(2))
    with torch.no_grad():
        for weight in (net.value_torso or net.torso).parameters():
            weight += 0.5
    after = net.unroll(obs, first, net.initial_state(2))
    assert (net.value_torso is not None) is separate
    if list(net.torso.parameters()):
        assert not torch.equal(before[1], after[1])
        assert torch.equal(before[0], after[0]) is separate


def test_a_memory_cannot_be_had_twice() -> None:
    with pytest.raises(ModelError, match=r"share: false needs `core: none`.* got lstm"):
        ActorCritic(Spaces(MIXED, Discrete(2)), Network(share=False, core="lstm"), seed=0)


@pytest.mark.parametrize("torso", ["mlp", "small_cnn", "nature_cnn", "impala_cnn"])
def test_layer_norm_is_in_every_dense_layer_of_the_torso_before_its_activation(torso: str) -> None:
    space = Box((40, 40, 3), "uint8", 0, 255)
    made, plain = (
        ActorCritic(
            Spaces(space, Discrete(2)),
            Network.model_validate(
                {"torso": torso, "hidden": [8], "width": 8, "activation": "relu", "layer_norm": norm}
            ),
            seed=0,
        )
        for norm in (True, False)
    )
    (norm,) = (module for module in made.torso.modules() if isinstance(module, nn.LayerNorm))
    with torch.no_grad():
        norm.bias += 7.0  # before the activation: it cannot cut any of these to 0
    features = made.torso(observe(space, 5))
    torch.testing.assert_close(features.mean(-1), torch.full((5,), 7.0), rtol=0, atol=1e-4)
    assert [name for name in made.state_dict() if name not in plain.state_dict()] != []
    assert plain.state_dict().keys() < made.state_dict().keys(), "the names of the others stay"


def test_gains_are_those_of_the_spec() -> None:
    gains = {"hidden": 0.5, "policy": 2.0, "value": 3.0}
    for space, layers in (
        (Box((4,), "float32"), ["mlp.layers.0"]),
        (Box((9, 9, 3), "uint8", 0, 255), ["cnns.0.dense"]),
    ):
        network = Network.model_validate({"hidden": [8], "width": 8, "gains": gains})
        net = ActorCritic(Spaces(space, Discrete(2)), network, seed=0)
        for name, gain in {**{f"torso.{layer}": 0.5 for layer in layers}, "policy": 2.0, "value": 3.0}.items():
            values = torch.linalg.svdvals(net.state_dict()[f"{name}.weight"])
            torch.testing.assert_close(values, torch.full_like(values, gain), rtol=1e-4, atol=1e-5)


def test_the_network_of_the_defaults_has_the_names_that_generations_hold() -> None:
    spaces = Spaces(Box((4,), "float32"), Box((2,), "float32", -1.0, 1.0))
    moments = [f"observed.moments.0.{name}" for name in ("count", "mean", "variance")]
    returns = [f"returns.{name}" for name in ("mean", "variance", "batches")]
    layers = [f"{torso}.mlp.layers.{layer}.{name}" for torso in ("torso", "value_torso") for layer in (0, 1)
              for name in ("weight", "bias")]  # fmt: skip
    heads = [f"{head}.{name}" for head in ("policy", "value") for name in ("weight", "bias")]
    assert sorted(ActorCritic(spaces, Network(), seed=0).state_dict()) == sorted(
        ["log_std", *moments, *returns, *layers, *heads]
    )


def test_value_has_an_mlp_of_its_own_and_shares_everything_else() -> None:
    def separate(space: Space, **network: Any) -> bool:
        return ActorCritic(Spaces(space, Discrete(2)), Network.model_validate(network), seed=0).value_torso is not None

    assert separate(Box((4,), "float32"))
    assert not separate(Box((4,), "float32"), core="lstm")
    assert not separate(Box((4, 84, 84), "uint8", 0, 255))
    assert not separate(Box((2,), "float32"), torso=f"{__name__}:Own")


def test_deviation_of_a_gaussian_does_not_depend_on_the_observation_and_is_learned() -> None:
    net = ActorCritic(Spaces(Box((4,), "float32"), Box((2,), "float32", -1.0, 1.0)), Network(), seed=0)
    params, _ = net.step({"obs": torch.randn(5, 4)}, torch.zeros(5, dtype=torch.bool), {})
    assert params.shape == (5, 4)
    assert (params[:, 2:] == 0).all()
    assert "log_std" in net.state_dict()


def test_torso_of_the_users_own_gets_the_space_and_the_params() -> None:
    torso = make_torso(Box((2,), "float32"), Network(torso=f"{__name__}:Own", params={"scale": 3.0}))
    assert torch.equal(torso({"obs": torch.ones(1, 2)}), torch.full((1, 2), 3.0))


@pytest.mark.parametrize(
    ("torso", "params", "message"),
    [
        ("no_such_package.nets:Own", {}, "no module no_such_package; is its folder named by code.path"),
        (f"{__name__}:Ovn", {}, "has no Ovn; did you mean Own"),
        (f"{__name__}:observe", {}, "must be a class derived from torch.nn.Module"),
        (f"{__name__}:Own", {"sacle": 2.0}, "unexpected keyword argument 'sacle'"),
        (f"{__name__}:Featureless", {}, "needs an attribute `features`"),
        (f"{__name__}:Uninitialised", {}, r"must call super\(\).__init__\(\)"),
        (f"{__name__}:UninitialisedLayer", {}, r"making it raised AttributeError: .*before Module.__init__\(\) call"),
        (f"{__name__}:Failing", {"where": "init"}, "model.torso .*:Failing: making it raised KeyError: 'no weights'"),
        (f"{__name__}:Failing", {"where": "forward"}, "observation of zeros raised LookupError: no such layer"),
        (f"{__name__}:Failing", {"where": "width"}, r"float32 \[1, 2\] .*, got float32 \[1, 4\]"),
        (f"{__name__}:Failing", {"where": "dtype"}, r"got float64 \[1, 2\]"),
        (f"{__name__}:Failing", {"where": "nan"}, "got numbers that are not finite"),
        (f"{__name__}:Failing", {"where": "flat"}, r"two observations .* float32 \[2, 2\] .*, got float32 \[1, 4\]"),
        (f"{__name__}:Failing", {"where": "mean"}, r"two observations .* float32 \[2, 2\] .*, got float32 \[1, 2\]"),
        (f"{__name__}:Failing", {"where": "squeezed"}, r"one observation .* float32 \[1, 2\] .*, got float32 \[2\]"),
        (f"{__name__}:Failing", {"where": "type"}, "got a tuple"),
        ("mlp", {"scale": 2.0}, "model.params are for a network of your own; mlp takes none"),
    ],
)
def test_says_what_is_wrong_with_a_torso(torso: str, params: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        make_torso(Box((2,), "float32"), Network(torso=torso, params=params))


@pytest.mark.parametrize(("where", "kind"), [("init", KeyError), ("forward", LookupError)])
def test_the_exception_of_a_users_torso_is_the_cause(where: str, kind: type[Exception]) -> None:
    with pytest.raises(ModelError) as caught:
        make_torso(Box((2,), "float32"), Network(torso=f"{__name__}:Failing", params={"where": where}))
    assert type(caught.value.__cause__) is kind


def test_the_trial_of_a_torso_leaves_no_trace() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    torso = make_torso(Box((2,), "float32"), Network(torso=f"{__name__}:Normed"))
    assert torch.equal(torch.rand(3), expected)
    assert torso.training
    assert torso.norm.training  # type: ignore[union-attr]
    assert not torso.frozen.training  # type: ignore[union-attr]
    assert torso.state_dict()["norm.num_batches_tracked"] == 0


def test_a_torso_is_tried_on_every_kind_of_observation() -> None:
    network = Network(torso=f"{__name__}:Everything")
    assert isinstance(make_torso(MIXED, network), Everything)


def test_pixels_of_bounds_of_single_entries_are_scaled_by_the_largest() -> None:
    assert unit_factor(Box((2,), "uint8", 0.0, (10.0, 50.0))) == 1 / 50
    assert unit_factor(Box((2,), "uint8", 0.0, (10.0, None))) == 1 / 255


def test_one_hot_codes_have_a_limit() -> None:
    with pytest.raises(ModelError, match="obs has 1000000 values, too many for one-hot codes"):
        make_torso(Discrete(1_000_000), Network())


def test_action_box_of_integers_is_a_model_error() -> None:
    with pytest.raises(ModelError, match="use MultiDiscrete"):
        ActorCritic(Spaces(Discrete(2), Box((2,), "int32")), Network(), seed=0)


def test_recurrent_layers_of_torch_without_dropout_may_go_backward_on_a_gpu_and_all_else_is_in_eval_mode() -> None:
    net = nn.ModuleList([nn.LSTM(2, 2), nn.GRU(2, 2, num_layers=2, dropout=0.5), nn.Dropout(), nn.BatchNorm1d(2)])
    hold_still(net)
    assert [module.training for module in net] == [True, False, False, False]
