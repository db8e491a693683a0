"""One command at a time: the Lease of a run."""

from __future__ import annotations

import inspect
import os
from dataclasses import replace
from typing import Any

import pytest

from rlctl.backends.kubernetes.api.exchange import NoAnswer
from rlctl.backends.kubernetes.api.interface import Api, ApiError, Key
from rlctl.backends.kubernetes.apply.writing import Writer
from rlctl.backends.kubernetes.run_state.lock import DURATION_S, FRESH_S, Lock, LockHolder
from rlctl.backends.kubernetes.run_state.session import Session
from rlctl.errors import Conflict, Locked
from rlctl.waiting import steady
from tests.backends.kubernetes.api.test_calls import Clock, calls_of
from tests.backends.kubernetes.fakes.api import FakeApi
from tests.backends.kubernetes.fakes.lab import ALICE, BOB
from tests.backends.kubernetes.fakes.selectors import forbidden

LEASE = Key("Lease", "pong-lock")


def lock_of(api: FakeApi, me: LockHolder = ALICE, verb: str = "up", notes: list[str] | None = None) -> Lock:
    return Lock(
        api, "pong", verb, me=me, clock=api.clock, sleep=api.sleep, now=api.now,
        waiting=(notes if notes is not None else []).append,
    )  # fmt: skip


def session_of(api: Api) -> Session:
    return Session(api, "pong", lambda path, body: {})


def test_it_is_there_while_held_and_gone_afterwards() -> None:
    api = FakeApi()
    with lock_of(api).held():
        lease = api.objects[LEASE]
        assert lease["spec"]["holderIdentity"] == "alice@desk 1"
    assert LEASE not in api.objects


def test_a_second_caller_is_told_who_holds_it_and_for_how_long() -> None:
    api = FakeApi()
    with lock_of(api, verb="scale").held() as hold:
        api.on_tick = lambda: hold.renew() if api.seconds % 10 == 0 else None
        with pytest.raises(Locked) as error, lock_of(api, BOB).held():
            pass
    assert error.value.exit_code == 5
    assert "run pong in namespace rl is being changed by alice@desk (rlctl scale, process 1) for 10 s" in str(
        error.value
    )


def test_a_dead_holder_is_waited_out_by_the_clock_of_whoever_waits() -> None:
    api, notes = FakeApi(), list[str]()
    api.create(lock_of(api)._document())
    with lock_of(api, BOB, notes=notes).held():
        assert api.objects[LEASE]["spec"]["holderIdentity"] == "bob@laptop 2"
    assert DURATION_S <= api.seconds <= DURATION_S + 2
    assert "looking whether it lives" in notes[0]


def test_a_dead_process_of_this_machine_is_not_waited_for() -> None:
    api = FakeApi()
    me = LockHolder.now()
    machine = me.process.rpartition("/")[0]
    dead = replace(me, pid=2**22 + 1, process=f"{machine}/{2**22 + 1}-1")
    api.create(lock_of(api, dead)._document())
    with lock_of(api, me).held():
        assert api.objects[LEASE]["spec"]["holderIdentity"].endswith(f" {os.getpid()}")
    assert api.seconds == 0


def test_a_live_process_of_this_machine_is_waited_for() -> None:
    api = FakeApi()
    me = LockHolder.now()
    api.create(lock_of(api, me)._document())
    with lock_of(api, me).held():
        pass
    assert api.seconds >= DURATION_S


def test_nobody_ends_the_holding_of_a_successor() -> None:
    api = FakeApi()
    with lock_of(api).held():
        api.remove(LEASE)
        api.create(lock_of(api, BOB)._document())
    assert api.objects[LEASE]["spec"]["holderIdentity"] == "bob@laptop 2"


def test_whoever_has_lost_it_writes_no_more() -> None:
    api = FakeApi()
    with lock_of(api).held() as hold:
        hold.check()
        api.remove(LEASE)
        api.create(lock_of(api, BOB)._document())
        hold.renew()
        with pytest.raises(Conflict, match="another command has taken it over"):
            hold.check()


