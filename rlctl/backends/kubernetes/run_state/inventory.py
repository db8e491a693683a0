"""Inventory: the objects that a run may have, those that may go, and their order.

The inventory names every object that this run may own: it is written before the first of them is made and shrinks
only after they are gone. So whatever a killed command leaves behind, the next one finds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from rlctl.backends.kubernetes.api.interface import Key, Object
from rlctl.spec.names import COMPONENT, INSTANCE, MANAGED_BY, MANAGER, UID, state_name

STAYS: Final = ("PersistentVolumeClaim", "Secret")
"""Kinds that no `up` removes, and `down` only when the user says so."""


def role_of(thing: Object) -> str:
    """The role that an object belongs to, by its label; "" for none."""
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


def unused(inventory: Iterable[Key], wanted: Iterable[Key], kept: Callable[[Key], bool], run: str) -> list[Key]:
    """Objects that `up` removes: no document names them, and nothing that stays needs them.

    Args:
        kept: of other objects than documents: revisions, and run files that they name.
    """
    named = set(wanted)
    return [key for key in inventory if key not in named and not _always(key, run) and not kept(key)]


def _always(key: Key, run: str) -> bool:
    return key.kind in STAYS or key == Key("ConfigMap", state_name(run))
