"""Stacks as files: a flame graph for any browser, and collapsed stacks for speedscope and others.

No library draws one from stacks without a viewer of megabytes or Perl; this is one page of SVG.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from rlctl_agents.manager.web.rendering import ENGINE
from rlctl_agents.runtime.profiling import MAIN

WIDTH, ROW, TOP, CHARACTER = 1200.0, 17.0, 44.0, 6.6
"""Pixels: width of the page, height of a row, space above the first row, width of a character."""
NARROWEST = 0.0005
"""Smallest width that is drawn, as a share of the whole: narrower boxes cannot be seen."""
_UNFIT = re.compile("[^\\t\\n\\r\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")  # for XML


class _Box(NamedTuple):
    name: str
    depth: int
    start: int  # microseconds, as `value`
    value: int

    def drawn(self, whole: int) -> dict[str, str]:
        """Template values of the box: its place in pixels in a graph of `whole` microseconds, its colour and texts."""
        x, width, y = WIDTH * self.start / whole, WIDTH * self.value / whole, TOP + ROW * self.depth
        room = int((width - 6) / CHARACTER)
        name = _UNFIT.sub("?", self.name)
        return {
            "x": f"{x:.2f}", "y": f"{y:g}", "width": f"{width:.2f}", "name": name, "colour": _colour(self.name),
            "told": f"{name}: {self.value / 1e6:.2f} s, {100 * self.value / whole:.1f} %",
            "shown": "" if room < 3 else name if len(name) <= room else f"{name[: room - 1]}…",
            "text_x": f"{x + 3:.2f}", "text_y": f"{y + 12:g}",
        }  # fmt: skip


class _Node:
    def __init__(self) -> None:
        self.value = 0
        self.below: dict[str, _Node] = {}


def collapsed(stacks: Mapping[tuple[str, ...], int]) -> str:
    """One line per stack: names joined by semicolons, outermost first, and microseconds."""
    return "".join(f"{';'.join(stack)} {us}\n" for stack, us in sorted(stacks.items(), key=_main_first))


def svg(stacks: Mapping[tuple[str, ...], int], title: str) -> str:
    """Flame graph from the top down: width is time, a function is below its caller; a click enlarges it.

    Args:
        stacks: thread, outermost function, ..., innermost -> microseconds.
        title: text above it.
    """
    boxes = list(_boxes(_tree(stacks), "all threads", 0, 0, 0))
    whole = max(boxes[0].value, 1)
    height = TOP + ROW * (1 + max(box.depth for box in boxes)) + 8
    return ENGINE.get_template("flame.svg.j2").render(
        boxes=[box.drawn(whole) for box in boxes if box.depth == 0 or box.value >= NARROWEST * whole],
        title=_UNFIT.sub("?", title), width=f"{WIDTH:g}", height=f"{height:g}", row=f"{ROW - 1:g}", letter=CHARACTER,
    )  # fmt: skip


def _tree(stacks: Mapping[tuple[str, ...], int]) -> _Node:
    root = _Node()
    for stack, us in stacks.items():
        node = root
        node.value += us
        for name in stack:
            node = node.below.setdefault(name, _Node())
            node.value += us
    return root


def _boxes(node: _Node, name: str, depth: int, start: int, least: int) -> Iterator[_Box]:
    least = least or int(NARROWEST * node.value)
    yield _Box(name, depth, start, node.value)
    for below, child in sorted(node.below.items(), key=lambda one: (one[0] != MAIN, one[0])):
        if child.value >= least:
            yield from _boxes(child, below, depth + 1, start, least)
        start += child.value


def _colour(name: str) -> str:
    """Colour of a function's file, the same in every graph."""
    number = hashlib.sha256(name.partition(" (")[2].partition(":")[0].encode()).digest()
    return f"hsl({10 + number[0] * 50 // 256},{60 + number[1] * 30 // 256}%,{68 + number[2] * 12 // 256}%)"


def _main_first(one: tuple[tuple[str, ...], int]) -> tuple[bool, tuple[str, ...]]:
    return one[0][0] != MAIN, one[0]
