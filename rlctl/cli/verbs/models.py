"""`rlctl models`: the models that a run has stored."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from rlctl.cli.context import World
from rlctl.cli.models.listing import StoredModel, stored_models, warn
from rlctl.cli.options import RunArgument, RunOption, Target, Utc, verb
from rlctl.cli.run.target import find, one_name
from rlctl.cli.text import count, moment_of, number, rfc3339, table


@verb("namespace", "context")
def models(
    world: World,
    run: RunArgument = None,
    run_option: RunOption = None,
    target: Target = None,
    utc: Utc = False,
) -> int:
    """List the models that a run has stored.

    Each with its evaluations. goal is the model that reached the goal, confirmed on fresh seeds; best the one with the
    highest evaluation so far; a number is a generation, from which the run would go on. `rlctl pull RUN@best DIR`
    copies one.
    """
    backend, state = find(world, one_name(run, run_option), target)
    with backend.stored_files(state.run) as files:
        stored = stored_models(files)
    warn(stored, world.complain)
    found = stored.models
    rows: list[tuple[str, ...]] = [("MODEL", "POLICY", "VERSION", "STEPS", "GREEDY", "SAMPLED", "STORED", "SIZE")]
    for one in found:
        when = moment_of(one.created, utc=utc)
        measured = [_shown(one.evaluations.get(mode)) for mode in ("greedy", "sample")]
        rows.append((one.name, one.policy, str(one.version), count(one.steps), *measured, when, f"{count(one.bytes)}B"))
    if found:
        world.lines(table(rows))
    elif not stored.damaged:
        world.say(f"run {state.run} has stored no model yet: checkpoint.every or an evaluation brings the first")
    world.document({"run": state.run, "models": [as_plain(one) for one in found]})
    return 0


def as_plain(model: StoredModel) -> dict[str, Any]:
    """Record of a model for `-o json`."""
    created = rfc3339(datetime.fromtimestamp(model.created, UTC))
    return {
        "name": model.name, "policy": model.policy, "lineage": model.lineage, "version": model.version,
        "agent_steps": model.steps, "created": created, "bytes": model.bytes, "evaluations": model.evaluations,
        "files": [f"{model.folder}/{name}" for name in (model.description, model.tensors)],
    }  # fmt: skip


def _shown(evaluation: Mapping[str, Any] | None) -> str:
    """`487.3 ± 21 (100)`: mean and standard deviation over so many episodes."""
    if evaluation is None:
        return "-"
    return f"{number(evaluation['mean'])} ± {number(evaluation['std'])} ({evaluation['episodes']})"
