"""Questions about spaces."""

from __future__ import annotations

import pytest

from rlctl_agents.types.spaces import Box, Dict, Discrete, Space, has_images


@pytest.mark.parametrize(
    ("space", "images"),
    [
        (Box((4,), "float32"), False),
        (Box((4, 4), "float32"), False),  # four stacked vectors
        (Box((84, 84), "uint8", 0, 255), True),
        (Box((10, 10, 4), "bool"), True),
        (Box((84, 84, 3), "float32"), True),
        (Dict({"speed": Box((2,), "float32"), "camera": Box((36, 36), "uint8", 0, 255)}), True),
        (Discrete(3), False),
    ],
)
def test_an_image_has_three_axes_or_two_of_bytes_or_bits(space: Space, images: bool) -> None:
    assert has_images(space) is images
