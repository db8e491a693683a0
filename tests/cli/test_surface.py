"""The whole surface, frozen: later releases add and change nothing; `RLCTL_REWRITE_GOLDEN=1` stores an addition."""

import json
import signal
from datetime import UTC, datetime
from typing import Any

from rlctl import errors
from rlctl.backends.base import Failure
from rlctl.cli.app import SECTIONS, make_command
from tests.cli.clusters import Clusters
from tests.cli.conftest import Rlctl, check_golden
from tests.cli.experiments.training import Training

FAILURE = Failure(
    process="actor/1",
    text="actor 1 exited 1 after 00:03:12: EnvError: step returned NaN reward (pong, seed 41, step 20184)",
    last_lines=("stepping", "EnvError: step returned NaN reward"),
    at=datetime(2026, 11, 21, 4, 3, 12, tzinfo=UTC),
    stopped_because=("actor/0", "learner/0"),
)


def described(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        many, needed = "..." if parameter.nargs == -1 else "", "" if parameter.required else " (optional)"
        return f"  {parameter.metavar}{many}{needed}"
    choices = getattr(parameter.type_descriptor, "choices", None) or ()
    value = "" if parameter.is_flag else " VALUE"
    default = (
        "" if parameter.default in (None, False) else f" = {getattr(parameter.default, 'value', parameter.default)}"
    )
    allowed = f" ({'|'.join(choice.value for choice in choices)})" if choices else ""
    return f"  {' '.join([*parameter.opts, *parameter.secondary_opts])}{value}{allowed}{default}"


def test_commands_options_and_exit_codes_are_the_frozen_ones(rlctl: Rlctl) -> None:
    root = make_command()
    lines = ["rlctl", *sorted(described(parameter) for parameter in root.params)]
    for name, command in sorted(root.commands.items()):
        lines += ["", f"{name}{' (alias)' if command.hidden else ''}", *map(described, command.params)]
        for inner, below in sorted(getattr(command, "commands", {}).items()):
            lines += ["", f"{name} {inner}", *map(described, below.params)]
    lines += ["", "exit codes"]
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.RlctlError)]
    lines += [f"  {code} {reason}" for code, reason in sorted({(kind.exit_code, kind.reason) for kind in kinds})]
    check_golden("surface.txt", "\n".join(lines) + "\n", folder=rlctl.folder)


def test_the_help_lists_every_command_under_one_heading() -> None:
    visible = [name for name, command in make_command().commands.items() if not command.hidden]
    assert sorted(name for names in SECTIONS.values() for name in names) == sorted(visible)


def test_the_help_documents_every_exit_code(rlctl: Rlctl) -> None:
    shown = rlctl("--help").out
    for code in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 70, 129, 130, 141, 143):
        assert f" {code} " in shown


def test_every_command_has_a_help_of_its_own(rlctl: Rlctl) -> None:
    for name, command in make_command().commands.items():
        assert command.help, name
        assert len(command.help.split("\n")[0]) <= 60, f"{name}: its first line is cut in `rlctl --help`"
        assert rlctl(name, "--help").code == 0


def test_without_arguments_the_help_is_printed(rlctl: Rlctl) -> None:
    assert rlctl().out == rlctl("--help").out


def shape(value: Any) -> Any:
    """JSON with names of types in place of values."""
    if isinstance(value, dict):
        return {key: shape(below) for key, below in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return type(value).__name__


def test_the_json_of_every_verb_has_the_frozen_shape(rlctl: Rlctl) -> None:
    shapes = {}

    def note(name: str, *arguments: str, code: int = 0) -> None:
        result = rlctl(*arguments, "-o", "json")
        assert result.code == code, result.err
        assert result.json["apiVersion"] == "rlctl/v1"
        shapes[name] = shape(result.json)

    note("version", "version")
    note("init", "init", str(rlctl.folder / "new"))
    note("init --list", "init", "--list")
    note("lint", "lint", rlctl.spec)
    note("lint --show-origin", "lint", rlctl.spec, "--show-origin")
    note("lint, invalid", "lint", rlctl.spec, "--set", "seed=x", code=3)
    note("render", "render", rlctl.spec)
    note("up", "up", rlctl.spec, "-d")
    note("status, starting", "status")
    rlctl.report()
    note("status", "status")
    note("status --all", "status", "--all")
    note("history", "history")
    note("doctor", "doctor")
    note("up --dry-run", "up", rlctl.spec, "--dry-run", "client", "--set", "algorithm.lr=2e-3")
    note("diff", "diff", rlctl.spec, "--set", "algorithm.lr=2e-3", code=1)
    rlctl("up", rlctl.spec, "-d", "--set", "algorithm.lr=2e-3")
    note("rollback", "rollback")
    rlctl.report()
    rlctl.at(rlctl.time_s + 1, lambda: signal.raise_signal(signal.SIGINT))
    note("open", "open", "status")
    note("models", "models")
    note("scale", "scale", "actor=3")
    note("restart", "restart", "learner")
    found = {"state": "done", "process": "learner/0", "seconds": 9.9, "samples": 99, "threads": {"MainThread": 7.5}}
    found |= {"why": "", "files": ["results/profiles/p.svg"], "svg": "", "collapsed": ""}
    rlctl.backend.answer("pole", "/profile", {"id": "p", "process": "learner/0", "within_s": 40.0})
    rlctl.backend.answer("pole", "/profiles?id=p", found)
    note("profile", "profile", "learner")
    note("wait", "wait", "--for", "steps=1000")
    rlctl.log("actor/0", "said", a=1)
    note("logs", "logs")
    rlctl.backend.fail("pole", FAILURE)
    note("status, failed", "status")
    note("down", "down")
    note("down --volumes", "down", "--volumes", "--yes")
    Training(rlctl, lambda state, look: float(look))
    note("sweep", "sweep", rlctl.spec, "--seeds", "2", "--name", "swept")
    note("sweep list", "sweep", "list")
    note("compare", "compare", "swept")
    note("sweep stop", "sweep", "stop", "swept")
    note("sweep clean", "sweep", "clean", "swept", "--yes")
    clusters = Clusters(rlctl)
    note("render --admin", "render", "--admin", "-n", "team", "--user", "ann")
    note("up --dry-run client, on a cluster", "up", clusters.spec, "--dry-run", "client")
    note("error", "status", code=2)
    check_golden("json_shapes.json", json.dumps(shapes, indent=1) + "\n", folder=rlctl.folder)
