"""Revisions beside the state: kept once, the newest few, readable or a typed error."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from rlctl.backends.base import Document, RunState
from rlctl.backends.local import LocalBackend
from rlctl.backends.local.state import places, revisions, run_state
from rlctl.backends.local.state.places import Place
from rlctl.errors import BackendUnreachable, Conflict
from tests.backends.local.machine import Machine, role_plan, until
from tests.backends.local.state.test_run_state import STATE

DOCUMENTS = [Document("programs/actor.conf", "command = a\n", "actor", "templates/local/program.conf.j2")]


@pytest.fixture
def place(homes: Path) -> Place:
    """A run at revision 3, of which no revision is stored."""
    made = replace(places.place("one"), uid="0" * 32, sockets=homes / "r" / "rlctl" / "00000000", recorded=True)
    made.layout.make()
    places.record(made)
    run_state.write_documents(made.layout, DOCUMENTS)
    run_state.write_state(made.layout, STATE)
    return made


def at(number: int) -> RunState:
    return replace(STATE, revision=number, spec={**STATE.spec, "seed": number})


def test_what_a_revision_holds_is_read_again(place: Place) -> None:
    revisions.keep(place, None, STATE, DOCUMENTS)
    found = revisions.read(place, STATE, 3)
    assert found.documents == DOCUMENTS
    assert found.revision.spec == STATE.spec
    assert {role.role: (role.replicas, role.hash) for role in found.plan.roles} == {"actor": (4, "aaaaaaaaaaaa")}


@pytest.mark.parametrize("code", ["/home/ana/mine", None])
def test_a_revision_brings_back_where_the_users_modules_lie(place: Place, code: str | None) -> None:
    revisions.keep(place, None, replace(at(3), code=code), DOCUMENTS)
    assert revisions.read(place, replace(STATE, code="/elsewhere"), 3).plan.code_path == code


def test_a_revision_is_written_once(place: Place) -> None:
    revisions.keep(place, None, at(3), DOCUMENTS)
    path = place.layout.run / "revisions" / "3.json"
    before = path.read_text()
    revisions.keep(place, at(3), at(3), DOCUMENTS, note="again")
    assert path.read_text() == before


def test_a_revision_that_no_state_refers_to_is_replaced_and_not_listed(place: Place) -> None:
    revisions.keep(place, STATE, at(4), DOCUMENTS, note="killed")  # before its state was written
    assert [revision.number for revision in revisions.revisions(place, STATE)] == []
    with pytest.raises(Conflict, match="no revision 4"):
        revisions.read(place, STATE, 4)
    revisions.keep(place, STATE, at(4), DOCUMENTS, note="again")
    assert revisions.read(place, at(4), 4).revision.note == "again"


def test_only_the_newest_five_are_kept_and_nothing_else_is_removed(place: Place) -> None:
    (place.layout.models / "weights").write_text("kept")
    for number in range(4, 12):
        revisions.keep(place, at(number - 1), at(number), DOCUMENTS)
        revisions.drop_old(place.layout, number)
    assert [revision.number for revision in revisions.revisions(place, at(11))] == [11, 10, 9, 8, 7]
    assert (place.layout.models / "weights").exists()
    assert (place.layout.run / "documents.json").exists()


def test_a_torn_revision_is_an_error_in_words(place: Place) -> None:
    revisions.keep(place, None, at(3), DOCUMENTS)
    (place.layout.run / "revisions" / "3.json").write_text("{")
    with pytest.raises(BackendUnreachable, match="revision 3 of run one"):
        LocalBackend().revisions("one")


def test_a_revision_of_another_run_in_its_place_is_refused(place: Place) -> None:
    revisions.keep(place, None, at(3), DOCUMENTS)
    path = place.layout.run / "revisions" / "3.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "number": 7}))
    with pytest.raises(BackendUnreachable, match="another number"):
        revisions.read(place, STATE, 3)


def test_an_unknown_run_has_no_revisions(homes: Path) -> None:
    with pytest.raises(Conflict):
        LocalBackend().revisions("one")
    with pytest.raises(Conflict):
        list(LocalBackend().rollback("one", 1))


@pytest.mark.processes
@pytest.mark.timeout(240)
def test_rollback_restarts_what_differs_and_is_a_revision_itself(machine: Machine) -> None:
    machine.up("one", role_plan("manager"), role_plan("learner"), role_plan("actor", 2))
    machine.up("one", role_plan("manager"), role_plan("learner", 1, {"lr": 1}), role_plan("actor", 2))
    list(machine.backend.scale("one", {"actor": 3}))
    until(lambda: len(machine.pids("one")) == 5, "five processes")
    before = machine.pids("one")
    done = {each.object: each.what for each in machine.backend.rollback("one", 1)}
    assert done["learner/0"] == "restarted"
    until(lambda: len(machine.pids("one")) == 5, "five processes again")
    after = machine.pids("one")
    assert {name for name in before if before[name] != after[name]} == {"learner/0"}
    kept = machine.backend.revisions("one")
    assert [revision.number for revision in kept] == [3, 2, 1]
    assert kept[0].note == "rollback to 1"
    assert "@" in kept[0].by
    assert {each.what for each in machine.backend.rollback("one", 3)} == {"unchanged"}


def test_the_author_is_told_by_number_where_the_user_has_no_name(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr("getpass.getuser", nameless)
    revisions.keep(place, STATE, at(4), DOCUMENTS)
    assert revisions.read(place, at(4), 4).revision.by.startswith(f"{os.getuid()}@")
