"""Deliveries become builds, once each, and builds go through their states in order."""

from __future__ import annotations

import os
import sqlite3
import threading
from pathlib import Path

import pytest

from rlctl_ci.core.errors import Busy, CiError, LostLease, Overtaken
from rlctl_ci.core.states import ACTIVE, NEXT, STATES, TERMINAL, allowed
from rlctl_ci.store import database as storing
from rlctl_ci.store import schema
from rlctl_ci.store.database import Database, filesystem
from rlctl_ci.store.records import Push
from tests.ci.world import MAIN, Service, no_file_beyond, sha


def test_of_what_is_over_a_deployment_may_be_gone_back_from_and_every_other_state_has_a_way_to_its_end() -> None:
    for state in TERMINAL:
        assert NEXT[state] == ({"rolled_back"} if state in ("succeeded", "failed") else set())
    reached = {state for state in STATES if state in TERMINAL}
    while True:
        more = {state for state in STATES if NEXT[state] & reached}
        if more <= reached:
            break
        reached |= more
    assert reached == set(STATES)
    assert not allowed("queued", "succeeded")


def test_the_same_delivery_is_one_build(service: Service) -> None:
    first = service.queue.accept("pole", Push(MAIN, sha(1)), recipe="r", delivery="a")
    again = service.queue.accept("pole", Push(MAIN, sha(1)), recipe="r", delivery="a")
    assert first.new
    assert (again.build, again.new) == (first.build, False)


def test_another_delivery_of_the_same_commit_is_the_same_build(service: Service) -> None:
    first = service.queue.accept("pole", Push(MAIN, sha(1)), recipe="r", delivery="a")
    replayed = service.queue.accept("pole", Push(MAIN, sha(1)), recipe="r", delivery="b")
    assert (replayed.build, replayed.new) == (first.build, False)


@pytest.mark.parametrize("delivery", ["first", "duplicate"])
def test_a_delivery_is_known_by_its_id_for_what_it_has_made_whatever_else_has_changed_since(
    service: Service, delivery: str
) -> None:
    push = Push(MAIN, sha(1))
    builds = [service.queue.accept("pole", push, recipe="r", delivery=one).build for one in ("first", "duplicate")]
    assert builds == [1, 1]
    assert service.queue.again("pole", push, recipe="r") == 2
    assert service.queue.accept("pole", push, recipe="of another ci.yaml", delivery="another").build == 3
    later = Service(service.folder, owner="life-2")
    for recipe in ("r", "of another ci.yaml"):
        known = later.queue.accept("pole", push, recipe=recipe, delivery=delivery)
        assert (known.build, known.new) == (1, False)
    assert len(later.states()) == 3


def test_a_delivery_of_one_project_is_none_of_another(service: Service) -> None:
    builds = [
        service.queue.accept(name, Push(MAIN, sha(1)), recipe="r", delivery="a").build for name in ("pole", "lab")
    ]
    assert builds == [1, 2]


def test_a_delivery_that_was_ignored_is_taken_when_it_is_sent_again_for_a_branch_that_is_built_by_now(
    service: Service,
) -> None:
    for _ in range(2):
        service.queue.ignore("pole", delivery="a", event="push", why="branch dev is not built")
    assert len(service.reading.ignored()) == 1
    taken = service.queue.accept("pole", Push(MAIN, sha(1)), recipe="r", delivery="a")
    assert taken.new
    assert service.queue.accept("pole", Push(MAIN, sha(1)), recipe="r", delivery="a").build == taken.build
    assert service.reading.ignored() == []


def test_the_same_commit_on_another_branch_or_by_another_recipe_is_another_build(service: Service) -> None:
    builds = {
        service.queue.accept("pole", Push(ref, sha(1)), recipe=recipe, delivery=f"{ref}{recipe}").build
        for ref, recipe in ((MAIN, "r"), ("refs/heads/dev", "r"), (MAIN, "s"))
    }
    assert len(builds) == 3


