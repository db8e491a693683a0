"""Causes, the related objects that tell of them, and the readers of objects that all classifiers share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal

from rlctl.backends.kubernetes.api.interface import Object
from rlctl.spec.names import COMPONENT, INSTANCE

State = Literal["starting", "backoff", "stopping", "exited", "failed"]
"""starting: on its way, nothing is wrong yet; backoff: at fault, the cluster retries; failed: at fault for good."""

SETTLED_S = 5.0
"""Seconds after a pod within which an object that it refers to may still be written."""
GRACE_S = 60.0
"""Seconds for which a pod may wait for a node, or for its first ready probe, before that counts as a problem."""
_LONGEST_EVIDENCE = 600


@dataclass(frozen=True, slots=True)
class Cause:
    """Cause for which a pod does not run."""

    kind: str  # one word for machines: "image-not-found"
    text: str  # plain words; nothing in it that differs between pods of one template
    state: State
    evidence: str = ""  # the cluster's message, word for word
    next: str = ""  # command that helps
    _: KW_ONLY
    permanent: bool = False  # it stays until a person changes something
    lines: tuple[str, ...] = ()  # last log lines of the previous life
    key: str = ""  # pods with the same kind and key have the same cause; "": the text is the key

    @property
    def group(self) -> tuple[str, str]:
        return self.kind, self.key or self.text


@dataclass(frozen=True, slots=True)
class RelatedObjects:
    """Related objects that were read beside the pods."""

    now: datetime
    events: Mapping[tuple[str, str], Sequence[Object]] = field(default_factory=dict)  # (kind, name) -> newest first
    claims: Mapping[str, Object] = field(default_factory=dict)  # name -> PersistentVolumeClaim
    logs: Mapping[str, Sequence[str]] = field(default_factory=dict)  # pod -> last log lines of the previous life

    def of(self, kind: str, name: str, *reasons: str) -> list[Object]:
        """Events of an object, newest first; only those of the reasons given, if any."""
        found = self.events.get((kind, name), ())
        return [event for event in found if not reasons or event.get("reason") in reasons]


def indexed(events: Iterable[Object]) -> dict[tuple[str, str], list[Object]]:
    """Events by the object that they are about, newest first; as in RelatedObjects.events."""
    found: dict[tuple[str, str], list[Object]] = {}
    for event in events:
        about = event.get("involvedObject") or {}
        found.setdefault((about.get("kind", ""), about.get("name", "")), []).append(event)
    for listed in found.values():
        listed.sort(key=event_time, reverse=True)
    return found


def event_time(event: Object) -> datetime:
    """Time of the last occurrence of an event."""
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    created = (event.get("metadata") or {}).get("creationTimestamp")
    known = (found for text in (*times, created) if (found := moment(text)) is not None)
    return next(known, datetime.min.replace(tzinfo=UTC))


def moment(text: Any) -> datetime | None:
    """Time as the API server writes it; None for anything else."""
    if not isinstance(text, str):
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def age_s(since: Any, now: datetime) -> float:
    """Seconds since a time of the API server, at least 0, as clocks differ. 0 when there is no time."""
    begun = moment(since)
    return 0.0 if begun is None else max(0.0, (now - begun).total_seconds())


def name_of(thing: Object) -> str:
    return str((thing.get("metadata") or {}).get("name", ""))


def namespaced(thing: Object) -> str:
    """kubectl option for the namespace of an object."""
    namespace = (thing.get("metadata") or {}).get("namespace", "")
    return f" -n {namespace}" if namespace else ""


def describe(pod: Object, kind: str = "pod") -> str:
    """Command that shows all that the cluster knows of an object."""
    return f"kubectl{namespaced(pod)} describe {kind} {name_of(pod)}"


def said_by(pod: Object, *options: str) -> str:
    """Command that shows the log of a pod."""
    labels = (pod.get("metadata") or {}).get("labels") or {}
    words = ("rlctl logs", labels.get(COMPONENT, ""), f"--run {labels.get(INSTANCE, 'RUN')}", *options)
    return " ".join(str(word) for word in words if word)


def condition(thing: Object, kind: str) -> Object:
    """Condition of that type; empty when there is none."""
    for found in (thing.get("status") or {}).get("conditions") or ():
        if found.get("type") == kind:
            return dict(found)
    return {}


def containers(pod: Object) -> list[Object]:
    """Specs of all containers, init containers first."""
    spec = pod.get("spec") or {}
    return [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]


def container_statuses(pod: Object) -> Iterator[tuple[Object, Object]]:
    """Status and spec of each container that has a status, in the order in which they start."""
    specs = {each.get("name"): each for each in containers(pod)}
    status = pod.get("status") or {}
    for key in ("initContainerStatuses", "containerStatuses"):
        for found in status.get(key) or ():
            yield found, specs.get(found.get("name"), {})


def settled(pod: Object, related: RelatedObjects, found: Cause) -> Cause:
    """The cause; `starting` while a missing object may still be written, just after the pod."""
    if age_s((pod.get("metadata") or {}).get("creationTimestamp"), related.now) >= SETTLED_S:
        return found
    return replace(found, state="starting", permanent=False)


def is_ready(pod: Object) -> bool:
    """Whether a pod is ready and not being deleted."""
    ending = (pod.get("metadata") or {}).get("deletionTimestamp")
    return not ending and condition(pod, "Ready").get("status") == "True"


def restarts(pod: Object) -> int:
    return sum(int(status.get("restartCount") or 0) for status, _ in container_statuses(pod))


def evidence(reason: str, message: str) -> str:
    """`Reason: message` on one line, bounded, without anything that acts on a terminal."""
    said = f"{reason}: {message}" if reason and message else reason or message
    said = re.sub(r"[\x00-\x1f\x7f-\x9f]+", " ", said).strip()
    return said if len(said) <= _LONGEST_EVIDENCE else said[: _LONGEST_EVIDENCE - 1] + "…"


def stable(text: str) -> str:
    """A message without addresses, ids and counts, so that many pods share it."""
    text = re.sub(r"\b[0-9a-f]{8,}(?:-[0-9a-f]{4,})*\b", "…", text)
    return re.sub(r"\d+", "#", text)
