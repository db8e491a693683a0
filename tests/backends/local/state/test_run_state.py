"""State on disk: whole or typed errors; locks; places; nothing of another user's."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rlctl.backends import files
from rlctl.backends.base import Document, Failure, LogQuery, RunState
from rlctl.backends.local import LocalBackend
from rlctl.backends.local.state import lock, places, run_state
from rlctl.backends.local.state.places import Place
from rlctl.errors import BackendUnreachable, Conflict, Locked, RlctlError
from rlctl.spec.runs import run_index
from tests.backends.local.machine import read_only

STATE = RunState(
    run="one", uid="0" * 32, target="local", phase="stopped", rlctl_version="0.1", revision=3,
    created=datetime(2026, 11, 21, tzinfo=UTC), storage="", spec={"run": "one", "env": {"id": "X"}},
    hashes={"actor": "aaaaaaaaaaaa"}, replicas={"actor": 6}, spec_replicas={"actor": 4},
)  # fmt: skip


@pytest.fixture
def place(homes: Path) -> Place:
    """A run that was entered and stored."""
    made = replace(places.place("one"), uid="0" * 32, sockets=homes / "r" / "rlctl" / "00000000", recorded=True)
    made.layout.make()
    places.record(made)
    run_state.write_state(made.layout, STATE)
    return made


def test_a_stored_state_comes_back_equal(place: Place) -> None:
    assert run_state.read(place) == replace(STATE, storage=str(place.layout.root))
    assert LocalBackend().runs() == [run_state.read(place)]


def test_one_broken_record_hides_no_other_run(place: Place) -> None:
    run_index.path("bad").write_text("{")
    broken: list[RlctlError] = []
    assert LocalBackend().runs(broken.append) == [run_state.read(place)]
    assert "bad" in broken[0].message
    with pytest.raises(BackendUnreachable):
        LocalBackend().runs()


def test_the_same_state_is_not_written_twice(place: Place) -> None:
    file = run_state.state_file(place.layout)
    first = file.stat().st_ino
    run_state.write_state(place.layout, STATE)
    assert file.stat().st_ino == first
    run_state.write_state(place.layout, replace(STATE, revision=4))
    assert file.stat().st_ino != first


def test_a_failure_and_an_end_come_back(place: Place) -> None:
    failure = Failure("actor/7", "actor 7 exited 1", ("a", "b"), datetime(2026, 11, 21, tzinfo=UTC), ("learner/0",))
    run_state.write_failure(place.layout, failure)
    found = run_state.read(place)
    assert found is not None
    assert (found.phase, found.failure) == ("failed", failure)
    run_state.clear_end(place.layout)
    place.layout.finished_file.write_text("{}")  # as the manager does
    found = run_state.read(place)
    assert found is not None
    assert found.phase == "finished"


def test_a_run_whose_supervisor_vanished_has_failed(place: Place) -> None:
    run_state.write_state(place.layout, replace(STATE, phase="running"))
    found = run_state.read(place)
    assert found is not None
    assert found.phase == "failed"
    assert found.failure is not None
    assert "without a word" in found.failure.text


def test_a_machine_that_was_restarted_is_named_as_the_reason(place: Place) -> None:
    run_state.write_state(place.layout, replace(STATE, phase="running"))
    pid_file = place.layout.run / "supervisord.pid"
    pid_file.write_text("1\n")
    os.utime(pid_file, (1e9, 1e9))
    found = run_state.read(place)
    assert found is not None
    assert found.failure is not None
    assert "machine was restarted" in found.failure.text


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', '{"format": 9, "run": "one"}', "\x00\x00", '"x"'])
@pytest.mark.parametrize("name", ["run/state.json", "run/failure.json"])
def test_a_torn_or_foreign_file_is_named(place: Place, name: str, text: str) -> None:
    path = place.layout.root / name
    path.write_text(text)
    with pytest.raises(BackendUnreachable) as caught:
        LocalBackend().find("one")
    assert str(path) in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("text", ["", "{}", '{"run": "two", "uid": 5}', "[]"])
def test_a_torn_index_entry_is_named(place: Place, text: str) -> None:
    path = run_index.path("one")
    path.write_text(text)
    for call in (lambda: LocalBackend().find("one"), LocalBackend().runs, lambda: LocalBackend().place("one")):
        with pytest.raises(BackendUnreachable, match=r"one\.json"):
            call()


def test_broken_documents_and_a_broken_status_are_named(place: Place) -> None:
    (place.layout.run / "documents.json").write_text('{"documents": [{"name": 1}]}')
    with pytest.raises(BackendUnreachable, match=r"documents\.json"):
        LocalBackend().documents("one")
    (place.layout.results / "status.json").write_text("{")
    with pytest.raises(BackendUnreachable, match=r"status\.json"):
        LocalBackend().stored_status("one")


def test_logs_answer_without_the_state(place: Place) -> None:
    run_state.state_file(place.layout).write_text("{")
    line = {"ts": "2026-11-21T04:00:00.000000Z", "level": "INFO", "msg": "said"}
    (place.layout.logs / "actor-0.log").write_text(json.dumps(line) + "\n")
    assert [record.message for record in LocalBackend().logs("one", LogQuery())] == ["said"]


def test_down_of_a_dead_run_leaves_a_torn_state_as_it_is(place: Place) -> None:
    path = run_state.state_file(place.layout)
    path.write_text("{")
    assert list(LocalBackend().delete("one", volumes=False, grace_s=1)) == []
    assert path.read_text() == "{"


def test_documents_come_back_in_order(place: Place) -> None:
    made = [Document("b.conf", "x = 1\n", "actor", "t.j2"), Document("a.json", "{}\n")]
    run_state.write_documents(place.layout, made)
    assert LocalBackend().documents("one") == made


def test_names_that_are_no_run_are_not_looked_up(homes: Path) -> None:
    (homes / "secret.json").write_text('{"run": "x"}')
    for name in ("../../secret", "", ".", "A", "x" * 41, "a/b"):
        assert LocalBackend().find(name) is None
    with pytest.raises(Conflict, match="no run nobody"):
        LocalBackend().documents("nobody")
    assert list(LocalBackend().delete("nobody", volumes=True, grace_s=1)) == []
    assert LocalBackend().processes("nobody") == []
    with pytest.raises(Conflict):
        list(LocalBackend().logs("nobody", LogQuery()))


def test_a_run_whose_folder_is_gone_is_gone(place: Place) -> None:
    place.layout.root.rename(place.layout.root.with_name("moved"))
    assert LocalBackend().find("one") is None
    assert LocalBackend().place("one").uid != place.uid


def test_a_run_of_another_target_is_not_ours(place: Place) -> None:
    path = run_index.path("one")
    path.write_text(json.dumps({**json.loads(path.read_text()), "target": "kubernetes"}))
    assert LocalBackend().runs() == []


def test_write_replaces_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    files.write(path, "old")
    with pytest.raises(UnicodeEncodeError):
        files.write(path, "x" * 100_000 + "\ud800")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file.json"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_last_words_are_written_in_the_room_kept_for_them(tmp_path: Path) -> None:
    files.reserve(tmp_path)
    assert (tmp_path / files.RESERVE).stat().st_size == 65536

    def write_if_there_is_room() -> None:
        if (tmp_path / files.RESERVE).exists():
            raise OSError(28, "No space left on device")
        (tmp_path / "failure.json").write_text("{}")

    files.write_at_last(tmp_path, write_if_there_is_room)
    assert os.listdir(tmp_path) == ["failure.json"]


def test_what_killed_writers_left_is_removed_and_what_is_written_now_stays(tmp_path: Path) -> None:
    (tmp_path / ".state.json.99999999.tmp").write_text("half")  # no pid is that long
    (tmp_path / f".watch.json.{os.getpid()}.tmp").write_text("half")
    files.remove_asides(tmp_path)
    assert os.listdir(tmp_path) == [f".watch.json.{os.getpid()}.tmp"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_told_in_words(tmp_path: Path) -> None:
    def fill() -> None:
        with open("/dev/full", "w") as file:
            file.write("x")

    with (
        pytest.raises(BackendUnreachable, match="cannot write: No space left on device") as caught,
        files.reported("cannot write"),
    ):
        fill()
    assert caught.value.exit_code == 4
    assert "Free some space" in caught.value.hint


def test_a_lock_tells_who_holds_it_and_since_when(tmp_path: Path) -> None:
    path = tmp_path / "one.lock"
    with (
        lock.held(path, "one", "up", clock=lambda: 100.0),
        pytest.raises(Conflict) as caught,
        lock.held(path, "one", "down", clock=lambda: 107.0),
    ):
        pass
    assert f"process {os.getpid()} (rlctl up) since 7 s" in caught.value.message
    with lock.held(path, "one", "down"):
        pass


def test_a_lock_holds_on_a_file_system_that_is_only_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "one.lock"
    path.touch()
    read_only(monkeypatch)
    with lock.held(path, "one", "down"), pytest.raises(Locked), lock.held(path, "one", "down"):
        pass
    with pytest.raises(OSError, match="Read-only"), lock.held(tmp_path / "two.lock", "two", "down"):
        pass


def test_a_lock_whose_note_is_torn_still_refuses(tmp_path: Path) -> None:
    path = tmp_path / "one.lock"
    with lock.held(path, "one", "up"):
        path.write_text("{")
        with pytest.raises(Locked, match="another command"), lock.held(path, "one", "down"):
            pass


def test_life_is_seen_while_its_descriptor_is_open_and_no_longer(tmp_path: Path) -> None:
    path = tmp_path / "life"
    assert not lock.alive(path)
    with lock.life(path) as handle:
        with pytest.raises(Conflict, match="a supervisor of this run lives") as error, lock.life(path):
            pass
        assert error.value.hint == "`rlctl down` ends it; then the same command again."
        inherited = os.dup(handle)
    assert lock.alive(path)
    os.close(inherited)
    assert not lock.alive(path)


def test_a_place_is_minted_once_and_then_remembered(homes: Path) -> None:
    first, second = places.place("one"), places.place("one")
    assert first.uid != second.uid
    assert not first.recorded
    first.layout.make()
    places.record(first)
    file = run_index.path("one").stat().st_ino
    places.record(first)
    assert run_index.path("one").stat().st_ino == file, "an equal entry is not written again"
    assert places.place("one", "/elsewhere") == replace(first, recorded=True)
    with pytest.raises(ValueError, match="absolute"):
        places.place("two", "relative")


def test_sockets_lie_in_the_runtime_folder_when_it_is_private_short_and_lasts(
    homes: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = Path(f"/tmp/rlctl-{os.getuid()}")
    assert places.place("one").sockets.parent == homes / "r" / "rlctl"
    long = tmp_path / ("x" * 60)
    long.mkdir()
    spaced = homes / "a b"
    spaced.mkdir()
    for wrong in (str(long), str(spaced), "/", "relative", "", "/nowhere", f"/run/user/{os.getuid()}"):
        monkeypatch.setenv("XDG_RUNTIME_DIR", wrong)
        assert places.place("one").sockets.parent == own, wrong


def test_sockets_of_a_recorded_run_stay_when_the_environment_changes(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    places.make_sockets(place.sockets)
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert places.place("one").sockets == place.sockets


def test_the_longest_socket_path_fits_the_kernel(homes: Path) -> None:
    for name in ("modelpool-64.experience", "actor-99999.probe", "supervisor.sock.4194304"):
        assert len(os.fsencode(str(places.place("one").sockets / name))) <= 107


def test_a_socket_folder_that_is_a_link_or_anothers_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(BackendUnreachable, match="link is not a folder of"):
        places.make_sockets(tmp_path / "link" / "0123")
    if os.getuid() == 0:
        (tmp_path / "theirs").mkdir()
        os.chown(tmp_path / "theirs", 12345, 12345)
        with pytest.raises(BackendUnreachable, match="theirs is not a folder of"):
            places.make_sockets(tmp_path / "theirs" / "0123")


def test_socket_folders_are_for_their_user_alone(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir(mode=0o755)
    places.make_sockets(tmp_path / "base" / "0123")
    assert (tmp_path / "base").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "base" / "0123").stat().st_mode & 0o777 == 0o700
