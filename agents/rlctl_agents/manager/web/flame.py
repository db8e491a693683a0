"""Stacks as files: a flame graph that any browser shows, and collapsed stacks, which speedscope and others read.

No library draws one from stacks without bringing a viewer of megabytes or Perl along; this is one page of SVG.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from html import escape
from typing import NamedTuple

from rlctl_agents.runtime.profiling import MAIN

WIDTH, ROW, TOP, CHARACTER = 1200.0, 17.0, 44.0, 6.6
"""Pixels: of the page, of a row, above the first row, of a letter."""
NARROWEST = 0.0005
"""Of the whole; what is narrower cannot be seen, and is not drawn."""
_UNFIT = re.compile("[^\\t\\n\\r\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")  # for XML

_SCRIPT = """
const all=[...document.querySelectorAll('g')].map(g=>({g,r:g.children[1],t:g.children[2],n:g.dataset.n,
x:+g.children[1].getAttribute('x'),y:+g.children[1].getAttribute('y'),w:+g.children[1].getAttribute('width')}));
function zoom(to){for(const o of all){
const above=o.y<to.y&&o.x<=to.x+.01&&o.x+o.w>=to.x+to.w-.01,inside=o.x>=to.x-.01&&o.x+o.w<=to.x+to.w+.01;
o.g.style.display=above||inside?'':'none';if(!above&&!inside)continue;
const f=WIDTH/to.w,x=above?0:(o.x-to.x)*f,w=above?WIDTH:o.w*f,k=Math.floor((w-6)/LETTER);
o.r.setAttribute('x',x);o.r.setAttribute('width',w);o.r.style.opacity=above?.5:1;
o.t.setAttribute('x',x+3);o.t.textContent=k<3?'':o.n.length<=k?o.n:o.n.slice(0,k-1)+'…';}}
for(const o of all)o.g.addEventListener('click',()=>zoom(o));
"""


class _Box(NamedTuple):
    name: str
    depth: int
    start: int  # microseconds, as the width
    value: int


class _Node:
    def __init__(self) -> None:
        self.value = 0
        self.below: dict[str, _Node] = {}


def collapsed(stacks: Mapping[tuple[str, ...], int]) -> str:
    """One line a stack: names joined by semicolons, outermost first, and microseconds."""
    return "".join(f"{';'.join(stack)} {us}\n" for stack, us in sorted(stacks.items(), key=_main_first))


def svg(stacks: Mapping[tuple[str, ...], int], title: str) -> str:
    """A flame graph from the top down: width is time, a function stands below whoever called it; a click enlarges it.

    Args:
        stacks: thread, outermost function, ..., innermost -> microseconds.
        title: stands above it.
    """
    boxes = list(_boxes(_tree(stacks), "all threads", 0, 0, 0))
    whole = max(boxes[0].value, 1)
    height = TOP + ROW * (1 + max(box.depth for box in boxes)) + 8
    drawn = [_draw(box, whole) for box in boxes if box.depth == 0 or box.value >= NARROWEST * whole]
    script = _SCRIPT.replace("WIDTH", f"{WIDTH:g}").replace("LETTER", f"{CHARACTER:g}")
    return "\n".join(
        [
            '<?xml version="1.0" encoding="UTF-8"?>',
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {height:g}" font-family="monospace" '
            'font-size="11">',
            "<style>g{cursor:pointer} g:hover rect{stroke:#000} rect{stroke:#fff;stroke-width:.5}</style>",
            f'<rect width="100%" height="100%" fill="#fff"/><text x="4" y="16" font-size="14">{_text(title)}</text>',
            '<text x="4" y="34" fill="#555">wall time, waiting included; a click enlarges, one on the top row shows '
            "all</text>",
            *drawn,
            f"<script><![CDATA[{script}]]></script>",
            "</svg>\n",
        ]
    )


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


def _draw(box: _Box, whole: int) -> str:
    x, width, y = WIDTH * box.start / whole, WIDTH * box.value / whole, TOP + ROW * box.depth
    room = int((width - 6) / CHARACTER)
    shown = "" if room < 3 else box.name if len(box.name) <= room else box.name[: room - 1] + "…"
    told = f"{box.name}: {box.value / 1e6:.2f} s, {100 * box.value / whole:.1f} %"
    return (
        f'<g data-n="{_text(box.name)}"><title>{_text(told)}</title>'
        f'<rect x="{x:.2f}" y="{y:g}" width="{width:.2f}" height="{ROW - 1:g}" fill="{_colour(box.name)}"/>'
        f'<text x="{x + 3:.2f}" y="{y + 12:g}">{_text(shown)}</text></g>'
    )


def _colour(name: str) -> str:
    """The same function has the same one, in every graph."""
    number = hashlib.sha256(name.partition(" (")[2].partition(":")[0].encode()).digest()
    return f"hsl({10 + number[0] * 50 // 256},{60 + number[1] * 30 // 256}%,{68 + number[2] * 12 // 256}%)"


def _main_first(one: tuple[tuple[str, ...], int]) -> tuple[bool, tuple[str, ...]]:
    return one[0][0] != MAIN, one[0]


def _text(text: str) -> str:
    return escape(_UNFIT.sub("?", text))
