"""`rlctl eval`: a stored model plays whole episodes on this machine."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from rlctl.cli.context import World
from rlctl.cli.models.fetched import Code, ModelOrFolder, Seed, Verify, code_of, drawn, fetched
from rlctl.cli.models.player import played
from rlctl.cli.options import Target, verb
from rlctl.cli.text import number, table
from rlctl.errors import UsageError


class Mode(StrEnum):
    """Ways of choosing actions."""

    both = "both"
    greedy = "greedy"
    sample = "sample"


@verb("namespace", "context")
def evaluate(
    world: World,
    model: ModelOrFolder,
    episodes: Annotated[int, typer.Option("--episodes", metavar="N", help="Whole episodes in each mode.")] = 100,
    mode: Annotated[Mode, typer.Option("--mode", help="The most likely action, a sampled one, or both.")] = Mode.both,
    seed: Seed = None,
    code: Code = None,
    verify: Verify = None,
    target: Target = None,
) -> int:
    """Evaluate a stored model again, on this machine.

    The model plays whole episodes of the environment that its spec names, raw returns, on fresh seeds. The run may be
    live, over, or on a cluster: its model is copied first. The interval is of the mean: 95 %, percentile bootstrap.
    Exit 3 when the environment cannot be made, 7 with its traceback when it fails.
    """
    if not 1 <= episodes <= 1_000_000:
        raise UsageError(f"--episodes must be from 1 to 1,000,000, got {episodes}")
    seed = drawn(seed)
    modes = ["greedy", "sample"] if mode is Mode.both else [mode.value]
    results: dict[str, Any] = {}
    with fetched(world, model, target, verify) as (folder, name, origin):
        modules = code_of(origin, code)
        world.say(f"{name}: {episodes} episodes each, {' and '.join(modes)}, seed {seed}")
        question = {
            "folder": str(folder),
            "env": origin["spec"]["env"],
            "episodes": episodes,
            "modes": modes,
            "seed": seed,
            "envs": (origin["spec"].get("evaluation") or {}).get("envs"),
        }
        for answer in played("evaluate", question, modules, answers=len(modes)):
            results[answer.pop("mode")] = answer
    rows: list[tuple[str, ...]] = [("MODE", "MEAN", "95 %", "IQM", "STD", "LOWEST", "HIGHEST", "LENGTH", "EPISODES")]
    for name_of_mode, one in results.items():
        low, high = one["interval"]
        figures = [number(one[key]) for key in ("iqm", "std", "min", "max", "length")]
        span = f"{number(low)} to {number(high)}"
        rows.append((name_of_mode, number(one["mean"]), span, *figures, str(one["episodes"])))
    world.lines(table(rows))
    world.document({"model": name, "seed": seed, "results": results})
    return 0
