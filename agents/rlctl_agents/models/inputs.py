"""Choice of a net for each leaf of an observation, and check of the leaves of an action, from the spaces alone; torch
is not imported here."""

from __future__ import annotations

from typing import Final, NamedTuple

from rlctl_agents.types.spaces import Box, Discrete, Leaf, MultiDiscrete, Space, leaf_array, leaves

SMALLEST_NATURE_PIXELS: Final = 36
"""Least pixels of a side: with fewer the Nature CNN's strides leave nothing."""
SMALLEST_GRID: Final = 5
"""Rows and columns of the smallest array that `auto` treats as a grid."""
KERNEL: Final = 3
"""Side of the kernel of small_cnn."""
LARGEST_ONE_HOT: Final = 65_536
SMALLEST_SCALE, LARGEST_SCALE = 2.0**-126, 2.0**64
"""Limits of half the width between bounds: closer bounds count as equal, wider ones as missing, as float32 gives 0 or
infinity."""


class ModelError(ValueError):
    """Network that does not fit the spaces: a user's mistake, explained in one sentence."""


class Image(NamedTuple):
    """Axes of an image: channels, rows and columns."""

    channels: int
    height: int
    width: int
    last: bool  # channels come last in the observation, or in each frame of a stack
    frames: int = 1  # frames of a stack; `channels` are those of all frames together

    @classmethod
    def of(cls, leaf: Leaf) -> Image | None:
        """Image axes of a leaf; None unless it is a Box of two or three axes, or a stack of such frames.

        Equal neighbours are rows and columns, of a cube the first two; else the shorter of the outer axes holds the
        channels. Frames of a stack are always channels, each with its own colours where it has any.
        """
        if isinstance(leaf, Box) and leaf.stack and len(leaf.shape) == 4:
            frame = cls.of(Box(leaf.shape[1:], leaf.dtype))
            assert frame is not None
            return frame._replace(channels=leaf.stack * frame.channels, frames=leaf.stack)
        if not isinstance(leaf, Box) or len(leaf.shape) not in (2, 3):
            return None
        a, b, c = leaf.shape if len(leaf.shape) == 3 else (1, *leaf.shape)
        if leaf.stack or len(leaf.shape) == 2 or (a != b and (b == c or a <= c)):
            return cls(channels=a, height=b, width=c, last=False, frames=leaf.stack or 1)
        return cls(channels=c, height=a, width=b, last=True)

    @property
    def shortest(self) -> int:
        return min(self.height, self.width)


def nets(space: Space, torso: str) -> dict[str, str]:
    """Net of each leaf of the observation, by name: `mlp`, `small_cnn`, `nature_cnn` or `impala_cnn`.

    `auto` sends bytes from 0 to 255 of at least 36x36 pixels through nature_cnn, with or without an axis of fewer
    channels first or last; smaller grids of unsigned bytes, or bits, with an axis of channels through small_cnn; and
    all others through the mlp. It refuses a leaf that may or may not be an image of the larger kind.

    Args:
        space: observation space.
        torso: `auto` or a built-in torso.

    Raises:
        ModelError: the leaves and the torso do not fit, or a leaf may or may not be an image.

    Example:
        For a Dict with `camera`, uint8 [84, 84, 3], and `speed`, float32 [2], `auto` gives
        `{"obs.camera": "nature_cnn", "obs.speed": "mlp"}`.
    """
    chosen = {name: _net(name, leaf, torso) for name, leaf in leaves(space, "obs")}
    if torso not in ("auto", "mlp") and torso not in chosen.values():
        raise ModelError(f"model.torso {torso} needs an observation of two or three axes; use mlp or auto")
    return chosen


