"""Inventory: the objects that a run may have, and those that may be removed.

The inventory names every object that this run may own: it is written before the first of them is created and shrinks
only after they are gone. So the next command finds whatever a killed one leaves behind.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from rlctl.backends.kubernetes.api.interface import Key, Object
from rlctl.spec.names import COMPONENT, INSTANCE, MANAGED_BY, MANAGER, UID, state_name

STAYS: Final = ("PersistentVolumeClaim", "Secret")
"""Kinds that no `up` removes, and `down` only with `--volumes`."""


def role_of(thing: Object) -> str:
    """Role of an object, by its label; "" for none."""
    return str((thing["metadata"].get("labels") or {}).get(COMPONENT, ""))


def is_ours(live: Object, run: str, uid: str) -> bool:
    """Whether an object of the cluster belongs to this run: by label and by uid."""
    metadata = live["metadata"]
    labels, notes = metadata.get("labels") or {}, metadata.get("annotations") or {}
    return labels.get(MANAGED_BY) == MANAGER and labels.get(INSTANCE) == run and notes.get(UID) == uid


def whose(live: Object) -> str:
    """Owner of an object that is not ours, in words."""
    metadata = live["metadata"]
    labels, notes = metadata.get("labels") or {}, metadata.get("annotations") or {}
    if labels.get(MANAGED_BY) == MANAGER:
        return f"run {labels.get(INSTANCE, '?')} with uid {notes.get(UID, '?')[:8]}"
    by = labels.get(MANAGED_BY) or next(
        (entry["manager"] for entry in metadata.get("managedFields") or [] if entry.get("manager")), ""
    )
    return f"another owner ({by})" if by else "another owner"


def union(*inventories: Iterable[Key]) -> tuple[Key, ...]:
    """Each object once, in the order of its first mention."""
    return tuple(dict.fromkeys(key for inventory in inventories for key in inventory))


def unused(inventory: Iterable[Key], wanted: Iterable[Key], kept: Collection[Key], run: str) -> list[Key]:
    """Objects that `up` removes: no document names them, and nothing that stays needs them.

    Args:
        kept: objects that stay though they are no documents: revisions, and run files that one of them needs.
    """
    named = set(wanted)
    return [key for key in inventory if key not in named and not _always(key, run) and key not in kept]


def _always(key: Key, run: str) -> bool:
    return key.kind in STAYS or key == Key("ConfigMap", state_name(run))
