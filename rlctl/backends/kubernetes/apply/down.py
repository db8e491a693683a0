"""`down`: removes everything of a run except the data that it has learned, senders before receivers.

Workloads are removed in the foreground: the object stays until its last pod is gone, so that one watch on a few objects
tells when thousands of pods have ended. The data learned, the record, revisions and keys stay, unless the volumes are
removed too.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Final

from rlctl.backends.base import Applied
from rlctl.backends.kubernetes.access import reader
from rlctl.backends.kubernetes.api.interface import Api, Key, Object, key_of, kubectl
from rlctl.backends.kubernetes.api.refusals import GO_ON
from rlctl.backends.kubernetes.api.watch import follow
from rlctl.backends.kubernetes.apply.writing import Writer
from rlctl.backends.kubernetes.run_state import inventory, keys, lock, lost
from rlctl.backends.kubernetes.run_state.desired_state import DesiredState, number_of, stored_revision
from rlctl.backends.kubernetes.run_state.owner import check_owner
from rlctl.backends.kubernetes.run_state.record import Record
from rlctl.backends.kubernetes.run_state.session import Session
from rlctl.backends.kubernetes.run_state.volume_pod import folder_of, manager_of, pod_of
from rlctl.backends.run_states import ENDS
from rlctl.errors import Conflict, PartlyApplied, RlctlError
from rlctl.spec.names import WORKLOADS, lock_name, selector, volume_name, wave, workload_name

CLEAN_TIMEOUT_S: Final = 300.0
_REMOVE: Final = "import shutil, sys, os; os.path.isdir(sys.argv[1]) and shutil.rmtree(sys.argv[1])"
_STATUS_BYTES: Final = 256 * 1024
"""Bytes of a stored status, at most, of the 1 MiB of a ConfigMap; the spec and the inventory need room too."""


def down(session: Session, run: str, *, volumes: bool, grace_s: float) -> Iterator[Applied]:
    """Take a run down; see KubernetesBackend.delete."""
    record = lost.find(session.api, run)
    if record is not None:
        check_owner(session, record, "down")
    if record is None or (not volumes and record.state.phase != "running" and not _going(record)):
        _tidy(session, run)
        return
    yield from _Down(session, record, grace_s).run(volumes=volumes)


def _tidy(session: Session, run: str) -> None:
    """Remove the lock of a command that was killed before its very last write."""
    found = session.api.get(Key("Lease", lock_name(run)))
    if found is not None and lock.is_of(found, run):
        with session.lock("down").held():
            pass


def _going(record: Record) -> list[Key]:
    """Objects that `down` removes."""
    run = record.state.run
    return [key for key in record.inventory if key.kind not in inventory.STAYS and number_of(key, run) is None]


class _Down:
    """One `down`. The lock is held for writes, not while pods end."""

    def __init__(self, session: Session, record: Record, grace_s: float) -> None:
        self._session, self._grace_s = session, grace_s
        self._api: Api = session.api
        self._record = record
        self._run, self._uid = record.state.run, record.state.uid
        begun = bool(record.state.revision)  # else its first `up` has not finished
        self._manager = None if begun else self._live_manager()
        never = record.readable and record.state.phase == "running" and self._manager is None
        self._wrote = begun or not never  # a pod of it may have written to its volume: the manager's starts first

    def run(self, *, volumes: bool) -> Iterator[Applied]:
        with self._locked() as writer:
            self._last_words(writer)
        yield from self._workloads()
        with self._locked() as writer:
            for key in _going(self._record):
                yield from writer.remove(key, self._uid)
            self._stopped(writer)
        if volumes:
            yield from self._volumes()

    @contextmanager
    def _locked(self) -> Iterator[Writer]:
        """Hold the lock, and require that no command has changed the run since it was read.

        Raises:
            Conflict: another command has changed it, or holds the lock.
        """
        with self._session.lock("down").held() as hold:
            found = lost.find(self._api, self._run)
            if found is None or found.version != self._record.version:
                raise Conflict(
                    f"another command has changed run {self._run} meanwhile", hint=GO_ON, objects=(self._run,)
                )
            yield Writer(self._session, hold)

    def _live_manager(self) -> Object | None:
        live = self._api.get(Key("StatefulSet", workload_name(self._run, "manager")))
        return live if live is not None and inventory.is_ours(live, self._run, self._uid) else None

    def _revision(self) -> DesiredState | None:
        """The recorded revision, else the newest that exists, else what its live manager shows; None without any."""
        number = self._record.state.revision
        there = (each for key in self._record.inventory if (each := number_of(key, self._run)) is not None)
        for each in [number] if number else sorted(there, reverse=True):
            if (found := stored_revision(self._api, self._run, self._uid, each)) is not None:
                return found
        if self._manager is None:
            return None
        objects = {key_of(self._manager): self._manager}
        return DesiredState(self._run, self._uid, "", (), objects, {}, {}, {}, {})

    def _last_words(self, writer: Writer) -> None:
        """Store the manager's last status, before it ends."""
        if self._record.state.phase != "running" or not self._record.readable:
            return
        try:
            found = _storable(self._session.ask("/status", None))
        except (RlctlError, RecursionError):  # it does not answer any more: a status stored before stays
            return
        if found is None:
            return
        final, left_out = found
        if left_out:
            self._session.note(f"of the last status of run {self._run}, {', '.join(left_out)} is too large to be kept")
        if final != self._record.final:
            self._record = writer.save(replace(self._record, final=final))
        if final.get("phase") == "failed":  # so that the manager of the next `up` begins with all its time
            with suppress(RlctlError):
                self._session.ask("/reload", {})

    def _workloads(self) -> Iterator[Applied]:
        """Remove workloads from the last wave to the first; each waits until the one before is gone, or timed out."""
        there = [key for key in self._record.inventory if key.kind in WORKLOADS]
        lives = {key: self._api.get(key) for key in there}
        waves: dict[int, list[Key]] = {}
        for key, live in lives.items():
            if live is not None:
                waves.setdefault(wave(key.kind, inventory.role_of(live)), []).append(key)
        for number in sorted(waves, reverse=True):
            with self._locked() as writer:
                for key in waves[number]:
                    yield from writer.remove(key, self._uid, propagation="Foreground")
            remaining = self._await_gone(waves[number])
            if remaining:
                self._session.note(f"{_listed(remaining)}: pods are still ending after {self._grace_s:g} s")

    def _await_gone(self, waited: list[Key]) -> list[Key]:
        """Wait for objects to go; returns those left at the timeout."""
        patience = self._session.patience(self._grace_s)
        remaining = list(waited)
        for kind in dict.fromkeys(key.kind for key in waited):
            for known in follow(self._api, kind, labels=selector(self._run), tick_s=max(1.0, min(5.0, self._grace_s))):
                remaining = [key for key in remaining if key.kind != kind or key.name in known]
                if not any(key.kind == kind for key in remaining) or patience.over(f"the pods of {_listed(remaining)}"):
                    break
        return remaining

    def _stopped(self, writer: Writer) -> None:
        """Record that nothing runs any more, and which objects are left."""
        if not self._record.readable:
            return
        gone = set(_going(self._record))
        left = tuple(key for key in self._record.inventory if key not in gone)
        phase = self._record.state.phase
        if phase == "running":
            phase = ENDS.get(str((self._record.final or {}).get("phase")), "stopped")
        kept = tuple(key for key in self._record.kept if key in left)
        stopped = replace(self._record, state=replace(self._record.state, phase=phase), inventory=left, kept=kept)
        if stopped != self._record:
            self._record = writer.save(stopped)

    def _volumes(self) -> Iterator[Applied]:
        """Remove the data learned, keys and history; the record last. Readers first: their pods keep the claim."""
        if readers := reader.left(self._session, self._run):
            with self._locked() as writer:
                for thing in readers:
                    yield from writer.remove(key_of(thing), self._uid)
        claims = [key for key in self._record.inventory if key.kind == "PersistentVolumeClaim"]
        if not claims and self._wrote and not self._record.emptied:
            yield from self._clean()
        with self._locked() as writer:
            others = [keys.core_key(self._run), keys.actor_key(self._run), *self._record.inventory]
            for key in inventory.union(claims, others, [self._record.key]):
                yield from writer.remove(key, self._uid)

    def _clean(self) -> Iterator[Applied]:
        """Remove the run's folder from a volume that is not ours.

        Raises:
            PartlyApplied: the folder could not be removed.
        """
        key, wanted, storage = _cleaner_key(self._run), self._revision(), self._record.state.storage
        document = None if wanted is None else _cleaner(wanted)
        if document is None and storage.partition(":")[0] == f"claim {volume_name(self._run)}":
            return  # the volume was our own, and is gone
        if document is None:
            raise PartlyApplied(
                f"{storage} stays, and the record of run {self._run}: nothing is known of how to reach the volume",
                hint=self._way_out(),
                objects=(self._run,),
            )
        with self._locked() as writer:
            if self._record.readable and key not in self._record.inventory:
                names = (*self._record.inventory, key)
                self._record = writer.save(replace(self._record, inventory=names))
            live = self._api.get(key)  # of a try before, which the inventory of an unreadable run lacks
            if live is not None and not inventory.is_ours(live, self._run, self._uid):
                raise PartlyApplied(
                    f"{key}, which would remove {storage} from the volume, is not of this run",
                    hint="Remove or rename it, then the same command again.",
                    objects=(str(key),),
                )
            if live is None or (live.get("status") or {}).get("phase") in ("Failed", "Succeeded"):
                yield from writer.remove(key, self._uid)
                live = writer.create(document)
        _await_cleaned(self._session, key, str(live["spec"]["containers"][0]["command"][-1]))
        with self._locked() as writer:
            yield from writer.remove(key, self._uid)
            if self._record.readable:  # the revision, which shows how the volume is reached, goes before the record
                self._record = writer.save(replace(self._record, emptied=True))
        yield Applied(storage, "removed")

    def _way_out(self) -> str:
        known = f"rlctl up SPEC makes it known, then rlctl down {self._run} --volumes; or " * self._record.readable
        things = f"{kubectl(self._api)} delete configmap,secret -l {selector(self._run)}"
        return f"{known}remove the folder of the run by a pod of your own, then {things}"


