"""Choice of the net for each leaf of an observation, from the spaces alone; torch is not imported here."""

from __future__ import annotations

from typing import Final, NamedTuple

from rlctl_agents.types.spaces import Box, Discrete, Leaf, MultiDiscrete, Space, leaf_array, leaves

SMALLEST_NATURE_PIXELS: Final = 36
"""Below this the Nature CNN's strides leave nothing; `auto` takes nothing smaller for an image."""
LARGEST_ONE_HOT: Final = 65_536


class ModelError(ValueError):
    """The network and the spaces do not fit: the user's own fault, said in one sentence."""


class Image(NamedTuple):
    """An array as channels, rows and columns."""

    channels: int
    height: int
    width: int
    last: bool  # channels come last in the observation

    @classmethod
    def of(cls, leaf: Leaf) -> Image | None:
        """None unless the leaf is a Box of two or three axes. The channels are the shorter of the outer axes."""
        if not isinstance(leaf, Box) or len(leaf.shape) not in (2, 3):
            return None
        a, b, c = leaf.shape if len(leaf.shape) == 3 else (1, *leaf.shape)
        if a <= c:
            return cls(channels=a, height=b, width=c, last=False)
        return cls(channels=c, height=a, width=b, last=True)

    @property
    def shortest(self) -> int:
        return min(self.height, self.width)


def nets(space: Space, torso: str) -> dict[str, str]:
    """Leaf of the observation -> `mlp`, `nature_cnn` or `impala_cnn`.

    `auto` sends bytes from 0 to 255 of at least 36x36 pixels through nature_cnn, with or without an axis of fewer
    channels first or last, and whatever cannot be an image of that size through the mlp. It refuses what may be either.

    Args:
        space: of the observations.
        torso: `auto` or one of ours.

    Raises:
        ModelError: the leaves and the torso do not fit, or what a leaf is cannot be known.

    Example:
        Of a Dict with `camera`, uint8 [84, 84, 3], and `speed`, float32 [2], `auto` makes
        `{"obs.camera": "nature_cnn", "obs.speed": "mlp"}`.
    """
    chosen = {name: _net(name, leaf, torso) for name, leaf in leaves(space, "obs")}
    if torso not in ("auto", "mlp") and torso not in chosen.values():
        raise ModelError(f"model.torso {torso} needs an observation of two or three axes; use mlp or auto")
    return chosen


def described(leaf: Leaf) -> str:
    """A leaf in a message or a table: `uint8 [84, 84, 3]`, `Discrete(4)`."""
    if isinstance(leaf, Discrete):
        return f"Discrete({leaf.n})"
    dtype, shape = leaf_array(leaf)
    return f"{dtype} {list(shape)}" if isinstance(leaf, Box) else f"{type(leaf).__name__} {list(shape)}"


def _net(name: str, leaf: Leaf, torso: str) -> str:
    if not isinstance(leaf, Box):
        codes = leaf.n if isinstance(leaf, Discrete) else sum(leaf.n) if isinstance(leaf, MultiDiscrete) else 0
        if codes > LARGEST_ONE_HOT:
            raise ModelError(f"{name} has {codes} values, too many for one-hot codes (at most {LARGEST_ONE_HOT})")
        return "mlp"
    large = sum(size >= SMALLEST_NATURE_PIXELS for size in leaf.shape) >= 2
    if torso == "mlp" or (torso == "auto" and not large):
        return "mlp"
    image = Image.of(leaf)
    if image is None and len(leaf.shape) > 3 and large:
        raise ModelError(_several_frames(name, leaf, torso))
    if torso != "auto":
        if torso == "nature_cnn" and image is not None and image.shortest < SMALLEST_NATURE_PIXELS:
            raise ModelError(
                f"{name}: nature_cnn needs images of at least {SMALLEST_NATURE_PIXELS}x{SMALLEST_NATURE_PIXELS}, "
                f"got {image.height}x{image.width}: use impala_cnn or mlp"
            )
        return "mlp" if image is None else torso
    assert image is not None
    if not _bytes(leaf):
        raise ModelError(
            f"model.torso auto cannot know whether {name}, {described(leaf)}, is an image or a table (bytes from 0 to "
            "255 are taken for pixels): say `torso: mlp` for a table, nature_cnn or impala_cnn for an image; a table "
            "beside images goes through the mlp when it is flattened to one axis"
        )
    channels_known = len(leaf.shape) == 2 or leaf.stack > 0 or image.channels < SMALLEST_NATURE_PIXELS
    if not channels_known or image.shortest < SMALLEST_NATURE_PIXELS:
        raise ModelError(
            f"model.torso auto cannot know which axis of {name}, {described(leaf)}, holds the channels: say `torso: "
            "nature_cnn` or impala_cnn (the shorter of the outer axes is taken, else the first), or mlp for a table"
        )
    return "nature_cnn"


def _bytes(box: Box) -> bool:
    """True if the numbers are bytes that use their whole range, as pixels do; one without bounds does."""
    outer = box.outer()
    return box.dtype == "uint8" and outer.low in (None, 0) and outer.high in (None, 255)


def _several_frames(name: str, box: Box, torso: str) -> str:
    """Message that refuses an array of more axes than an image has."""
    first, *image = box.shape
    folded = f" as {[*image[:-1], first * image[-1]]}" if len(image) == 3 and image[-1] < image[0] else ""
    return (
        f"model.torso {torso} cannot know what {name}, {described(box)}, is; a stack of images has to show its frames "
        f"as further channels of one{folded}: wrap the environment so, or say `torso: mlp`, or name a network of your "
        "own, package.module:Class"
    )
