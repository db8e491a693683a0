"""Which net the leaves of an observation go through, and what `auto` refuses to guess."""

import pytest

from rlctl_agents.models.inputs import Image, ModelError, coded, nets
from rlctl_agents.types.spaces import Box, Dict, Discrete, Leaf, MultiBinary, MultiDiscrete, Space


def pixels(*shape: int, stack: int = 0) -> Box:
    return Box(shape, "uint8", 0, 255, stack)


@pytest.mark.parametrize(
    ("space", "net"),
    [
        (Box((4,), "float32"), "mlp"),
        (Box((), "float32"), "mlp"),
        (Box((5000,), "uint8", 0, 255), "mlp"),
        (Box((35, 35), "float32"), "mlp"),
        (Box((1000, 8), "float32"), "mlp"),
        (Box((4, 10, 10), "float32"), "mlp"),
        (Box((3, 4, 5, 6, 7), "float32"), "mlp"),
        (Box((10, 10), "uint8", 0, 1), "mlp"),
        (Box((10, 10, 4), "int32", 0, 1), "mlp"),
        (pixels(4, 10, 3), "mlp"),
        (pixels(4, 4, 3), "mlp"),
        (pixels(35, 84), "mlp"),
        (pixels(35, 84, 3), "mlp"),
        (pixels(7, 7, 3), "small_cnn"),
        (Box((10, 10, 4), "uint8", 0, 1), "small_cnn"),
        (Box((8, 8, 111), "uint8", 0, 1), "small_cnn"),
        (pixels(16, 10, 10, stack=16), "small_cnn"),
        (pixels(36, 36), "nature_cnn"),
        (pixels(210, 160, 3), "nature_cnn"),
        (pixels(4, 84, 84), "nature_cnn"),
        (pixels(84, 84, 35), "nature_cnn"),
        (pixels(64, 84, 84, stack=64), "nature_cnn"),
        (pixels(4, 84, 84, 3, stack=4), "nature_cnn"),
        (pixels(4, 3, 84, 84, stack=4), "nature_cnn"),
        (pixels(40, 7, 7, 3, stack=40), "small_cnn"),
        (Box((84, 84), "uint8"), "nature_cnn"),  # of our own protocol, without bounds
        (Discrete(9), "mlp"),
        (MultiDiscrete((40, 40)), "mlp"),
        (MultiBinary(40), "mlp"),
    ],
)
def test_auto_takes_arrays_of_bytes_for_images_or_grids_and_other_small_ones_for_numbers(
    space: Space, net: str
) -> None:
    assert nets(space, "auto") == {"obs": net}


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (
            Box((40, 40), "float32"),
            ("obs, float32 [40, 40], is an image or a table", "mlp", "nature_cnn", "impala_cnn"),
        ),
        (Box((84, 84, 3), "float32", 0, 1), ("float32 [84, 84, 3]", "image or a table")),
        (Box((36, 36), "int32"), ("int32 [36, 36]", "image or a table")),
        (Box((40, 40), "uint8", 0, 10), ("uint8 [40, 40]", "image or a table")),
        (Box((40, 40), "int8", 0, 255), ("int8 [40, 40]", "image or a table")),
        (pixels(84, 84, 84), ("uint8 [84, 84, 84]", "which axis", "mlp", "nature_cnn")),
        (pixels(40, 84, 84), ("which axis",)),
        (pixels(84, 3, 84), ("which axis",)),
        (pixels(4, 84, 84, 3), ("uint8 [4, 84, 84, 3]", "stack of images", "[84, 84, 12]", "mlp", "package.module")),
        (pixels(4, 3, 84, 84), ("stack of images",)),
        (pixels(4, 84, 84, 84, stack=4), ("which axis",)),
        (Box((2, 40, 40, 3), "float32"), ("stack of images",)),
        (Dict({"map": Box((40, 40), "float32"), "v": Box((2,), "float32")}), ("obs.map", "flattened to one axis")),
    ],
)
def test_auto_refuses_what_may_be_an_image_or_a_table_and_names_the_choices(space: Space, words: tuple[str]) -> None:
    with pytest.raises(ModelError) as refused:
        nets(space, "auto")
    for word in words:
        assert word in str(refused.value)
    assert set(nets(space, "mlp").values()) == {"mlp"}


