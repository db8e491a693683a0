"""An index entry that is damaged: nothing of the user's is removed because of it, and the run is found all the same."""

from __future__ import annotations

import json
import shutil
import socket
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rlctl.backends.base import LogQuery, RunState
from rlctl.backends.files import unusable
from rlctl.backends.local import LocalBackend
from rlctl.backends.local.state import places, run_state
from rlctl.backends.local.state.places import Place
from rlctl.errors import BackendUnreachable, RlctlError, Unreadable
from rlctl.spec.layout import state_home
from rlctl.spec.runs import run_index
from tests.cli.conftest import Result, Rlctl

UID = "0123456789abcdef" * 2


def enter(homes: Path, run: str, uid: str = UID) -> Place:
    """A run that was applied, and has a log."""
    made = Place(run, uid, state_home(), homes / "r" / "rlctl" / uid[:8], recorded=True)
    made.layout.make()
    places.make_sockets(made.sockets)
    places.record(made)
    run_state.write_state(
        made.layout,
        RunState(
            run=run, uid=uid, target="local", phase="stopped", rlctl_version="0.1", revision=1,
            created=datetime(2026, 11, 21, tzinfo=UTC), storage="", spec={}, hashes={}, replicas={"actor": 1},
            spec_replicas={"actor": 1},
        ),
    )  # fmt: skip
    line = {"ts": "2026-11-21T04:00:00.000000Z", "level": "INFO", "msg": f"said by {run}"}
    (made.layout.logs / "actor-0.log").write_text(json.dumps(line) + "\n")
    return made


def damage(place: Place, **values: Any) -> Path:
    path = run_index.path(place.run)
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    return path


