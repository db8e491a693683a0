"""Names that `rlctl_agents.load` takes or refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from rlctl.spec.layout import Layout
from rlctl.spec.runs import run_index
from rlctl.spec.runs.run_index import IndexEntry
from rlctl.spec.schema import Init
from rlctl_agents.policies.initial import NotInitial, begin_from_stored
from rlctl_agents.policies.loaded import load
from tests.cli.models import store
from tests.training.test_stored_policy import KINDS


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a folder that holds a policy, and an empty index of runs."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    Path("model").mkdir()
    Path("model/policy.json").write_text("{}")
    run_index.folder().mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("pole@", "'pole@' names no model, as in cartpole@best"),
        ("pole@bset", "'pole@bset' names no model"),
        ("pole@²", "names no model"),
        ("./model/policy.json", r"model/policy\.json is a file: name the folder"),
        ("./nothing", r"nothing holds no policy\.json"),
        ("pole", "there is no run pole on this machine$"),
        ("model", r"there is no run model on this machine; the folder is \./model"),
    ],
)
def test_what_names_no_model_is_told(named: str, said: str) -> None:
    with pytest.raises(LookupError, match=said):
        load(named)


@pytest.mark.parametrize("where", ["./model", Path("model")])
def test_a_path_and_a_name_with_a_slash_are_folders(where: str | Path) -> None:
    with pytest.raises(ValueError, match="describe no policy"):
        load(where)


@pytest.mark.parametrize(("text", "said"), [("{", "not JSON"), ("{}", "uid or storage is missing")])
def test_an_index_entry_that_is_torn_is_told_in_words(text: str, said: str) -> None:
    run_index.path("pole").write_text(text)
    with pytest.raises(ValueError, match=rf"pole\.json does not hold the index entry of run pole: {said}"):
        load("pole@best")


def test_a_run_on_a_cluster_has_to_be_pulled() -> None:
    run_index.path("far").write_text(json.dumps(IndexEntry("far", "a" * 32, "kubernetes").stored()))
    with pytest.raises(LookupError, match="run far is on a cluster"):
        load("far@best")


def kept(home: Path) -> Layout:
    """A run of this machine with a best model."""
    entry = IndexEntry("pole", "a" * 32, storage=str(home))
    run_index.path("pole").write_text(json.dumps(entry.stored()))
    layout = Layout.of(home, "pole", entry.uid)
    store.best(layout, store.generation(layout, *KINDS[0]), *KINDS[0])
    return layout


def test_a_best_model_whose_description_has_changed_is_refused(home: Path) -> None:
    layout = kept(home)
    assert load("pole@best").described.ref.version == 17
    description = layout.models / json.loads((layout.models / "best.json").read_bytes())["policy"]
    description.write_bytes(description.read_bytes() + b"\n")
    with pytest.raises(ValueError, match="is damaged"):
        load("pole@best")


@pytest.mark.parametrize("goes", [".json", ".safetensors"])
def test_a_best_model_that_is_replaced_while_it_is_loaded_is_loaded_anew(
    home: Path, goes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, algorithm = kept(home), load("pole@best")._algorithm
    old = layout.models / json.loads((layout.models / "best.json").read_bytes())["policy"]
    read = Path.read_bytes

    def reading(path: Path) -> bytes:
        """A run in which a better model comes, and this one's files go, with the first read of one of them."""
        if path == old.with_suffix(goes) and path.exists():
            store.best(layout, algorithm, *KINDS[0], version=18)
            path.unlink()
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", reading)
    assert load("pole@best").described.ref.version == 18


def test_a_best_model_whose_files_are_gone_is_told_with_the_path(home: Path) -> None:
    layout = kept(home)
    selected = json.loads((layout.models / "best.json").read_bytes())
    (layout.models / "best.json").write_text(json.dumps({"policy": selected["policy"]}))  # as of release 0.1
    (layout.models / selected["policy"]).unlink()
    with pytest.raises(ValueError, match=rf"pole@best: .*No such file.*{layout.models}"):
        load("pole@best")
    with pytest.raises(NotInitial, match=r"init\.run: pole@best: .*No such file"):
        begin_from_stored(home, cast(Any, None), Init(run="pole@best"))


@pytest.mark.parametrize("text", ["[", "[]", "{}", '{"generation": {}}'])
def test_a_generation_that_cannot_be_read_is_told(home: Path, text: str) -> None:
    layout = kept(home)
    (layout.checkpoints / "generation-000099.json").write_text(text)
    with pytest.raises(ValueError, match=r"generation-000099\.json is damaged"):
        load("pole@99")


@pytest.mark.parametrize("text", ["[", "[]", "{}"])
def test_a_record_of_the_best_model_that_names_none_is_told(home: Path, text: str) -> None:
    layout = kept(home)
    (layout.models / "best.json").write_text(text)
    with pytest.raises(ValueError, match=r"best\.json names no model"):
        load("pole@best")
