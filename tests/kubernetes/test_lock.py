"""One command at a time: the Lease of a run."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from rlctl.backends.kubernetes.api import ApiError, Key
from rlctl.backends.kubernetes.lock import DURATION_S, Lock, Me
from rlctl.errors import Conflict
from tests.kubernetes.fake_api import FakeApi
from tests.kubernetes.lab import ALICE, BOB

LEASE = Key("Lease", "pong-lock")


def lock_of(api: FakeApi, me: Me = ALICE, verb: str = "up", notes: list[str] | None = None) -> Lock:
    return Lock(
        api, "pong", verb, me=me, clock=api.clock, sleep=api.sleep, now=api.now,
        waiting=(notes if notes is not None else []).append,
    )  # fmt: skip


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
        with pytest.raises(Conflict) as error, lock_of(api, BOB).held():
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
    me = Me.now()
    machine = me.process.rpartition("/")[0]
    dead = replace(me, pid=2**22 + 1, process=f"{machine}/{2**22 + 1}-1")
    api.create(lock_of(api, dead)._document())
    with lock_of(api, me).held():
        assert api.objects[LEASE]["spec"]["holderIdentity"].endswith(f" {os.getpid()}")
    assert api.seconds == 0


def test_a_live_process_of_this_machine_is_waited_for() -> None:
    api = FakeApi()
    me = Me.now()
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


def test_whoever_could_not_renew_it_in_time_writes_no_more() -> None:
    api = FakeApi()
    with lock_of(api).held() as hold:
        api.refuse = lambda method, key: ApiError("does not answer", status=0) if method == "PUT" else None
        api.seconds += DURATION_S - 1
        hold.renew()
        hold.check()
        api.seconds += 2
        with pytest.raises(Conflict, match="could not be renewed for 31 s"):
            hold.check()


def test_a_server_that_is_out_of_reach_is_not_asked_to_take_it_back() -> None:
    api = FakeApi()

    def hold() -> None:
        with lock_of(api).held():
            api.new_command()
            raise ApiError("does not answer", status=0)

    with pytest.raises(ApiError):
        hold()
    assert api.requests.total == 0
