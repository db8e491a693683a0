"""Every write of a command: under its lock, counted, with refusals in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, TypeVar

from rlctl.backends.base import Applied
from rlctl.backends.kubernetes.api.interface import ApiError, Key, Object, key_of
from rlctl.backends.kubernetes.api.refusals import Refusal, in_words, partly
from rlctl.backends.kubernetes.api.retries import FENCE
from rlctl.backends.kubernetes.run_state import inventory
from rlctl.backends.kubernetes.run_state import record as records
from rlctl.backends.kubernetes.run_state.lock import HeldLock
from rlctl.backends.kubernetes.run_state.record import Record
from rlctl.backends.kubernetes.run_state.session import Session
from rlctl.errors import BackendUnreachable
from rlctl.spec.names import MANAGER, SCALE_MANAGER

T = TypeVar("T")


def whole_or_partly(session: Session, steps: Iterator[Applied]) -> Iterator[Applied]:
    """Run the steps of a command.

    Raises:
        PartlyApplied: the target refused or did not answer after something was written.
    """
    try:
        yield from steps
    except (BackendUnreachable, Refusal) as error:
        if not session.written:
            raise
        raise partly(error) from error


class Writer:
    """Writer of objects while a lock is held.

    Every method raises RlctlError for the user: Locked when the lock is lost, PartlyApplied when the server does not
    answer and something was written before, Refusal or ApiError otherwise; a conflict over fields is the original
    ApiError.
    """

    def __init__(self, session: Session, hold: HeldLock) -> None:
        self._session, self._api, self._hold = session, session.api, hold

    def apply(
        self, document: Object, *, manager: str = MANAGER, uid: str | None = None, force: bool = False
    ) -> Object:  # fmt: skip
        return self._do(
            "patch" if uid else "create",
            key_of(document),
            lambda: self._api.apply(document, manager=manager, uid=uid, force=force),
        )

    def set_count(self, live: Object, replicas: int, *, force: bool = False) -> Object:
        """Set the number of replicas of a live workload, as owner of that field.

        Raises:
            ApiError: with conflicts, if the number has another owner and differs.
        """
        metadata = live["metadata"]
        document = {
            "apiVersion": live["apiVersion"],
            "kind": live["kind"],
            "metadata": {"name": metadata["name"]},
            "spec": {"replicas": replicas},
        }
        try:
            return self.apply(document, manager=SCALE_MANAGER, uid=metadata["uid"], force=force)
        except ApiError as error:
            if not error.conflicts or any(each.owner not in (MANAGER, SCALE_MANAGER) for each in error.conflicts):
                raise
            # take the field back: made by ourselves, or released by the manager of the run
            return self.apply(document, manager=SCALE_MANAGER, uid=metadata["uid"], force=True)

    def create(self, document: Object) -> Object:
        return self._do("create", key_of(document), lambda: self._api.create(document))

    def save(self, record: Record) -> Record:
        return self._do("update" if record.version else "create", record.key, lambda: records.save(self._api, record))

    def delete(
        self, key: Key, *, uid: str, propagation: Literal["Background", "Foreground"] = "Background",
        grace_s: int | None = None,
    ) -> bool:  # fmt: skip
        return self._do("delete", key, lambda: self._api.delete(key, uid=uid, propagation=propagation, grace_s=grace_s))

    def remove(
        self, key: Key, uid: str, *, propagation: Literal["Background", "Foreground"] = "Background", why: str = ""
    ) -> Iterator[Applied]:
        """Remove an object of the run, if it exists; one that the run no longer owns stays, and a note reports it."""
        live = self._api.get(key)
        if live is None or live["metadata"].get("deletionTimestamp"):
            return
        if not inventory.is_ours(live, self._session.run, uid):
            self._session.note(f"{key} stays: it is not of this run any more, but of {inventory.whose(live)}")
            return
        grace_s = 0 if key.kind == "Pod" else None  # our own pods only remove or read files
        if self.delete(key, uid=live["metadata"]["uid"], propagation=propagation, grace_s=grace_s):
            yield Applied(str(key), "removed", why)

    def _do(self, verb: str, key: Key, write: Callable[[], T]) -> T:
        fence = FENCE.set(self._check)
        try:
            self._check()
            found = write()
        except ApiError as error:
            if error.conflicts:
                raise
            if error.key is not None and error.key.kind == "Lease":  # the lock, which could not be renewed
                verb, key = "update", error.key
            raise in_words(error, verb, key, self._api, written=self._session.written > 0) from error
        finally:
            FENCE.reset(fence)
        self._session.written += 1
        return found

    def _check(self) -> None:
        fence = FENCE.set(None)  # no fence while renewing: it would call itself
        try:
            self._hold.check()
        finally:
            FENCE.reset(fence)