def test_a_newer_commit_supersedes_those_that_wait(service: Service) -> None:
    one, two, three = (service.hook(number) for number in (1, 2, 3))
    service.queue.admit()
    assert service.states() == {one: "superseded", two: "superseded", three: "queued"}


def test_a_build_that_is_under_way_is_not_superseded_unless_the_project_wants_it(service: Service) -> None:
    one = service.hook(1)
    running = service.claim()
    assert running is not None
    service.hook(2)
    service.queue.admit()
    assert service.reading.build(running.id).cancel == ""
    service.hook(3)
    service.queue.admit(cancel_running=["pole"])
    assert service.reading.build(running.id).cancel.startswith("superseded")
    assert one == running.id


def test_one_branch_builds_one_commit_at_a_time_and_branches_go_side_by_side(service: Service) -> None:
    service.hook(1)
    assert service.claim(most=5) is not None
    service.hook(2)
    other = service.hook(1, ref="refs/heads/dev")
    claimed = service.claim(most=5)
    assert claimed is not None
    assert claimed.id == other
    assert service.claim(most=5) is None


def test_no_more_builds_than_allowed_are_under_way(service: Service) -> None:
    for number in range(4):
        service.hook(number + 1, ref=f"refs/heads/b{number}")
    assert [service.claim(most=2) is not None for _ in range(3)] == [True, True, False]


def test_a_paused_project_waits_and_goes_on_after_resume(service: Service) -> None:
    service.hook(1)
    service.people.pause("pole", "holidays")
    assert service.claim() is None
    assert service.people.resume("pole") == 1
    assert service.claim() is not None


def test_who_has_lost_the_lease_cannot_move_the_build(service: Service) -> None:
    service.hook(1)
    build = service.claim()
    assert build is not None
    service.queue.recover(at_start=True)
    with pytest.raises(LostLease):
        service.queue.step(build.id, service.owner, "building")
    with pytest.raises(LostLease):
        service.queue.end(build.id, service.owner, "succeeded")


def test_a_lease_that_ran_out_is_given_to_another_and_a_clock_that_jumped_does_not_take_one_from_us(
    service: Service,
) -> None:
    service.hook(1)
    build = service.claim()
    assert build is not None
    assert service.queue.recover({"life-1"}, at_start=False) == []
    service.clock.s -= 10_000  # the clock was set back: our own lease still is ours
    assert service.queue.recover({"life-1"}, at_start=True) == []
    service.clock.s += 10_000 + 61
    assert service.queue.recover({"life-1"}, at_start=False) == [], "nor set forward"
    assert service.queue.recover(at_start=False) == [build.id]


def test_a_build_that_is_interrupted_three_times_fails(service: Service) -> None:
    number = service.hook(1)
    assert number is not None
    for _ in range(3):
        assert service.claim() is not None
        service.queue.recover(at_start=True)
    assert service.reading.build(number).state == "failed"
    assert "interrupted" in service.reading.build(number).reason


def test_an_older_build_never_deploys_over_a_newer_one(service: Service) -> None:
    older = service.hook(1)
    assert service.claim(most=2) is not None
    newer = service.hook(2)
    assert older is not None
    assert newer is not None
    with service.database.write() as db:  # as if it had been built on another machine
        db.execute("UPDATE builds SET state = 'deploying', lease_owner = 'life-1' WHERE id IN (?, ?)", (older, newer))
    assert service.queue.plan_deploy(newer, "life-1", "pole", 1, {}) is not None
    with pytest.raises(Overtaken):
        service.queue.plan_deploy(older, "life-1", "pole", 1, {})


