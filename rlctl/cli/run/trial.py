"""The trial of a spec's environment, networks and algorithms on this machine: begun, told, and as an end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rlctl.cli.context import ON_CLUSTERS, World
from rlctl.errors import SpecError

if TYPE_CHECKING:
    from rlctl.backends.base import Check
    from rlctl.cli.models.initial import Initial
    from rlctl.probe import Probed, Probing
    from rlctl.spec import Loaded


@contextmanager
def begun(world: World, loaded: Loaded, initial: Initial | None = None) -> Iterator[Probing | None]:
    """The child, started; its answer is fetched with `answer`. None on a cluster, where all of it lies in the image.

    Args:
        initial: the policy that the run begins with, which has to fit its network.
    """
    if loaded.spec.target in ON_CLUSTERS:
        yield None
        return
    with world.probe(loaded.spec, loaded.base, {} if initial is None else initial.plain()) as probing:
        yield probing


def refuse(loaded: Loaded, probed: Probed) -> None:
    """
    Raises:
        SpecError: the spec names what is not there, or what does not fit.
    """
    if probed.faults:
        raise SpecError([loaded.problem(fault) for fault in probed.faults])


def as_checks(loaded: Loaded, probed: Probed) -> list[Check]:
    """As `up` shows it beside the other things that it has looked at."""
    from rlctl.backends.base import Check
    from rlctl.spec.problems.findings import trackers_missing

    missing = (*probed.missing, *trackers_missing(loaded.spec))
    lacking = [Check("packages", "problem", str(loaded.problem(fault))) for fault in missing]
    return lacking or [Check("environment", "ok" if probed.verdict == "ok" else "not checked", probed.text)]


def as_plain(probed: Probed) -> dict[str, Any]:
    """For `-o json`."""
    return {"verdict": probed.verdict, "text": probed.text, "inputs": probed.inputs}