def listen(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


@pytest.fixture
def place(homes: Path) -> Place:
    return enter(homes, "one")


@pytest.fixture
def command(place: Place, homes: Path) -> Rlctl:
    """The command line on the local target."""
    made = Rlctl(homes)
    made.targets = {"local": LocalBackend}
    return made


@pytest.mark.parametrize("garbage", ["null", '{"restarts": "x"}', '{"next_start": []}'])
def test_restarts_that_another_program_has_written_are_left_out(place: Place, garbage: str) -> None:
    run_state.watch_file(place.layout).write_text(f'{{"actor-0": {garbage}}}')
    assert [one.restarts for one in LocalBackend().processes("one")] == [0]


def test_what_a_user_may_not_write_at_home_is_not_cured_by_another_storage(homes: Path) -> None:
    assert "XDG_STATE_HOME" in unusable("x", PermissionError(13, "no", str(state_home() / "index"))).hint
    assert "storage.path" in unusable("x", PermissionError(13, "no", "/elsewhere/runs")).hint


def test_no_folder_is_cleared_that_rlctl_has_not_made(place: Place, homes: Path) -> None:
    precious = homes / "precious"
    for folder in (precious, precious / UID[:8], homes / "r" / "rlctl" / "ffffffff", homes / "rlctl" / ".." / UID[:8]):
        folder.mkdir(parents=True)
        (folder / "thesis.tex").write_text("x")
        path = damage(place, sockets=str(folder))
        with pytest.raises(Unreadable, match=r"one\.json does not hold the index entry of run one: sockets is no"):
            LocalBackend().find("one")
        with pytest.raises(BackendUnreachable, match="does not hold the index entry") as caught:
            list(LocalBackend().delete("one", volumes=True, grace_s=1))
        assert caught.value.exit_code == 4
        assert str(path) in caught.value.hint
        list(LocalBackend().delete("one", volumes=False, grace_s=1))
        assert (folder / "thesis.tex").exists()
        assert place.layout.run.is_dir()


def test_a_run_that_comes_from_another_user_has_sockets_of_ours(place: Place) -> None:
    damage(place, sockets=f"/tmp/rlctl-4711/{UID[:8]}")
    found = places.find("one")
    assert found is not None
    assert (found.layout.root, found.sockets) == (place.layout.root, places.sockets_of(UID))


def test_only_sockets_and_our_own_link_are_cleared_from_the_private_folder(homes: Path) -> None:
    folder = homes / "r" / "rlctl" / "01234567"
    places.make_sockets(folder)
    (folder / "deep").mkdir()
    (folder / "deep" / "kept").write_text("x")
    (folder / "note").write_text("x")
    (folder / "elsewhere").symlink_to(homes)
    (folder / "run").symlink_to(homes)
    listen(folder / "manager-0.rpc")
    places.clear_sockets(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["deep", "elsewhere", "note"]
    assert (folder / "deep" / "kept").exists()
    assert homes.is_dir()


def test_an_empty_private_folder_goes_unless_a_socket_is_kept(homes: Path) -> None:
    folder = homes / "r" / "rlctl" / "01234567"
    places.make_sockets(folder)
    for name in ("supervisor.sock", "manager-0.rpc"):
        listen(folder / name)
    places.clear_sockets(folder, keep="supervisor.sock")
    assert [path.name for path in folder.iterdir()] == ["supervisor.sock"]
    places.clear_sockets(folder)
    assert not folder.exists()


def test_a_link_in_place_of_the_private_folder_is_not_followed(homes: Path) -> None:
    (homes / "real").mkdir()
    listen(homes / "real" / "theirs.sock")
    (homes / "r" / "link").symlink_to(homes / "real")
    places.clear_sockets(homes / "r" / "link")
    assert (homes / "real" / "theirs.sock").exists()


def test_down_with_volumes_removes_no_folder_that_is_not_a_runs(place: Place) -> None:
    place.layout.run.rename(place.layout.root / "renamed")
    with pytest.raises(BackendUnreachable, match="is not that of run one: it holds no folder run"):
        list(LocalBackend().delete("one", volumes=True, grace_s=1))
    assert (place.layout.root / "renamed" / "state.json").exists()
    assert LocalBackend().place("one").uid == UID, "its entry stays"


def test_down_with_volumes_removes_the_run_and_follows_no_link_out_of_it(place: Place, homes: Path) -> None:
    (homes / "data").mkdir()
    (homes / "data" / "kept").write_text("x")
    (place.layout.root / "dataset").symlink_to(homes / "data")
    list(LocalBackend().delete("one", volumes=True, grace_s=1))
    assert not place.layout.root.exists()
    assert (homes / "data" / "kept").exists()
    assert LocalBackend().runs() == []


def test_down_with_volumes_goes_on_where_a_kill_left_an_empty_folder(place: Place) -> None:
    places.remove_data(place)
    place.layout.root.mkdir()
    list(LocalBackend().delete("one", volumes=True, grace_s=1))
    assert not place.layout.root.exists()


def check_found(result: Result) -> None:
    assert result.code == 0, result.err
    assert "warning: " in result.err
    assert "one.json" in result.err


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '{"run": "one"}', "\x00", None])
def test_logs_and_down_find_the_folder_of_a_run_whose_entry_cannot_be_read(command: Rlctl, text: str | None) -> None:
    path = run_index.path("one")
    path.unlink()
    path.mkdir() if text is None else path.write_text(text)
    for arguments in (("logs", "--run", "one"), ("logs",)):
        result = command(*arguments)
        check_found(result)
        assert "said by one" in result.out
    check_found(command("down", "one"))
    status = command("status", "one")
    assert status.code == 4
    assert "move it away" in status.err
    assert "`rlctl logs --run one` and `rlctl down one` answer" in status.err


def test_a_run_found_by_name_has_its_own_uid_and_sockets(place: Place, homes: Path, monkeypatch: Any) -> None:
    (place.layout.run / "supervisord.conf").write_text(f"[unix_http_server]\nfile = {place.supervisor_socket}\n")
    run_index.path("one").write_text("{")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(homes))
    assert places.find_at_least("one") == place


def test_a_rendered_folder_for_sockets_that_rlctl_does_not_make_is_not_believed(place: Place) -> None:
    (place.layout.run / "supervisord.conf").write_text("[unix_http_server]\nfile = /precious/supervisor.sock\n")
    run_index.path("one").write_text("{")
    assert places.find_at_least("one") == replace(place, sockets=places.sockets_of(UID))


def test_of_two_folders_none_is_guessed_and_both_are_named(command: Rlctl, homes: Path) -> None:
    other = enter(homes, "one", "f" * 32)
    run_index.path("one").write_text("{")
    for verb in (("down", "one"), ("logs", "--run", "one")):
        result = command(*verb)
        assert result.code == 4
        assert str(other.layout.root) in result.err
        assert "cannot be told" in result.err


