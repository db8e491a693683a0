"""Lock of a run, for one writing command at a time: a Lease in its namespace, held while writing, never while watching.

A Lease object is one holding: acquiring creates the object, releasing deletes exactly that object (by its uid), so no
command ends the holding of a successor. A Lease that is not renewed for its whole duration, by the clock of the command
that wants it, is dead and is replaced; clocks of two machines are never compared.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from rlctl.backends.base import Say
from rlctl.backends.kubernetes.api.interface import Api, ApiError, Key, Object
from rlctl.backends.kubernetes.api.refusals import in_words
from rlctl.backends.kubernetes.run_state.inventory import whose
from rlctl.backends.revisions import user
from rlctl.errors import Conflict, Locked, RlctlError
from rlctl.spec.names import DOMAIN, INSTANCE, MANAGED_BY, MANAGER, labels, lock_name
from rlctl.waiting import Waiting, steady

DURATION_S: Final = 30
RENEW_S: Final = 7.0
FRESH_S: Final = 10.0
"""Seconds after a renewal in which a write may begin: it may take 20 s to land (connect and read timeouts)."""
_LOOK_S: Final = 2.0
_VERB: Final = f"{DOMAIN}/verb"
_PROCESS: Final = f"{DOMAIN}/process"


@dataclass(frozen=True, slots=True)
class LockHolder:
    """Identity of this command, as others see it."""

    user: str
    host: str
    pid: int
    process: str = ""  # identifies this process on its machine, which can then detect its death; "": unknown

    @property
    def by(self) -> str:
        return f"{self.user}@{self.host}"

    @staticmethod
    def now() -> LockHolder:
        return LockHolder(user(), socket.gethostname(), os.getpid(), _process(os.getpid()))


class HeldLock:
    """One holding of the lock."""

    def __init__(
        self, api: Api, run: str, lease: Object, clock: Callable[[], float], now: Callable[[], datetime], taken: float
    ) -> None:  # fmt: skip
        self._api, self._run, self._lease = api, run, lease
        self._clock, self._now = clock, now
        self._renewed = taken  # or a little later: the reply may have taken long
        self._lost = ""
        self._failed: RlctlError | None = None
        self._renewing = threading.Lock()

    def check(self) -> None:
        """Check that the lock is held, renewing it if needed: before every write, and before each retry of it.

        A renewal that succeeds proves that no command has taken the lock over meanwhile, however late it is.

        Raises:
            Locked: the lock is lost.
            RlctlError: the lock could not be renewed in time.
        """
        for _ in range(2):  # the first may have taken long, or waited for that of the other thread
            if not self._lost and self._late_s() > FRESH_S:
                self.renew()
        if self._lost:
            raise Locked(
                f"the lock of run {self._run} was lost: {self._lost}",
                hint="Run the same command again.",
                objects=(str(_key(self._run)),),
            )
        if self._late_s() > FRESH_S:
            late = f"the lock of run {self._run} could not be renewed for {self._late_s():.0f} s"
            failed = self._failed
            status = failed.status if isinstance(failed, ApiError) else 0
            raise ApiError(f"{late}: {failed}" if failed else late, status=status, key=_key(self._run)) from failed

    def _late_s(self) -> float:
        return self._clock() - self._renewed

    def renew(self) -> None:
        """Renew the lock; the next `check` reports a failure."""
        with self._renewing:
            began = self._clock()  # not at the reply: a waiting command may have seen the renewal before
            try:
                spec = {**self._lease["spec"], "renewTime": _micro(self._now())}
                self._lease = self._api.replace({**self._lease, "spec": spec})
                self._renewed, self._failed = began, None
            except RlctlError as error:
                self._failed = error
                if isinstance(error, ApiError) and error.status in (404, 409):
                    self._lost = "another command has taken it over"

    def release(self) -> None:
        with suppress(RlctlError):  # it expires by itself
            self._api.delete(_key(self._run), uid=self._lease["metadata"]["uid"])


class Lock:
    """Lock of one run, for one command.

    Args:
        verb: command that holds the lock, shown to a command that waits.
        clock: monotonic seconds that also count while the machine sleeps.
        waiting: called with a line that says for which holder we wait.
    """

    def __init__(
        self, api: Api, run: str, verb: str, *, me: LockHolder | None = None, clock: Callable[[], float] = steady,
        sleep: Callable[[float], None] = time.sleep, now: Callable[[], datetime] = lambda: datetime.now(UTC),
        waiting: Say = lambda text: None,
    ) -> None:  # fmt: skip
        self._api, self._run, self._verb = api, run, verb
        self._me = me or LockHolder.now()
        self._clock, self._sleep, self._now, self._waiting = clock, sleep, now, waiting

    def sweep(self) -> None:
        """Delete the Lease of a command of this machine that was killed before its last write."""
        found = self._api.get(_key(self._run))
        if found is not None and is_of(found, self._run) and _has_died(found, self._me):
            with suppress(RlctlError):  # another command was faster, or it expires by itself
                self._api.delete(_key(self._run), uid=found["metadata"]["uid"])

    @contextmanager
    def held(self) -> Iterator[HeldLock]:
        """Hold the lock for the block.

        Raises:
            Locked: another command holds it; the message has holder, host and age.
            ApiError: Leases may not be written, or the server does not answer.
        """
        began = self._clock()
        hold = HeldLock(self._api, self._run, self._take(), self._clock, self._now, began)
        done = threading.Event()
        renewing = threading.Thread(target=_renew, args=(hold, done), name=f"lock of {self._run}", daemon=True)
        renewing.start()
        answered = True
        try:
            yield hold
        except RlctlError as error:
            answered = not _unanswered(error)
            raise
        finally:
            done.set()
            renewing.join(timeout=2.0)  # it may be waiting for a server that does not answer
            if answered:
                hold.release()

    def _take(self) -> Object:
        while True:
            try:
                return self._api.create(self._document())
            except ApiError as error:
                if error.status != 409:
                    raise in_words(error, "create", _key(self._run), self._api, written=False) from error
            found = self._api.get(_key(self._run))
            if found is not None and not is_of(found, self._run):
                raise self._foreign(found)
            if found is not None and self._outlived(found):
                with suppress(ApiError):  # another command was faster
                    self._api.delete(_key(self._run), uid=found["metadata"]["uid"])

    def _foreign(self, lease: Object) -> Conflict:
        key = str(_key(self._run))
        return Conflict(
            f"{key} in namespace {self._api.namespace} is not the lock of run {self._run}: it is of {whose(lease)}",
            hint=f"Choose another name (--set run={self._run}-2), or have its owner remove it.",
            objects=(key,),
        )

    def _outlived(self, lease: Object) -> bool:
        """Whether a holding is dead, or has ended meanwhile.

        Raises:
            Locked: its holder is alive.
        """
        if _has_died(lease, self._me):
            return True
        spec: dict[str, Any] = lease.get("spec") or {}
        duration_s = min(300, int(spec.get("leaseDurationSeconds") or DURATION_S))
        self._waiting(f"run {self._run} is being changed by {_holder(lease, self._now())}; looking whether it lives")
        patience = Waiting(duration_s, self._waiting, self._clock)
        while not patience.over(f"a sign of life of {_holder(lease, self._now())}"):
            self._sleep(_LOOK_S)
            seen = self._api.get(_key(self._run))
            if seen is None:
                return True
            if seen["metadata"]["resourceVersion"] != lease["metadata"]["resourceVersion"]:
                holder = _holder(seen, self._now())
                raise Locked(
                    f"run {self._run} in namespace {self._api.namespace} is being changed by {holder}",
                    hint="Wait until it has finished, then run the same command again.",
                    objects=(str(_key(self._run)),),
                )
        return True

    def _document(self) -> Object:
        now = _micro(self._now())
        notes = {_VERB: self._verb, _PROCESS: self._me.process}
        spec = {
            "holderIdentity": f"{self._me.by} {self._me.pid}",
            "leaseDurationSeconds": DURATION_S,
            "acquireTime": now,
            "renewTime": now,
        }
        metadata = {"name": lock_name(self._run), "labels": labels(self._run), "annotations": notes}
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}


def _renew(hold: HeldLock, done: threading.Event) -> None:
    while not done.wait(RENEW_S):
        hold.renew()


def _unanswered(error: BaseException | None) -> bool:
    """Whether the server is unreachable: the lock cannot be released then, and expires."""
    while error is not None:
        if isinstance(error, ApiError) and error.status == 0:
            return True
        error = error.__cause__
    return False


def _key(run: str) -> Key:
    return Key("Lease", lock_name(run))


def _holder(lease: Object, now: datetime) -> str:
    """Holder of the lock and for how long it has held it, as far as the object tells."""
    spec: dict[str, Any] = lease.get("spec") or {}
    who, _, pid = str(spec.get("holderIdentity") or "another command").partition(" ")
    verb = (lease["metadata"].get("annotations") or {}).get(_VERB, "")
    what = ", ".join(part for part in (f"rlctl {verb}" if verb else "", f"process {pid}" if pid else "") if part)
    try:
        age = f" for {max(0.0, (now - datetime.fromisoformat(spec['acquireTime'])).total_seconds()):.0f} s"
    except (KeyError, ValueError, TypeError):
        age = ""
    return f"{who} ({what}){age}" if what else f"{who}{age}"


def is_of(lease: Object, run: str) -> bool:
    """Whether a Lease is the lock of a run, and not another program's of the same name."""
    found = lease["metadata"].get("labels") or {}
    return (found.get(MANAGED_BY), found.get(INSTANCE)) == (MANAGER, run)


def _has_died(lease: Object, me: LockHolder) -> bool:
    """Whether the holder was a process of this machine that is gone: no need to wait."""
    process = (lease["metadata"].get("annotations") or {}).get(_PROCESS, "")
    machine, _, rest = process.rpartition("/")
    mine = me.process.rpartition("/")[0]
    if not machine or machine != mine:
        return False
    pid = rest.partition("-")[0]
    return not pid.isdigit() or _process(int(pid)) != process


def _process(pid: int) -> str:
    """`boot/namespace/pid-start` of a process of this machine; "" if it does not exist."""
    try:
        boot = _read("/proc/sys/kernel/random/boot_id").strip()
        space = os.readlink("/proc/self/ns/pid")
        start = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
    return f"{boot}/{space}/{pid}-{start}"


def _read(path: str) -> str:
    with open(path, encoding="ascii", errors="replace") as file:
        return file.read()


def _micro(moment: datetime) -> str:
    """Time with microseconds, as Kubernetes writes it."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