def test_two_branches_do_not_deploy_to_one_run_at_the_same_time(service: Service) -> None:
    one, two = service.hook(1), service.hook(1, ref="refs/heads/dev")
    assert one is not None
    assert two is not None
    with service.database.write() as db:
        db.execute("UPDATE builds SET state = 'deploying', lease_owner = 'life-1'")
    assert service.queue.plan_deploy(one, "life-1", "pole", 1, {}) is not None
    assert service.queue.plan_deploy(two, "life-1", "pole", 1, {}) is None
    service.queue.decide(one, "life-1", "verified", "succeeded", "")
    assert service.queue.plan_deploy(two, "life-1", "pole", 2, {}) is not None


def test_a_poll_makes_a_build_only_of_a_commit_that_is_not_the_newest(service: Service) -> None:
    first = service.hook(1)
    assert service.queue.looked("pole", MAIN, sha(1), recipe="r") is None
    service.hook(2)
    assert service.queue.looked("pole", MAIN, None, recipe="r") is None, "it is gone"
    back = service.queue.looked("pole", MAIN, sha(1), recipe="r")
    assert back is not None
    assert back != first
    assert service.reading.build(back).generation == 1


def test_a_branch_that_comes_after_the_first_look_is_built(service: Service) -> None:
    assert service.queue.looked("pole", MAIN, None, recipe="r") is None
    assert service.queue.looked("pole", MAIN, sha(1), recipe="r") is not None
    assert service.queue.looked("pole", MAIN, sha(1), recipe="r") is None


def test_what_a_person_asks_for_supersedes_no_newer_commit(service: Service) -> None:
    service.hook(1)
    service.drain()
    newer = service.hook(2)
    assert newer is not None
    twice = [service.queue.again("pole", Push(MAIN, sha(1)), recipe="r") for _ in range(2)]
    service.queue.admit(cancel_running=["pole"])
    assert [service.reading.build(build).state for build in (newer, *twice)] == ["queued", "superseded", "queued"]


def test_a_waiting_build_is_cancelled_at_once_and_one_under_way_is_asked(service: Service) -> None:
    number = service.hook(1)
    assert number is not None
    assert service.queue.cancel(number, "no") == "cancelled"
    with pytest.raises(CiError, match="is over"):
        service.queue.cancel(number, "no")
    under_way = service.hook(2)
    assert under_way is not None
    service.claim()
    assert service.queue.cancel(under_way, "stop it") == "fetching"
    assert service.queue.beat(under_way, service.owner) == "stop it"
    assert service.queue.retry_later(under_way, service.owner, "the forge is away")
    ended = service.reading.build(under_way)
    assert (ended.state, ended.reason) == ("cancelled", "stop it"), "not after the wait"


