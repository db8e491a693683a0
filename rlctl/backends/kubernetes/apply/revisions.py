"""Revisions of a run: the number of the next one, and the objects kept because an old one needs them."""

from __future__ import annotations

from collections.abc import Iterable

from rlctl.backends.kubernetes.api.interface import Api, Key
from rlctl.backends.kubernetes.apply.survey import Survey
from rlctl.backends.kubernetes.run_state.desired_state import DesiredState, number_of, same, stored_revision
from rlctl.backends.revisions import KEPT


def next_number(api: Api, seen: Survey) -> int:
    """Number of the revision that this `up` creates, or keeps.

    A revision that a killed command has created, and no record names yet, is used again if it is equal.
    """
    number = 0 if seen.record is None else seen.record.state.revision
    if number and not seen.new_revision:
        return number
    if not number or seen.previous is not None:
        number += 1
    while (found := stored_revision(api, seen.wanted.run, seen.wanted.uid, number)) is not None:
        if same(found, seen.wanted):
            break
        number += 1
    return number


def kept(api: Api, seen: Survey, names: Iterable[Key], number: int) -> set[Key]:
    """Objects to keep that no document names: the last revisions, and run files that their pods may still read.

    Args:
        names: objects of the inventory.
        number: number of the revision that is being applied.
    """
    run, uid = seen.wanted.run, seen.wanted.uid
    before = () if seen.record is None else seen.record.kept
    stays = set() if seen.new_revision else {key for key in before if number_of(key, run) is None}
    for key in names:
        found = number_of(key, run)
        if found is None or not number - KEPT < found <= number:
            continue
        stays.add(key)
        if seen.new_revision and found != number and (stored := stored_revision(api, run, uid, found)) is not None:
            stays |= run_files(stored)
    return stays


def run_files(wanted: DesiredState) -> set[Key]:
    """Immutable ConfigMaps of a revision: pods that were not replaced yet still read them."""
    return {key for key, thing in wanted.objects.items() if key.kind == "ConfigMap" and thing.get("immutable")}