def described(leaf: Leaf) -> str:
    """Text for a leaf in a message or a table: `uint8 [84, 84, 3]`, `Discrete(4)`."""
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
    large = _large(leaf)
    image = Image.of(leaf)
    if torso == "auto" and not large and image is not None and _grid(leaf, image):
        return "small_cnn"
    if torso == "mlp" or (torso == "auto" and not large):
        return "mlp"
    if image is None and len(leaf.shape) > 3 and large:
        raise ModelError(_several_frames(name, leaf, torso))
    if torso != "auto":
        if torso == "nature_cnn" and image is not None and image.shortest < SMALLEST_NATURE_PIXELS:
            raise ModelError(
                f"{name}: nature_cnn needs images of at least {SMALLEST_NATURE_PIXELS}x{SMALLEST_NATURE_PIXELS}, "
                f"got {image.height}x{image.width}: use small_cnn, impala_cnn or mlp"
            )
        if torso == "small_cnn" and image is not None and image.shortest < KERNEL:
            raise ModelError(
                f"{name}: small_cnn needs images of at least {KERNEL}x{KERNEL}, got {image.height}x{image.width}: "
                "use mlp"
            )
        if image is not None and leaf.dtype.startswith(("int", "uint")) and leaf.dtype != "uint8" and wide(leaf):
            raise ModelError(
                f"{name}, {described(leaf)}, holds integers, which {torso} would see unscaled: return pixels as uint8, "
                "other numbers as float32; or use mlp"
            )
        return "mlp" if image is None else torso
    assert image is not None
    if not _bytes(leaf):
        raise ModelError(
            f"model.torso auto cannot know whether {name}, {described(leaf)}, is an image or a table (bytes from 0 to "
            "255 are taken for pixels): say `torso: mlp` for a table, nature_cnn or impala_cnn for an image; a table "
            "beside images goes through the mlp when it is flattened to one axis"
        )
    channels_known = image.channels // image.frames < SMALLEST_NATURE_PIXELS
    if not channels_known or image.shortest < SMALLEST_NATURE_PIXELS:
        raise ModelError(
            f"model.torso auto cannot know which axis of {name}, {described(leaf)}, holds the channels: say `torso: "
            "nature_cnn` or impala_cnn (equal neighbours are taken for rows and columns, of a cube the first two, else "
            "the shorter of the outer axes for the channels), or mlp for a table"
        )
    return "nature_cnn"


def wide(box: Box) -> bool:
    """True if numbers of the box may be further than 1 from 0."""
    bounds = [bound for pair in box.bounds() for bound in pair]
    return any(bound is None or abs(bound) > 1 for bound in bounds)


def coded(leaf: Leaf) -> int | None:
    """Axis of the channels of a small grid of bytes without narrower bounds than their type's, as MiniGrid's codes of
    objects, colours and states; None for any other leaf. Only the values show the range of the codes."""
    image = Image.of(leaf)
    if image is None or not isinstance(leaf, Box) or _large(leaf) or not (_grid(leaf, image) and _bytes(leaf)):
        return None
    return len(leaf.shape) - 1 if image.last else len(leaf.shape) - 3


def _large(box: Box) -> bool:
    """True if the box has two axes long enough for the sides of a picture."""
    return sum(size >= SMALLEST_NATURE_PIXELS for size in box.shape) >= 2


def _grid(box: Box, image: Image) -> bool:
    """True if a small array is a grid of cells of several channels each: unsigned bytes or bits of three axes, of which
    two are alike or long enough for rows and columns, or a stack of such."""
    outer, sides = box.outer(), (image.height, image.width)
    certain = image.height == image.width or image.channels // image.frames <= image.shortest
    small = image.shortest >= SMALLEST_GRID and max(sides) < SMALLEST_NATURE_PIXELS
    return box.dtype == "uint8" and outer.low in (None, 0) and len(box.shape) >= 3 and certain and small


def _bytes(box: Box) -> bool:
    """True if the numbers are bytes that use their whole range, as pixels do; a missing bound counts as whole."""
    outer = box.outer()
    return box.dtype == "uint8" and outer.low in (None, 0) and outer.high in (None, 255)


def _several_frames(name: str, box: Box, torso: str) -> str:
    """Message for an array that has more axes than an image."""
    first, *image = box.shape
    folded = f" as {[*image[:-1], first * image[-1]]}" if len(image) == 3 and image[-1] < image[0] else ""
    return (
        f"model.torso {torso} cannot know what {name}, {described(box)}, is; a stack of images has to show its frames "
        f"as further channels of one{folded}: wrap the environment so, or say `torso: mlp`, or name a network of your "
        "own, package.module:Class"
    )


def continuous(space: Space) -> bool:
    """True if an action holds real numbers."""
    return any(isinstance(leaf, Box) for _, leaf in leaves(space, "action"))


def require_distribution(space: Space, *, squash: bool) -> None:
    """Check that every leaf of an action has a distribution.

    Args:
        squash: `model.gaussian.squash`.

    Raises:
        ModelError: a Box holds integers, or an entry that is to be squashed has no two bounds.
    """
    for name, leaf in leaves(space, "action"):
        if not isinstance(leaf, Box):
            continue
        if not leaf.dtype.startswith("float"):
            raise ModelError(f"a Box action must hold real numbers, not {leaf.dtype}: use MultiDiscrete")
        if squash and not all(unit(low, high) for low, high in leaf.bounds()):
            raise ModelError(
                f"model.gaussian.squash needs two different finite bounds for every entry, and {name}, {leaf}, lacks "
                "some: say `squash: false`, or wrap the environment so that its actions have bounds"
            )


def unit(low: float | None, high: float | None) -> tuple[float, float] | None:
    """Centre and half the width of an entry's range; None if its bounds do not give both."""
    if low is None or high is None:
        return None
    scale = high / 2 - low / 2
    return (low / 2 + high / 2, scale) if SMALLEST_SCALE <= scale <= LARGEST_SCALE else None
