"""Live settings: the manager's part of the spec, read again while the run goes on."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from rlctl.spec.layout import Layout
from rlctl.spec.schema import Spec
from rlctl_agents.runtime.process import Arguments, RunFile, UserFault, parse_spec
from rlctl_agents.runtime.storage import read_file, replace_file

log = logging.getLogger(__name__)

GIVEN = "replicas.json"


class Given(msgspec.Struct, frozen=True):
    """results/replicas.json: numbers of replicas that /reload brought, where live.json has others.

    On a cluster nobody writes live.json for a `scale`, and a manager that is started again reads it.
    """

    replicas: dict[str, int] = {}  # role -> as given
    instead_of: dict[str, int] = {}  # role -> as live.json had it then

    def over(self, live: Mapping[str, Any]) -> dict[str, Any]:
        """Values of live.json with what was given, for roles of which it still says what it said then."""
        now = replicas(live)
        held = {role: count for role, count in self.replicas.items() if now.get(role) == self.instead_of.get(role)}
        return merged(live, {"roles": {role: {"replicas": count} for role, count in held.items()}})


class LiveSettings:
    """The manager's part of the spec, as it is now.

    Args:
        arguments: name the run file, live.json, and the volume.
    """

    def __init__(self, arguments: Arguments) -> None:
        self._arguments = arguments
        self._live: Mapping[str, Any] | None = None  # what /reload brought last
        self._stored = None if arguments.volume is None else Layout(arguments.volume).results / GIVEN

    def read(self) -> Spec:
        """Settings with the live values that were given last.

        Raises:
            ValueError: it cannot be used.
        """
        return self.reload(self._live)

    def reload(self, live: Mapping[str, Any] | None) -> Spec:
        """Settings with other live values; None: those of live.json.

        Raises:
            ValueError: it cannot be used, or its numbers cannot be stored; nothing is changed then.
        """
        try:
            before = self._given() if live is None else None
            found = settings(self._arguments.run_file, self._arguments.live, live, before)
            if live is not None and live is not self._live:
                self._store(live)
        except UserFault as fault:
            raise ValueError(str(fault)) from fault
        self._live = live
        return found

    def _given(self) -> Given:
        try:
            data = None if self._stored is None else read_file(self._stored)
            return Given() if data is None else msgspec.json.decode(data, type=Given)
        except (msgspec.MsgspecError, OSError) as error:
            log.error("%s: %s: replicas are as the spec has them until `rlctl scale` again", self._stored, error)
            return Given()

    def _store(self, live: Mapping[str, Any]) -> None:
        if self._stored is None or self._arguments.live is None:
            return
        mounted = replicas(in_file(self._arguments.live))
        others = {role: count for role, count in replicas(live).items() if count != mounted.get(role, count)}
        data = msgspec.json.encode(Given(others, {role: mounted[role] for role in others}))
        try:
            if (before := read_file(self._stored)) != data and (others or before is not None):
                replace_file(self._stored, data, durable=True)
        except OSError as error:
            raise UserFault(f"{self._stored} cannot be stored: {error.strerror}") from error


def in_file(live: Path) -> dict[str, Any]:
    """Values of live.json.

    Raises:
        UserFault: it cannot be read.
    """
    try:
        found = json.loads(live.read_bytes())
    except (OSError, ValueError) as error:
        raise UserFault(f"{live}: {error}") from error
    if not isinstance(found, dict):
        raise UserFault(f"{live}: must hold an object")
    return found


def replicas(live: Mapping[str, Any]) -> dict[str, int]:
    """Example: {"roles": {"replay": {"replicas": 2}}} -> {"replay": 2}."""
    roles = live.get("roles")
    found = roles.items() if isinstance(roles, dict) else ()
    return {role: one["replicas"] for role, one in found if isinstance(one, dict) and type(one.get("replicas")) is int}


def settings(
    run_file: Path, live: Path | None, given: Mapping[str, Any] | None = None, before: Given | None = None
) -> Spec:
    """The manager's part of the spec: values that restart it from the run file, live ones from live.json.

    Args:
        given: instead of what live.json holds: a mounted file may be a minute late.
        before: numbers that were given in an earlier life, where live.json has not changed since.

    Raises:
        UserFault: one of them cannot be used.
    """
    values = RunFile.read(run_file, "manager").spec
    source, now = live or run_file, given
    if now is None and live is not None:
        now = (before or Given()).over(in_file(live))
    if now is not None:
        if not isinstance(now, dict):
            raise UserFault("live: must hold an object")
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
