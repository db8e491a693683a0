"""Live settings: the manager's part of the spec, read again while the run goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlctl.spec.schema import Spec
from rlctl_agents.runtime.process import Arguments, RunFile, UserFault, parse_spec


class LiveSettings:
    """The manager's part of the spec, as it is now.

    Args:
        arguments: name the run file, and live.json.
    """

    def __init__(self, arguments: Arguments) -> None:
        self._arguments = arguments
        self._live: Mapping[str, Any] | None = None  # what /reload brought last

    def read(self) -> Spec:
        """Settings with the live values that were given last.

        Raises:
            ValueError: it cannot be used.
        """
        return self.reload(self._live)

    def reload(self, live: Mapping[str, Any] | None) -> Spec:
        """Settings with other live values; None: those of live.json.

        Raises:
            ValueError: it cannot be used; nothing is changed then.
        """
        try:
            found = settings(self._arguments.run_file, self._arguments.live, live)
        except UserFault as fault:
            raise ValueError(str(fault)) from fault
        self._live = live
        return found


def settings(run_file: Path, live: Path | None, given: Mapping[str, Any] | None = None) -> Spec:
    """The manager's part of the spec: values that restart it from the run file, live ones from live.json.

    Args:
        given: instead of what live.json holds: a mounted file may be a minute late.

    Raises:
        UserFault: one of them cannot be used.
    """
    values = RunFile.read(run_file, "manager").spec
    source, now = live or run_file, given
    if given is None and live is not None:
        try:
            now = json.loads(live.read_bytes())
        except (OSError, ValueError) as error:
            raise UserFault(f"{live}: {error}") from error
    if now is not None:
        if not isinstance(now, dict):
            raise UserFault(f"{source if given is None else 'live'}: must hold an object")
        values = merged(values, now)
    return parse_spec(values, source)


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Both trees; where both have a leaf, the one above."""
    found = dict(below)
    for key, value in above.items():
        here = found.get(key)
        found[key] = merged(here, value) if isinstance(here, dict) and isinstance(value, dict) else value
    return found


def changes(old: Spec, new: Spec) -> list[str]:
    """Values that apply live and are not as before, in words."""
    found = []
    for section in ("stop", "evaluation", "checkpoint"):
        before, now = getattr(old, section).model_dump(), getattr(new, section).model_dump()
        found += [f"{section}.{key}: {before[key]} -> {now[key]}" for key in now if now[key] != before[key]]
    return found