@pytest.mark.parametrize("torso", ["small_cnn", "nature_cnn", "impala_cnn"])
def test_pixels_that_would_be_seen_unscaled_are_refused(torso: str) -> None:
    image = Box((84, 84, 3), "int64", 0, 255)
    with pytest.raises(
        ModelError, match=rf"obs, int64 \[84, 84, 3\], holds integers, which {torso} would see unscaled"
    ):
        nets(image, torso)
    assert nets(image, "mlp") == {"obs": "mlp"}
    planes = Box((84, 84, 3), "int8", -1, 1)
    assert nets(planes, torso) == {"obs": torso}


def test_a_stated_torso_takes_the_image_or_table_that_auto_refuses() -> None:
    table = Box((40, 40), "float32")
    assert [nets(table, torso)["obs"] for torso in ("mlp", "nature_cnn", "impala_cnn")] == [
        "mlp",
        "nature_cnn",
        "impala_cnn",
    ]


@pytest.mark.parametrize(
    ("shape", "stack", "channels", "last"),
    [
        ((10, 10, 4), 0, 4, True),
        ((10, 10, 10), 0, 10, True),
        ((10, 10, 10), 10, 10, False),
        ((4, 10, 10, 3), 4, 12, True),
        ((4, 3, 10, 10), 4, 12, False),
        ((4, 10, 10), 0, 4, False),
        ((16, 10, 10), 0, 16, False),
        ((8, 8, 111), 0, 111, True),
        ((5, 6, 7), 0, 5, False),
        ((7, 6, 5), 0, 5, True),
        ((36, 10), 0, 1, False),
        ((1, 10), 0, 1, False),
    ],
)
def test_equal_neighbours_are_rows_and_columns_else_the_shorter_outer_axis_holds_the_channels(
    shape: tuple[int, ...], stack: int, channels: int, last: bool
) -> None:
    image = Image.of(pixels(*shape, stack=stack))
    assert image is not None
    assert (image.channels, image.last) == (channels, last)


@pytest.mark.parametrize("torso", ["auto", "small_cnn", "nature_cnn", "impala_cnn"])
def test_a_stack_of_images_beside_an_image_does_not_go_through_the_mlp_silently(torso: str) -> None:
    both = Dict({"camera": pixels(84, 84, 3), "last": pixels(4, 84, 84, 3)})
    with pytest.raises(ModelError, match=r"obs\.last.*stack of images"):
        nets(both, torso)


@pytest.mark.parametrize(
    ("space", "axis"),
    [
        (pixels(7, 7, 3), 2),
        (pixels(3, 7, 7), 0),
        (pixels(4, 7, 7, 3, stack=4), 3),
        (Box((7, 7, 3), "uint8"), 2),
        (Box((10, 10, 4), "uint8", 0, 1), None),
        (Box((7, 7, 3), "float32", 0, 255), None),
        (pixels(84, 84, 3), None),
        (pixels(7, 7), None),
        (pixels(128), None),
        (Discrete(4), None),
    ],
)
def test_small_grids_of_bytes_without_bounds_of_their_own_are_taken_for_codes(space: Leaf, axis: int | None) -> None:
    assert coded(space) == axis


def test_every_leaf_of_a_dict_is_decided_for_itself() -> None:
    space = Dict({"camera": pixels(84, 84, 3), "small": pixels(7, 7, 3), "speed": Box((2,), "float32")})
    assert nets(space, "auto") == {"obs.camera": "nature_cnn", "obs.small": "small_cnn", "obs.speed": "mlp"}
