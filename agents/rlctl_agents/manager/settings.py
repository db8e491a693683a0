"""Live settings: the manager's part of the spec, reloaded while the run goes on."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from rlctl.spec.schema import Spec
from rlctl_agents.runtime.process import RunFile, UserFault, parse_spec
from rlctl_agents.runtime.storage import read_file, replace_file

log = logging.getLogger(__name__)

SCALED = "replicas.json"


class Scaled(msgspec.Struct, frozen=True):
    """Content of results/replicas.json: numbers of replicas that `rlctl scale` set and live.json does not have.

    On a cluster, `scale` does not write live.json, which is what a restarted manager reads.
    """

    replicas: dict[str, int] = {}  # role -> number that was set
    instead_of: dict[str, int] = {}  # role -> number in live.json at that time

    @classmethod
    def instead(cls, given: Mapping[str, Any], live: Mapping[str, Any]) -> Scaled:
        """Numbers given with /reload that differ from those of live.json."""
        mounted = replicas(live)
        others = {role: count for role, count in replicas(given).items() if count != mounted.get(role, count)}
        return cls(others, {role: mounted[role] for role in others})

    def held(self, live: Mapping[str, Any]) -> Scaled:
        """Entries of roles whose number in live.json has not changed since."""
        now = replicas(live)
        roles = [role for role, count in self.instead_of.items() if now.get(role) == count]
        return Scaled({role: self.replicas[role] for role in roles}, {role: now[role] for role in roles})

    def over(self, live: Mapping[str, Any]) -> dict[str, Any]:
        """Values of live.json, with these numbers in place of its own."""
        return merged(live, {"roles": {role: {"replicas": count} for role, count in self.replicas.items()}})


class LiveSettings:
    """Present settings: the manager's part of the spec.

    Args:
        run_file: holds the static values.
        live: live.json, with the values that may change; on a cluster it may be a minute late.
        stored: replicas.json of the run.
    """

    def __init__(self, run_file: Path, live: Path, stored: Path) -> None:
        self._run_file, self.mounted, self._stored = run_file, live, stored
        self._live: Mapping[str, Any] | None = None  # values of the newest /reload
        self._now: Mapping[str, Any] | None = None  # live values in force
        self._before: Mapping[str, Any] | None = None  # the same before the newest reload
        self._overwritten: bytes | None = None  # by the newest reload, of replicas.json

    def read(self) -> Spec:
        """Settings with the newest live values.

        Raises:
            ValueError: they cannot be used.
        """
        return self.reload(self._live)

    def reload(self, live: Mapping[str, Any] | None) -> Spec:
        """Settings with other live values; None: those of live.json.

        Raises:
            ValueError: they cannot be used, or the numbers of replicas cannot be stored; nothing is changed then.
        """
        self._overwritten = None
        try:
            now = self._in_place() if live is None else live
            found = self._with(now)
            if live is not None and live is not self._live:
                self._store(Scaled.instead(live, in_file(self.mounted)))
        except (UserFault, OSError) as fault:
            raise ValueError(str(fault)) from fault
        self._live, self._before, self._now = live, self._now, now
        return found

    def take_back(self) -> None:
        """Undo the newest reload, which the run refuses: what held before it holds on, whatever live.json says now."""
        self._live = self._now = self._before
        if self._overwritten is not None:
            try:
                replace_file(self._stored, self._overwritten, durable=True)
            except OSError as error:
                log.error("%s holds numbers that were refused: %s", self._stored, error)

    def _with(self, live: Mapping[str, Any]) -> Spec:
        """Static values of the run file, below live ones."""
        if not isinstance(live, dict):
            raise UserFault("live: must hold an object")
        return parse_spec(merged(RunFile.read(self._run_file, "manager").spec, live), self.mounted)

    def _in_place(self) -> dict[str, Any]:
        """Values of live.json, with the numbers of replicas that were set since it was written."""
        values = in_file(self.mounted)
        try:
            data = read_file(self._stored)
            scaled = Scaled() if data is None else msgspec.json.decode(data, type=Scaled)
            held = scaled.held(values)
            self._store(held)  # a number that live.json has changed once is overridden no more, even if it changes back
        except (msgspec.MsgspecError, OSError) as error:
            log.error("%s: %s: replicas are as the spec has them until `rlctl scale` again", self._stored, error)
            return values
        return held.over(values)

    def _store(self, scaled: Scaled) -> None:
        before, data = read_file(self._stored), msgspec.json.encode(scaled)
        if data != before and (scaled.replicas or before is not None):
            replace_file(self._stored, data, durable=True)
            self._overwritten = msgspec.json.encode(Scaled()) if before is None else before


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
    """Numbers of replicas by role: {"roles": {"replay": {"replicas": 2}}} gives {"replay": 2}."""
    roles = live.get("roles")
    found = roles.items() if isinstance(roles, dict) else ()
    return {role: one["replicas"] for role, one in found if isinstance(one, dict) and type(one.get("replicas")) is int}


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Deep merge of two trees; where both have a leaf, that of `above`."""
    found = dict(below)
    for key, value in above.items():
        here = found.get(key)
        found[key] = merged(here, value) if isinstance(here, dict) and isinstance(value, dict) else value
    return found


def changes(old: Spec, new: Spec) -> list[str]:
    """Live values that have changed, in words."""
    found = []
    for section in ("stop", "evaluation", "checkpoint"):
        before, now = getattr(old, section).model_dump(), getattr(new, section).model_dump()
        found += [f"{section}.{key}: {before[key]} -> {now[key]}" for key in now if now[key] != before[key]]
    was, wanted = replicas(old.model_dump()), replicas(new.model_dump())
    found += [
        f"roles.{role}.replicas: {was.get(role)} -> {wanted[role]}" for role in wanted if wanted[role] != was.get(role)
    ]
    return found
