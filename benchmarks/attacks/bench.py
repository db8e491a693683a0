"""Attacks that once got through, run again: a defence that does not hold is a row with `held` 0, and exit 1."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.attacks import commits, pages, service, wire
from benchmarks.shared import plots, store, tables
from benchmarks.shared.session import Session
from benchmarks.shared.stats import spread
from benchmarks.shared.store import Row

TITLE = "Attacks"
MEMORY = {"before_mib": "MiB before", "most_mib": "MiB at most"}
STARVED = {"alone": "honest blocks/s without the attack", "beside": "with it", "refused": "messages refused"}


class Attack(NamedTuple):
    """One attack, and the defence that has to hold."""

    name: str
    goal: str
    run: Callable[[], Mapping[str, Any]]
    figures: Mapping[str, str]
    """Column -> its title in the table."""


_READ = {"seconds": "s until refused, git's fetch included", "reading_s": "s of them to read it", **MEMORY}
_IN_FRAMES = {**MEMORY, "after_mib": "MiB afterwards"}
ATTACKS = (
    Attack("a commit with 24 MB of patterns in `.dockerignore`", "its build is refused by name, the service "
           f"takes at most {commits.MOST_MORE_MIB:g} MiB more", partial(commits.refused, commits.LARGE), _READ),
    Attack("3,000 files beside 20,000 patterns", "the same", partial(commits.refused, commits.MANY), _READ),
    Attack("patterns and paths that are allowed and take hours together", "`cancel` ends the build within "
           f"{commits.CANCELLED_S:g} s", commits.cancelled, {"seconds": "s from `cancel` to the end", **MEMORY}),
    Attack(f"{wire.CLIENTS} clients without keys announce 700 MiB each to a CURVE server",
           f"at most {wire.MOST_MORE_MIB:g} MiB more", wire.strangers, MEMORY),
    Attack(f"actor's key: one message of {wire.FRAMES} frames of 16 MiB and a byte", "the same",
           wire.above_the_limit, _IN_FRAMES),
    Attack(f"actor's key: one message of {wire.FRAMES} frames of 16 MiB", "it is thrown away and its memory given "
           "back; until its last frame is there, only the pod's memory bounds it", wire.within_the_limit, _IN_FRAMES),
    Attack("actor's key: hello under ever new boots", f"at least {wire.LEAST_SHARE:g} of the throughput is left",
           partial(wire.starved, "names"), STARVED),
    Attack("actor's key: hello without end", "the same", partial(wire.starved, "hellos"), STARVED),
    Attack("actor's key: all credit, never a block", "the same", partial(wire.starved, "hoards"), STARVED),
    Attack("actor's key: credit for a block of millions of rows", "the same", partial(wire.starved, "claims"), STARVED),
    Attack(f"webhook service: {service.IDLE} idle connections", f"{service.HOOKS} of {service.HOOKS} signed hooks "
           "are accepted", service.idle, {"accepted": "hooks accepted (202)", "max_ms": "slowest answer, ms"}),
    Attack(f"webhook service: {service.READERS} readers of a log of 16 MiB that never read", "none is left after "
           f"{service.WITHIN_S:g} s", service.unread,
           {"begun": "connections at first", "left": "left", "seconds": "s until the last has ended", **MEMORY}),
    Attack("strangers at `rlctl open status`", "statuses " + ", ".join(map(str, pages.EXPECTED.values())),
           pages.strangers, {"no_token": "without the token", "wrong_host": "another Host", "token": "the token",
                             "cookie": "the cookie that it became", "token_again": "the token again",
                             "wrong_cookie": "another cookie"}),
    Attack(f"probe listener: {pages.SLOW} slow clients", f"{pages.PROBES} of {pages.PROBES} probes are answered, at "
           f"most {pages.MOST_LATE} later than {pages.LATE_MS:g} ms", pages.slow_clients,
           {"answered": "probes answered (200)", "late": "of them later", "min_ms": "fastest, ms",
            "max_ms": "slowest, ms"}),
)  # fmt: skip


def measure(session: Session) -> None:
    for number in range(session.choose(1, 1, 3)):
        for attack in ATTACKS:
            session.plain({"attack": attack.name, "round": number, "held": False}, attack.run)


def table(rows: list[Row]) -> list[str]:
    body = []
    for attack in ATTACKS:
        found = store.where(rows, attack=attack.name)
        if not found:
            continue
        held = sum(row["held"] == "1" for row in found)
        said = f"{held} of {len(found)}" if held == len(found) else f"**NO**, {held} of {len(found)}"
        body.append([f"**{attack.name}**: {attack.goal}", "", said])
        body += [[label, tables.measured(found, column), ""] for column, label in attack.figures.items()]
    return [
        "Each has got through once. `held` is how often the defence did what it is for; one that does not is exit 1 of "
        "`make bench-attacks`. Everything listens on loopback; others on the machine move seconds and throughput, and "
        "no figure is discarded for it.",
        "",
        *tables.table(["", "", "held"], body),
    ]  # fmt: skip


def plot(rows: list[Row], path: Path) -> None:
    made, (axes,) = plots.figure(1)
    values = {
        f"{attack.name[:40]}: {label}": store.kept(found, column)
        for attack in ATTACKS
        if (found := store.where(rows, attack=attack.name))
        for column, label in MEMORY.items()
    }
    shown = {name: spread(some) for name, some in values.items() if some}
    plots.bars(axes, shown, title="memory of who is attacked", unit="MiB")
    plots.save(made, path)