def test_without_any_folder_of_its_name_the_entry_is_to_be_put_right(place: Place, homes: Path) -> None:
    place.layout.root.rename(homes / "moved")
    run_index.path("one").write_text("{")
    with pytest.raises(BackendUnreachable) as caught:
        list(LocalBackend().logs("one", LogQuery()))
    assert "Put " in caught.value.hint
    assert "no folder of it lies in" in caught.value.hint


def test_status_without_a_name_shows_the_run_that_can_be_read(command: Rlctl, homes: Path) -> None:
    enter(homes, "two", "f" * 32)
    run_index.path("one").write_text("{")
    for arguments in (("status",), ("status", "--all")):
        result = command(*arguments)
        assert result.code == 0, result.err
        assert "two" in result.out
        assert "left out: " in result.err
        assert "one.json" in result.err


def test_a_folder_in_place_of_a_file_is_told_with_a_hint(place: Place) -> None:
    path = run_state.state_file(place.layout)
    path.unlink()
    path.mkdir()
    with pytest.raises(RlctlError, match="Is a directory") as caught:
        LocalBackend().find("one")
    assert "ove the file away" in caught.value.hint
    (place.layout.results / "status.json").mkdir()
    with pytest.raises(RlctlError, match="Is a directory") as caught:
        LocalBackend().stored_status("one")
    assert "move it away" in caught.value.hint


def test_an_entry_that_cannot_be_read_is_to_be_kept(homes: Path) -> None:
    run_index.path("far").mkdir(parents=True)
    with pytest.raises(BackendUnreachable, match="it cannot be read: Is a directory") as told:
        places.find("far")
    assert "Keep it" in told.value.hint
    assert "move it away" not in told.value.hint


def test_data_of_a_run_whose_state_is_lost_is_removed_only_when_that_is_confirmed(
    place: Place, command: Rlctl
) -> None:  # fmt: skip
    (place.layout.run / "state.json").unlink()
    refused = command("down", "one", "--volumes")
    assert (refused.code, place.layout.root.is_dir()) == (9, True)
    assert str(place.layout.root) in refused.err
    assert command("down", "one").code == 0
    assert place.layout.root.is_dir()
    removed = command("down", "one", "--volumes", "--yes")
    assert (removed.code, place.layout.root.exists(), run_index.read("one")) == (0, False, None)
    assert "one is removed, with its data in" in removed.out + removed.err


def test_a_name_whose_folder_is_gone_can_be_freed_and_one_whose_folder_is_there_cannot(
    place: Place, command: Rlctl
) -> None:  # fmt: skip
    assert command("down", "one", "--forget").code == 2
    empty = place.storage.parent / "mount"
    empty.mkdir()
    damage(place, storage=str(empty))
    assert command("status", "one").code == 4, "a mount point is still a folder"
    damage(place, storage="/nfs/unmounted")
    refused = command("down", "one", "--forget")
    assert (refused.code, "Mount it" in refused.err) == (4, True)
    assert command("status", "one").code == 4
    with pytest.raises(BackendUnreachable, match="/nfs/unmounted, where the data of run one lies, is not there"):
        places.place("one")
    outside = run_index.folder().parent / "kept.json"
    outside.write_text("{}")
    assert command("down", "../kept", "--forget").code == 2
    assert outside.exists()
    damage(place, storage=str(place.storage))
    shutil.rmtree(place.layout.root)
    freed = command("down", "one", "--forget")
    assert (freed.code, run_index.read("one")) == (0, None)
    assert "its folder below" in freed.out + freed.err


def test_a_folder_that_cannot_be_looked_at_is_not_taken_for_one_that_was_removed(place: Place) -> None:
    damage(place, storage=f"/{'x' * 300}")
    with pytest.raises(BackendUnreachable, match="cannot be looked at: File name too long"):
        LocalBackend().find("one")


def test_processes_of_a_role_that_this_release_does_not_know_are_left_out(place: Place) -> None:
    known = LocalBackend().find("one")
    assert known is not None
    run_state.write_state(place.layout, replace(known, replicas={"actor": 1, "coach": 2}))
    assert [(one.role, one.index) for one in LocalBackend().processes("one")] == [("actor", 0)]