def test_whoever_cannot_renew_it_writes_no_more_long_before_it_ends() -> None:
    api = FakeApi()
    with lock_of(api).held() as hold:
        api.refuse = lambda method, key: ApiError("does not answer", status=0) if method == "PUT" else None
        api.seconds += FRESH_S
        hold.check()
        api.seconds += 1
        with pytest.raises(ApiError, match="could not be renewed for 11 s: does not answer"):
            hold.check()


def test_a_renewal_that_succeeds_late_shows_that_nobody_has_taken_it() -> None:
    api = FakeApi()
    with lock_of(api).held() as hold:
        api.seconds += 10 * DURATION_S  # the machine has slept
        hold.check()
        assert api.writes[-1] == f"PUT {LEASE}"


def test_a_write_is_not_repeated_after_its_lock_was_taken_over() -> None:
    api, clock = FakeApi(), Clock()
    thing = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {}}
    calls, script, _ = calls_of((200, thing), NoAnswer("timed out"), clock=clock)
    calls.version()
    with lock_of(api).held() as hold:

        def sleep(seconds: float) -> None:
            clock.now += seconds
            api.seconds = clock.now
            if api.seconds > 8 and LEASE in api.objects:
                api.remove(LEASE)

        calls._patience._sleep = sleep
        with pytest.raises(Conflict, match="another command has taken it over"):
            Writer(session_of(calls), hold).apply(thing)
    assert clock.now < DURATION_S
    assert {method for method, *_ in script.sent} == {"GET", "PATCH"}


def test_time_counts_while_the_machine_sleeps() -> None:
    assert inspect.signature(Lock).parameters["clock"].default is steady


def test_a_server_that_is_out_of_reach_is_not_asked_to_take_it_back() -> None:
    api = FakeApi()

    def hold() -> None:
        with lock_of(api).held():
            api.new_command()
            raise ApiError("does not answer", status=0)

    with pytest.raises(ApiError):
        hold()
    assert api.requests.total == 0


FOREIGN: dict[str, Any] = {
    "apiVersion": "coordination.k8s.io/v1",
    "kind": "Lease",
    "metadata": {"name": "pong-lock", "labels": {"app.kubernetes.io/managed-by": "helm"}},
    "spec": {"holderIdentity": "operator-0", "leaseDurationSeconds": 15},
}


def test_a_lease_of_somebody_else_is_no_lock_and_stays() -> None:
    api = FakeApi()
    api.put(FOREIGN)
    with pytest.raises(
        Conflict, match=r"Lease pong-lock .* is not the lock of run pong: it is of another owner \(helm"
    ):
        lock_of(api).held().__enter__()
    assert api.objects[LEASE]["spec"]["holderIdentity"] == "operator-0"
    assert api.seconds == 0, "it is not waited for"


def test_a_lease_of_somebody_else_is_not_swept_though_it_names_a_dead_process() -> None:
    api = FakeApi()
    me = LockHolder.now()
    made = lock_of(api, replace(me, process=f"{me.process.rpartition('/')[0]}/1-1"))._document()
    api.put({**made, "metadata": {**made["metadata"], "labels": {}}})
    lock_of(api, me).sweep()
    assert LEASE in api.objects


def test_a_lock_without_a_spec_is_waited_out() -> None:
    api = FakeApi()
    document = lock_of(api)._document()
    api.create({name: value for name, value in document.items() if name != "spec"})
    with lock_of(api, BOB).held():
        assert api.objects[LEASE]["spec"]["holderIdentity"] == "bob@laptop 2"
    assert DURATION_S <= api.seconds <= DURATION_S + 2


def test_who_may_not_renew_it_is_told_that_and_not_of_what_was_to_be_written() -> None:
    api = FakeApi()
    with lock_of(api).held() as hold:
        api.refuse = lambda method, key: forbidden(key, "update") if method == "PUT" else None
        api.seconds += FRESH_S + 1
        with pytest.raises(ApiError, match="may not update Lease pong-lock in namespace rl as system") as error:
            Writer(session_of(api), hold).apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}})
    assert error.value.objects == (str(LEASE),)
