"""Index of runs: one format, and one reader that tells what is torn."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rlctl.backends.kubernetes.run_state import index
from rlctl.backends.local.state import places
from rlctl.spec.runs import run_index
from rlctl.spec.runs.run_index import IndexEntry, Torn

HERE = IndexEntry("pole", "a" * 32, storage="/data", sockets="/tmp/rlctl-1/aaaaaaaa")
AWAY = IndexEntry(
    "pong", "b" * 32, "kubernetes", context="prod", namespace="rl", server="https://one:6443", images={"core": "c@d"}
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty state folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "rlctl"


def write(run: str, text: str | bytes) -> Path:
    path = run_index.path(run)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_an_entry_comes_back_equal_and_its_file_holds_nothing_empty() -> None:
    for entry in (HERE, AWAY):
        path = write(entry.run, json.dumps(entry.stored()))
        assert run_index.read(entry.run) == entry
        assert all(json.loads(path.read_text()).values())


def test_both_targets_write_the_same_format() -> None:
    place = places.Place(HERE.run, HERE.uid, Path(HERE.storage), Path(HERE.sockets), recorded=True)
    places.record(place)
    assert index.record(AWAY)
    for entry in (HERE, AWAY):
        assert json.loads(run_index.path(entry.run).read_text()) == entry.stored()
        assert entry.stored()["format"] == 1


def test_an_entry_without_a_target_is_of_this_machine() -> None:
    write("pole", json.dumps({"run": "pole", "uid": "a" * 32, "storage": "/data"}))
    assert run_index.read("pole") == IndexEntry("pole", "a" * 32, "local", storage="/data")


def test_what_is_no_text_is_as_if_it_were_not_there() -> None:
    write("pole", json.dumps({"uid": 5, "target": None, "context": ["prod"], "images": {"core": "x", "actor": 1}}))
    assert run_index.read("pole") == IndexEntry("pole", images={"core": "x"})
    write("pole", json.dumps({"images": "x"}))
    assert run_index.read("pole") == IndexEntry("pole")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not a JSON object"),
        ('{"run": "two"}', "it is of run two"),
        ('{"run": null}', "it is of run None"),
    ],
)
def test_a_torn_entry_is_told_in_words(text: str | bytes, why: str) -> None:
    path = write("pole", text)
    with pytest.raises(Torn, match=f"does not hold the index entry of run pole: {why}") as caught:
        run_index.read("pole")
    assert str(path) in caught.value.message
    assert caught.value.objects == (str(path),)
    assert "Move it away" in caught.value.hint


def test_an_entry_that_cannot_be_read_is_torn() -> None:
    run_index.path("pole").mkdir(parents=True)
    with pytest.raises(Torn, match="it cannot be read: Is a directory") as told:
        run_index.read("pole")
    assert "Keep it" in told.value.hint, "it says where the run is"


def test_without_an_index_there_is_no_run(home: Path) -> None:
    assert (run_index.read("pole"), run_index.names()) == (None, [])
    home.write_text("a file where the folder should be")
    assert (run_index.read("pole"), run_index.names()) == (None, [])


def test_names_are_those_of_files_that_are_entries() -> None:
    for name in ("pong", "pole"):
        write(name, "")
    run_index.path("pole").with_suffix(".lock").touch()
    assert run_index.names() == ["pole", "pong"]


@pytest.mark.processes
def test_it_is_read_without_pydantic() -> None:
    said = "import sys, rlctl.spec.runs.run_index, rlctl.spec.runs.model_names; print('pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"
