"""Events in a life of the service: pushes, hooks, looks, and its work."""

from __future__ import annotations

from contextlib import suppress

from rlctl.errors import BackendUnreachable
from rlctl_ci.core.errors import CiError
from rlctl_ci.core.service import Service
from rlctl_ci.forges.base import Event
from rlctl_ci.store.records import Push
from tests.ci.world import MAIN, Clock, Outside, sha


def pushed(service: Service, outside: Outside, number: int, *, ref: str = MAIN, path: str = "agents/a.py") -> None:
    """A push of commit `number`, which changes a file, and its hook."""
    lost(outside, number, ref=ref, path=path)
    hooked(service, number, ref=ref)


def lost(outside: Outside, number: int, *, ref: str = MAIN, path: str = "agents/a.py") -> None:
    """A push of which no hook comes."""
    outside.paths[sha(number)] = path
    outside.push(sha(number), ref)


def hooked(service: Service, number: int, *, ref: str = MAIN) -> None:
    delivery = f"d-{len(service.database.connection().execute('SELECT * FROM deliveries').fetchall())}"
    service.take("pole", Event(delivery, "push", Push(ref, sha(number))))


def drain(service: Service) -> None:
    while service.one():
        pass


def later(service: Service, clock: Clock, seconds: float = 301.0) -> None:
    """Pass time, then look at the branches."""
    clock.s += seconds
    for name in service.config.projects:
        service.look(name)
    drain(service)


def deployed(service: Service, outside: Outside, *numbers: int) -> None:
    for number in numbers:
        pushed(service, outside, number)
        drain(service)


def drain_at(service: Service, clock: Clock) -> None:
    """Some minutes later."""
    clock.s += 300.0
    with suppress(BackendUnreachable, CiError):  # a worker says so, and goes on
        drain(service)