def _listed(keys_: list[Key]) -> str:
    return ", ".join(map(str, keys_))


def _cleaner_key(run: str) -> Key:
    return Key("Pod", f"{run}-clean")


def _cleaner(wanted: DesiredState) -> Object | None:
    """Pod that removes VOLUME/runs/<run>-<uid8> and nothing else; None: the run has no manager to copy it from."""
    if (manager := manager_of(wanted)) is None:
        return None
    name = _cleaner_key(wanted.run).name
    return pod_of(wanted, manager, name, "clean", ["python", "-c", _REMOVE, folder_of(wanted)])


def _await_cleaned(session: Session, key: Key, folder: str) -> None:
    """Wait for the end of the pod that removes files.

    Raises:
        PartlyApplied: the pod could not run, did not finish in time, or is gone; the same command tries again.
    """
    phase, do = _cleaned_phase(session, key), kubectl(session.api)
    if phase == "Succeeded":
        return
    ends = {None: "was deleted by another hand", "Failed": "has failed"}
    look = "" if phase is None else f"{do} logs {key.name} and {do} describe pod {key.name} say why; "
    raise PartlyApplied(
        f"Pod {key.name}, which removes {folder} from the volume, "
        + ends.get(phase, f"has not come to its end within {CLEAN_TIMEOUT_S:g} s"),
        hint=f"{look}the same command tries again.",
        objects=(str(key),),
    )