def test_a_locked_database_is_told_and_nothing_is_acknowledged(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.database.close()
    monkeypatch.setattr(storing, "BUSY_TIMEOUT_S", 0.0)
    other = sqlite3.connect(service.database.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Busy):
        service.told(1)
    other.execute("ROLLBACK")
    other.close()
    assert service.reading.builds() == []


def test_a_full_disk_is_told_and_nothing_is_acknowledged(service: Service) -> None:
    (pages,) = service.database.connection().execute("PRAGMA page_count").fetchone()
    service.database.connection().execute(f"PRAGMA max_page_count = {pages}")

    def fill() -> None:
        for number in range(1, 1000):
            service.told(number)

    with pytest.raises(Busy, match="full"):
        fill()
    stored = service.reading.builds(limit=200)
    service.database.connection().execute("PRAGMA max_page_count = 1000000")
    assert service.told(5000) is not None, "it works again as soon as there is room"
    assert len(service.reading.builds(limit=200)) == min(200, len(stored) + 1)


def test_a_full_disk_is_seen_by_a_check_and_whoever_has_a_token_reads_nevertheless(service: Service) -> None:
    token = service.people.issue("ana", ["read"])
    with no_file_beyond(0):
        with pytest.raises(Busy):
            service.database.check()
        assert service.people.whose(token) is not None
    service.database.check()


def test_a_check_sees_a_full_disk_though_the_database_has_room_in_its_own_files(service: Service) -> None:
    service.told(1)
    service.database.connection().execute("PRAGMA wal_checkpoint(RESTART)")
    with no_file_beyond(512 << 10):
        service.told(2)
        with pytest.raises(Busy, match="cannot be written"):
            service.database.check()


def test_a_check_leaves_the_version_of_a_newer_release_as_it_is(service: Service) -> None:
    service.database.connection().execute("PRAGMA user_version = 99")
    service.database.check()
    assert service.database.read("PRAGMA user_version")[0][0] == 99


@pytest.mark.parametrize("version", range(len(schema.MIGRATIONS)))
def test_tables_of_every_older_version_become_the_present_ones(tmp_path: Path, version: int) -> None:
    path = tmp_path / "ci.db"
    old = sqlite3.connect(path)
    for script in schema.MIGRATIONS[:version]:
        old.executescript(script)
    if version:
        old.execute(
            "INSERT INTO builds (project, ref, sha, recipe, state, created, updated)"
            " VALUES ('p','r','s','x','failed',1,1)"
        )
    old.execute(f"PRAGMA user_version={version}")
    old.commit()
    old.close()
    database = Database(path)
    assert database.connection().execute("PRAGMA user_version").fetchone()[0] == len(schema.MIGRATIONS)
    assert database.connection().execute("SELECT count(*) FROM builds").fetchone()[0] == bool(version)
    assert database.connection().execute("PRAGMA journal_mode").fetchone()[0] == "wal"


def test_tables_of_a_newer_release_are_refused(tmp_path: Path) -> None:
    old = sqlite3.connect(tmp_path / "ci.db")
    old.execute(f"PRAGMA user_version={len(schema.MIGRATIONS) + 1}")
    old.close()
    with pytest.raises(CiError, match="newer rlctl"):
        Database(tmp_path / "ci.db")


def test_a_shared_disk_is_refused(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"dev / ext4 rw 0 0\nnas:/x {tmp_path} nfs4 rw 0 0\n")
    assert filesystem(tmp_path / "a", mounts) == "nfs4"
    with pytest.raises(CiError, match="local disk"):
        Database(tmp_path / "ci.db", mounts)


def test_what_is_acknowledged_is_synced_to_the_disk(tmp_path: Path) -> None:
    database = Database(tmp_path / "ci.db")
    assert database.connection().execute("PRAGMA synchronous").fetchone()[0] == 2  # FULL


def test_every_active_state_holds_a_lease_and_no_other_does(service: Service) -> None:
    service.hook(1)
    build = service.claim()
    assert build is not None
    for state in ACTIVE[1:]:
        service.queue.step(build.id, service.owner, state)
        assert service.reading.build(build.id).lease_owner == service.owner
    service.queue.end(build.id, service.owner, "succeeded")
    assert service.reading.build(build.id).lease_owner == ""


def test_the_connection_of_a_thread_ends_with_it(service: Service) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        thread = threading.Thread(target=service.reading.counts)
        thread.start()
        thread.join()
    assert len(os.listdir("/proc/self/fd")) < before + 5  # SQLite keeps one or two for the next connection


def test_a_database_that_cannot_be_read_is_told(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_descriptor(*_: object, **__: object) -> None:
        raise sqlite3.OperationalError("unable to open database file")

    service.database.close()
    monkeypatch.setattr(sqlite3, "connect", no_descriptor)
    with pytest.raises(Busy, match="unable to open"):
        service.reading.builds()


@pytest.mark.parametrize("when", ["at the start", "later"])
def test_a_damaged_database_is_told_with_its_file_and_what_to_do(tmp_path: Path, when: str) -> None:
    path = tmp_path / "ci.db"
    database = Database(path, synced=False)
    database.close()
    path.write_bytes(b"x" * path.stat().st_size)
    with pytest.raises(Busy, match=f"^{path} is damaged, and cannot be (opened|read): ") as told:
        Database(path) if when == "at the start" else database.read("SELECT * FROM builds")
    assert "`sqlite3 ci.db .recover`" in told.value.hint
