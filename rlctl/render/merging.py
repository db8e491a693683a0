"""Strategic merge of a patch into an object of ours.

Mappings merge key by key, and null removes a key. Lists of named things merge by name (mounts by their path, spread
constraints by their key); what has no name, as a rule of a NetworkPolicy or a toleration, is added; any other list is
replaced.
"""

from __future__ import annotations

from typing import Any, Final

KEYS: Final = {"volumeMounts": "mountPath", "topologySpreadConstraints": "topologyKey"}
"""List -> key that identifies its entries, where that is not `name`."""


def merged(ours: Any, patch: Any, field: str = "") -> Any:
    """Our value with a patch laid over it; neither is changed.

    Args:
        ours: value, or None where we have none.
        patch: value from the user's file.
        field: key of both values.
    """
    if isinstance(patch, dict):
        found = dict(ours) if isinstance(ours, dict) else {}
        for key, value in patch.items():
            if value is None:
                found.pop(key, None)
            else:
                found[key] = merged(found.get(key), value, key)
        return found
    if isinstance(patch, list) and isinstance(ours, list) and _are_mappings(ours) and _are_mappings(patch):
        return _merged_lists(ours, patch, KEYS.get(field, "name"))
    return patch


def _merged_lists(ours: list[Any], patch: list[Any], key: str) -> list[Any]:
    if not all(isinstance(item.get(key), str) for item in (*ours, *patch)):
        return [*ours, *(item for item in patch if item not in ours)]
    found = {item[key]: item for item in ours}
    for item in patch:
        found[item[key]] = merged(found.get(item[key]), item)
    return list(found.values())


def _are_mappings(items: list[Any]) -> bool:
    return bool(items) and all(isinstance(item, dict) for item in items)