def _cleaned_phase(session: Session, key: Key) -> str | None:
    """Phase in which the pod has ended, or is at the timeout; None: it is gone."""
    patience = session.patience(CLEAN_TIMEOUT_S)
    for known in follow(session.api, "Pod", fields=f"metadata.name={key.name}"):
        pod = known.get(key.name)
        if pod is None:
            return None
        phase = str((pod.get("status") or {}).get("phase") or "")
        if phase in ("Succeeded", "Failed") or patience.over(f"{key}, which removes the data of the run"):
            return phase
    return ""


def _storable(said: object) -> tuple[dict[str, Any], list[str]] | None:
    """The part of a status to store, and the names of entries left out: the largest, until the rest fits.

    A number that is not finite becomes null, a character that UTF-8 cannot encode becomes `?`. None: it is no status.
    """
    try:
        status = _plain(said)
        if not isinstance(status, dict):
            return None
        sizes = {name: _bytes({name: value}) for name, value in status.items()}
    except RecursionError:
        return None
    left_out = []
    for name in sorted(sizes, key=lambda name: sizes[name], reverse=True):
        if sum(sizes.values()) <= _STATUS_BYTES:
            break
        del sizes[name], status[name]
        left_out.append(name)
    return status, left_out


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {_plain(str(name)): _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _bytes(value: object) -> int:
    """Bytes of a value as the record writes it."""
    return len(json.dumps(value, indent=1, ensure_ascii=False).encode())
