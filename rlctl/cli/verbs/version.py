"""`rlctl version`."""

from __future__ import annotations

import platform

import typer

from rlctl import __version__
from rlctl.cli.context import Output, World
from rlctl.cli.options import OutputOption, Quiet


def print_version(wanted: bool) -> None:
    """Callback of the root's --version."""
    if wanted:
        typer.echo(f"rlctl {__version__}")
        raise typer.Exit


def version(ctx: typer.Context, output: OutputOption = Output.table, quiet: Quiet = False) -> None:
    """Print the version of rlctl and of Python."""
    world: World = ctx.obj.setup(output, quiet)
    world.data(f"rlctl {__version__}, Python {platform.python_version()}")
    world.document({"rlctl": __version__, "python": platform.python_version()})
