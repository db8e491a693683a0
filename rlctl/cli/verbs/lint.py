"""`rlctl lint`: every problem of a spec at once, and where each of its values comes from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlctl.cli.apply import spec_check
from rlctl.cli.context import ON_CLUSTERS, World
from rlctl.cli.models.initial import initial
from rlctl.cli.options import OptionalSpecs, Sets, verb
from rlctl.cli.run.prepare import load
from rlctl.cli.text import table
from rlctl.errors import SpecError, UsageError

if TYPE_CHECKING:
    from rlctl.probe import Probed
    from rlctl.spec import Loaded
    from rlctl.spec.yaml import Location


@verb()
def lint(
    world: World,
    specs: OptionalSpecs = None,
    sets: Sets = None,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of a spec, for editors.")] = False,
    show_origin: Annotated[
        bool, typer.Option("--show-origin", help="Print every value with the place that it comes from.")
    ] = False,
) -> int:
    """Report every problem of a spec at once. Alias: validate.

    Exit 3 when it is invalid, 1 when there are findings only, 0 when all is well. One line for every problem:
    file:line:column: path: what is wrong and what to do. Of a run on this machine the environment is made and reset,
    in a process of its own and for 5 seconds at most, 20 where torch is needed; the line says what goes through which
    net, or "not checked". So is the policy that a new run begins from (`init`), where it is of this machine: whether
    its arrays fit the network. What a replay comes to in memory is said, and compared with this machine, or with what
    its pods ask for.
    """
    if schema:
        from rlctl.spec import json_schema

        if specs:
            raise UsageError("--schema takes no spec", hint="rlctl lint --schema > rlctl.schema.json")
        world.raw(json.dumps(json_schema(), indent=2) + "\n")
        return 0
    try:
        loaded = load(world, specs or (), sets)
        with (
            initial(world, loaded, only_here=True) as policy,
            spec_check.started_check(world, loaded, policy, measure=True) as asked,
        ):
            answer = None if asked is None else asked.answer()
        probed = None if loaded.spec.target in ON_CLUSTERS else answer
        if probed is not None:
            spec_check.refuse(world, loaded, probed)
    except SpecError as error:
        for problem in error.problems:
            world.data(str(problem))
        world.complain(f"{error.message}: the spec is invalid")
        world.document({"error": error.as_plain(), "problems": error.problems})
        return error.exit_code
    values = [{"path": path, "value": value, "origin": where} for path, value, where in origins(loaded)]
    if show_origin:
        shown = [(entry["path"], json.dumps(entry["value"]), entry["origin"]) for entry in values]
        world.lines(table(shown))
    faults = [*(probed.missing if probed else ()), *spec_check.asks_too_little(loaded, answer)]
    findings = [*loaded.findings, *map(loaded.problem, faults)]
    for finding in findings:
        (world.complain if show_origin else world.data)(str(finding))
    _say_checked(world, loaded, probed, answer)
    if findings:
        count = len(findings)
        world.say(f"{count} finding{'s' if count != 1 else ''}: the spec is valid")
    else:
        world.say("the spec is valid")
    environment: dict[str, Any] = {"verdict": "not checked"} if probed is None else spec_check.as_plain(probed)
    if probed is None and answer is not None and answer.shard_bytes:
        environment["replay_shard_bytes"] = answer.shard_bytes
    world.document({"findings": findings, "environment": environment} | ({"values": values} if show_origin else {}))
    return int(bool(findings))


def _say_checked(world: World, loaded: Loaded, probed: Probed | None, answer: Probed | None) -> None:
    """Say which parts of a spec were checked, and which were not.

    Args:
        probed: result of the check of this machine; None for a cluster.
        answer: the same, also where it was made for a cluster, to measure its replay; None: there was no check.
    """
    if probed is None:
        world.say(f"not checked: {loaded.spec.env.id}: on a cluster it lives in the image")
    elif probed.verdict != "problem":
        world.say(f"{'checked' if probed.verdict == 'ok' else 'not checked'}: {probed.text}")
    if answer is not None and (text := spec_check.replay_memory(loaded, answer)):
        world.say(f"replay: {text}")
    elif answer is not None and probed is None:
        world.say(f"not checked: memory of the replay: {answer.text}")


def origins(loaded: Loaded) -> Iterator[tuple[str, Any, str]]:
    """Every value in the order of the schema: dotted path, value, and file:line, --set or default."""
    from rlctl.spec.fields import filled, hidden

    for path, value in _leaves(filled(loaded.spec).model_dump(mode="json"), ()):
        place = _place(loaded, path)
        if place is None and hidden(path):
            continue
        where = "default" if place is None else f"{place.file}:{place.line}" if place.line else place.file
        yield ".".join(map(str, path)), value, where


def _place(loaded: Loaded, path: tuple[str | int, ...]) -> Location | None:
    """Location of a value, or of the nearest mapping written around it; None for a default."""
    from rlctl.spec.yaml import nearest

    values: Any = loaded.values
    for key in path:
        if not isinstance(values, dict) or key not in values:
            return None
        values = values[key]
    return nearest(path, loaded.places)


def _leaves(value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    if isinstance(value, dict) and value:
        for key, below in value.items():
            yield from _leaves(below, (*path, key))
    else:
        yield path, value
