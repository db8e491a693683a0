"""All commands, put together."""

from __future__ import annotations

import functools
from typing import Annotated, Any

import typer
import typer.core

from rlctl.cli import ci
from rlctl.cli.context import Signalled
from rlctl.cli.verbs import (
    compare,
    debug,
    doctor,
    down,
    eval,
    export,
    history,
    image,
    init,
    lint,
    logs,
    models,
    open,
    play,
    profile,
    pull,
    repro,
    restart,
    scale,
    show,
    status,
    sweep,
    up,
    version,
    wait,
)

EXIT_CODES = """\b
Exit codes:
    0  done; for a wait or a status: yes
    1  the answer is no: differences, findings, unhealthy, no match, false
    2  the command line is wrong, or does not say which run
    3  the spec or a template is invalid
    4  the target does not answer, or refuses us
    5  conflict: held by another command, or the change needs a new run
    6  timed out; what was applied stays
    7  the run failed
    8  partly applied; the same command again goes on
    9  refused: needs --yes or --force
   70  a bug in rlctl; the traceback is in a file whose path is printed
  129  ended by a hangup, 130 by Ctrl-C, 143 by SIGTERM
  141  the reader of a pipe has gone
"""


SECTIONS = {
    "A spec": ("init", "lint", "debug", "render", "diff"),
    "A run": ("up", "status", "logs", "wait", "open", "profile", "scale", "restart", "history", "rollback", "down"),
    "What it learned": ("models", "eval", "play", "pull", "export", "repro"),
    "Many runs": ("sweep", "compare"),
    "Targets and images": ("doctor", "image", "ci", "version"),
}
"""Commands by heading, as `rlctl --help` lists them."""


class _Group(typer.core.TyperGroup):
    """Commands under headings. Ctrl-C is left to `main` to report, whatever the version of typer makes of it."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for heading, names in SECTIONS.items():
            with formatter.section(heading):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(80)) for name in names])

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Signalled(130) from None


def _root(
    version_: Annotated[
        bool, typer.Option("--version", callback=version.print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """One spec file runs a distributed reinforcement-learning training."""


@functools.cache
def make_command() -> Any:
    """The command line as one object, with `main(arguments, ...)`."""
    app = typer.Typer(
        cls=_Group,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    app.callback(epilog=EXIT_CODES)(_root)
    for verb in (
        init.init, lint.lint, debug.debug, show.render, show.diff, up.up,
        status.status, logs.logs, wait.wait, profile.profile,
        models.models, pull.pull, export.export, play.play, compare.compare,
        repro.repro,
        scale.scale, restart.restart, history.history, history.rollback, doctor.doctor, down.down, version.version,
    ):  # fmt: skip
        app.command()(verb)
    app.command("open")(open.open_page)
    app.command("eval")(eval.evaluate)
    app.add_typer(sweep.app, name="sweep")
    app.add_typer(image.app, name="image")
    app.add_typer(ci.app, name="ci")
    for alias, verb in (("ps", status.status), ("validate", lint.lint)):
        app.command(alias, hidden=True)(verb)
    return typer.main.get_command(app)
