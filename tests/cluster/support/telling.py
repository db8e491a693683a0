"""Text for a test that fails, and for the end of a session: events, logs, and what was not run."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlctl.spec.names import COMPONENT
from tests.cluster.support.contract import NEEDS, TIERS
from tests.cluster.support.people import CAPTURES, Person
from tests.cluster.support.witness import Object, Witness, is_ready


def dump(witness: Witness, namespace: str) -> Iterator[str]:
    """Events of a namespace, its pods, and their last lines: those that are not well first, then the manager's."""

    def role(pod: Object) -> str:
        return str((pod["metadata"].get("labels") or {}).get(COMPONENT))

    yield f"--- events of {namespace}"
    events = witness.list("Event", namespace)
    for event in sorted(events, key=lambda each: each.get("lastTimestamp") or each.get("eventTime") or "")[-25:]:
        about = event["involvedObject"]
        message = str(event.get("message", "")).replace("\n", " ")[:300]
        yield f"{event.get('type', ''):8} {about.get('kind')}/{about.get('name')}: {event.get('reason')}: {message}"
    pods = witness.list("Pod", namespace)
    yield f"--- pods of {namespace}"
    for pod in pods:
        status = pod.get("status") or {}
        states = [
            f"{each['name']} {next(iter(each.get('state') or {'?': None}))} restarts={each.get('restartCount')}"
            for each in status.get("containerStatuses") or ()
        ]
        yield f"{pod['metadata']['name']} {status.get('phase')} on {pod['spec'].get('nodeName')}: {', '.join(states)}"
    for pod in sorted(pods, key=lambda pod: (is_ready(pod), role(pod) not in ("manager", "learner")))[:8]:
        name = pod["metadata"]["name"]
        yield f"--- log of {name}"
        yield witness.log(name, namespace)
        if any(each.get("restartCount") for each in (pod.get("status") or {}).get("containerStatuses") or ()):
            yield f"--- log of {name}, the life before"
            yield witness.log(name, namespace, previous=True)


def capture(test: str, people: list[Person]) -> None:
    """Keep every command of a test with its answer, where a folder for that is named."""
    if CAPTURES:
        folder = Path(CAPTURES)
        folder.mkdir(parents=True, exist_ok=True)
        said = "\n".join(f"# {person.name}\n{done}" for person in people for done in person.transcript)
        (folder / f"{test}.txt").write_text(said)


@dataclass
class Tally:
    """Tests that ran, and those that could not."""

    cluster: str = ""  # which, and what it can; "" where none was looked at
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    ended: Counter[tuple[str, str]] = field(default_factory=Counter)
    missing: list[tuple[str, str]] = field(default_factory=list)  # need, test
    figures: list[str] = field(default_factory=list)

    def packed(self) -> dict[str, Any]:
        """As plain values, for another process."""
        ended = [[tier, how, count] for (tier, how), count in self.ended.items()]
        missing = [list(pair) for pair in self.missing]
        own = {"cluster": self.cluster, "seconds": dict(self.seconds), "figures": list(self.figures)}
        return own | {"ended": ended, "missing": missing}

    def add(self, other: Mapping[str, Any] | None) -> None:
        """Add the counts that another process has packed; None: it left nothing."""
        if other is None:
            return
        self.cluster = self.cluster or other["cluster"]
        for tier, seconds in other["seconds"].items():
            self.seconds[tier] += seconds
        for tier, how, count in other["ended"]:
            self.ended[tier, how] += count
        self.missing += [(need, test) for need, test in other["missing"]]
        self.figures += other["figures"]

    def lines(self) -> Iterator[str]:
        if not self.cluster:
            return
        yield self.cluster
        yield f"{'tier':<8}{'passed':>8}{'failed':>8}{'not run':>9}{'seconds':>9}"
        for tier in TIERS:
            counts = [self.ended[tier, how] for how in ("passed", "failed", "missing")]
            yield f"{tier:<8}{counts[0]:>8}{counts[1]:>8}{counts[2]:>9}{self.seconds[tier]:>9.0f}"
        for need in NEEDS:
            if tests := [test for missed, test in self.missing if missed == need]:
                yield f"NOT RUN, this cluster lacks {NEEDS[need]}:"
                yield from (f"  {test}" for test in tests)
        yield from self.figures


TALLY = Tally()
"""Of this process; that of the session once its workers have ended."""
