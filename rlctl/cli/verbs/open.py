"""`rlctl open`: a page of a run in the browser, for as long as the command runs."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

from rlctl.cli.apply.attach import Interrupts
from rlctl.cli.context import World
from rlctl.cli.options import (
    RunArgument,
    RunOption,
    Target,
    complete_page,
    verb,
)
from rlctl.cli.run.target import find, one_name

_LOOK_EVERY_S = 0.25
_SCREENS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
"""Environment variables of a screen: without one only a text browser is left, which would take over this terminal."""


class WebPage(StrEnum):
    """Pages of a run."""

    tensorboard = "tensorboard"
    status = "status"


@verb("namespace", "context")
def open_page(
    world: World,
    page: Annotated[
        WebPage, typer.Argument(metavar="tensorboard|status", help="Which page.", autocompletion=complete_page)
    ],
    run: RunArgument = None,
    run_option: RunOption = None,
    target: Target = None,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open it, when there is a terminal and a browser.")
    ] = True,
) -> int:
    """Open TensorBoard or the status page of a run.

    Prints a link that is good once, for one browser on this machine, which then sees the page for as long as the
    command runs: Ctrl-C ends it (exit 0). A port is forwarded when the run is on a cluster. A run of this machine that
    is over is shown from what it has stored.
    """
    backend, state = find(world, one_name(run, run_option), target)
    with backend.forward(state.run, page.value) as url, Interrupts() as interrupts:
        world.data(url)
        world.document({"run": state.run, "page": page.value, "url": url})
        if browser and not world.as_json and has_browser(world):
            world.browse(url)
        world.say("Ctrl-C ends it")
        while not interrupts.asked:
            world.sleep(_LOOK_EVERY_S)
    return 0


def has_browser(world: World) -> bool:
    """Whether a browser can be shown on this machine."""
    screen = sys.platform == "darwin" or any(world.environ.get(name) for name in _SCREENS)
    return world.is_terminal(world.stdout) and screen
