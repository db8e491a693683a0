"""`rlctl version`."""

from __future__ import annotations

import platform

import typer

from rlctl import __version__
from rlctl.cli.context import World
from rlctl.cli.options import verb


def print_version(wanted: bool) -> None:
    """Callback of the root's --version."""
    if wanted:
        typer.echo(f"rlctl {__version__}")
        raise typer.Exit


@verb()
def version(world: World) -> int:
    """Print the version of rlctl and of Python."""
    world.data(f"rlctl {__version__}, Python {platform.python_version()}")
    world.document({"rlctl": __version__, "python": platform.python_version()})
    return 0
