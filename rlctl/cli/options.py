"""Options shared by all verbs, and their shell completion."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from rlctl.cli.context import TARGETS, Output, WideOutput
from rlctl.errors import UsageError
from rlctl.spec.layout import state_home
from rlctl.spec.runs import run_index
from rlctl.spec.runs.run_index import Torn

ROLE_NAMES = ("manager", "modelpool", "replay", "learner", "actor", "evaluator")
"""Roles that a run of this release can have."""


def run_names() -> list[str]:
    """Recorded runs, from the names of the index files alone: completion has to answer at once."""
    try:
        return run_index.names()
    except (OSError, UsageError):
        return []


def sweep_names() -> list[str]:
    """Sweeps of this machine, from the names of their records alone."""
    try:
        return sorted(path.parent.name for path in (state_home() / "sweeps").glob("[!.]*/sweep.json"))
    except (OSError, UsageError):
        return []


def _recorded(key: str) -> list[str]:
    """Contexts or namespaces of recorded runs, from the index."""
    found = set()
    for name in run_names():
        with suppress(Torn):
            found.add(getattr(run_index.read(name), key, ""))
    return sorted(found - {""})


def _completion(words: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Shell completion: the words that begin with the text typed so far."""
    return lambda incomplete: [word for word in words() if word.startswith(incomplete)]


complete_run = _completion(run_names)
complete_sweep = _completion(sweep_names)
complete_compared = _completion(lambda: [*sweep_names(), *run_names()])
complete_namespace = _completion(lambda: _recorded("namespace"))
complete_context = _completion(lambda: _recorded("context"))
complete_page = _completion(lambda: ("tensorboard", "status"))
complete_role = _completion(lambda: ROLE_NAMES)
complete_scale = _completion(lambda: (f"{name}=" for name in ROLE_NAMES))
complete_target = _completion(lambda: TARGETS)
complete_condition = _completion(
    lambda: ("ready", "finished", "deleted", "steps=", "consumed_steps=", "updates=", "episodes=", "return>=")
)

Specs = Annotated[
    list[Path],
    typer.Argument(metavar="SPEC", help="Spec files, merged from left to right; - reads standard input."),
]
OptionalSpecs = Annotated[
    list[Path] | None,
    typer.Argument(metavar="SPEC", help="Spec files, merged from left to right; - reads standard input."),
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Change one value of the spec; repeatable, the last wins."),
]
RunArgument = Annotated[
    str | None,
    typer.Argument(metavar="RUN", help="The run; default: the only live one.", autocompletion=complete_run),
]
RunOption = Annotated[
    str | None,
    typer.Option("--run", metavar="NAME", help="The run; default: the only live one.", autocompletion=complete_run),
]
Target = Annotated[
    str | None,
    typer.Option(
        "--target", "-t",
        metavar="local|kubernetes",
        help="Where it runs; default: as recorded for the run, else local.",
        autocompletion=complete_target,
    ),
]  # fmt: skip
Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace", "-n",
        metavar="NAME",
        help="On a cluster; default: as recorded for the run, RLCTL_NAMESPACE, the context's.",
        autocompletion=complete_namespace,
    ),
]  # fmt: skip
Context = Annotated[
    str | None,
    typer.Option(
        "--context",
        metavar="NAME",
        help="Which cluster; default: as recorded for the run, RLCTL_CONTEXT, the kubeconfig's.",
        autocompletion=complete_context,
    ),
]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="How the answer is printed.")]
WideOutputOption = Annotated[WideOutput, typer.Option("--output", "-o", help="How the answer is printed.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Nothing on standard error but errors.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
TakeOver = Annotated[
    bool, typer.Option("--force-conflicts", help="Even if another user owns the run, or what is changed of it.")
]
Utc = Annotated[bool, typer.Option("--utc", help="Print times in UTC instead of the local zone.")]


def verb(*cluster: str, wide: bool = False) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Decorator that makes a command of a function of a `World`, with the options that all verbs share.

    Args:
        cluster: `namespace`, `context`, or both; on the command line they follow `target`.
        wide: -o has a wide table.

    Example:
        `@verb("namespace", "context")` before `def restart(world: World, role: ..., target: Target = None) -> int`
        gives `rlctl restart ROLE [-t TARGET] [-n NAME] [--context NAME] [-o FORMAT] [-q]`.
    """
    shared = {"namespace": Namespace, "context": Context, "output": WideOutputOption if wide else OutputOption}

    def option(name: str, annotation: Any, default: Any) -> inspect.Parameter:
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)

    def decorated(function: Callable[..., int]) -> Callable[..., int]:
        own = [
            one.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for one in inspect.signature(function, eval_str=True).parameters.values()
        ][1:]
        after = next((number for number, one in enumerate(own, 1) if one.name == "target"), len(own))
        own[after:after] = [option(name, shared[name], None) for name in cluster]
        before = len(own) - (bool(own) and own[-1].name == "utc")
        own[before:before] = [option("output", shared["output"], "table")]
        own.append(option("quiet", Quiet, False))
        context = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)

        @functools.wraps(function)
        def command(ctx: typer.Context, **given: Any) -> int:
            where = {name: given.pop(name) for name in cluster}
            return function(ctx.obj.setup(given.pop("output"), given.pop("quiet"), **where), **given)

        command.__signature__ = inspect.Signature([context, *own])  # type: ignore[attr-defined]
        command.__annotations__ = {one.name: one.annotation for one in (context, *own)}
        return command

    return decorated
