"""Revisions on every target: words before a change, and the way back."""

import pytest

from rlctl.errors import Conflict
from tests.conformance.targets import RUN, Target, touched


def kinds(target: Target, **changes: object) -> set[str]:
    plan, documents = target.rendered(target.spec(**changes))  # type: ignore[arg-type]
    return {difference.what for difference in target.backend.differences(plan, documents)}


def test_of_a_run_that_is_not_there_everything_would_be_added(target: Target) -> None:
    assert kinds(target) == {"add"}
    assert target.backend.find(RUN) is None, "nothing was written"


def test_nothing_differs_right_after_an_up(target: Target) -> None:
    target.up()
    assert kinds(target) <= {"same"}


def test_what_an_up_would_change_is_named_with_a_diff_and_left_as_it_is(target: Target) -> None:
    target.up()
    before = target.state()
    plan, documents = target.rendered(target.spec(lr=2e-3))
    found = [each for each in target.backend.differences(plan, documents) if each.what != "same"]
    assert found
    assert all("learner" in each.object for each in found)
    lines = [line for each in found for line in each.lines]
    assert any(line.startswith("+") and "0.002" in line for line in lines)
    assert target.state() == before
    assert {each.what for each in target.up()} <= {"unchanged"}


def test_every_up_that_changes_something_is_a_revision_newest_first(target: Target) -> None:
    target.up()
    target.up()
    target.up(lr=2e-3)
    kept = target.backend.revisions(RUN)
    assert [revision.number for revision in kept] == [2, 1]
    assert [revision.spec["algorithm"]["lr"] for revision in kept] == [2e-3, 1e-3]
    assert all("@" in revision.by for revision in kept)
    assert kept[0].at >= kept[1].at


def test_rollback_applies_what_was_before_as_a_new_revision(target: Target) -> None:
    target.up()
    first = {document.name: document.text for document in target.backend.documents(RUN)}
    target.up(lr=2e-3)
    assert touched(target.backend.rollback(RUN, 1)) == {"learner"}
    state = target.state()
    assert state.revision == 3
    assert state.spec["algorithm"]["lr"] == 1e-3
    assert {document.name: document.text for document in target.backend.documents(RUN)} == first
    newest = target.backend.revisions(RUN)[0]
    assert (newest.number, newest.note) == (3, "rollback to 1")
    assert {each.what for each in target.up()} <= {"unchanged"}, "it is as if that spec had been applied"


def test_a_revision_keeps_its_note_and_its_documents(target: Target) -> None:
    target.up()
    first, spec = target.backend.documents(RUN), target.spec(lr=2e-3)
    plan, documents = target.rendered(spec)
    list(target.backend.apply(plan, documents, spec.model_dump(mode="json"), note="build 7"))
    assert [revision.note for revision in target.backend.revisions(RUN)] == ["build 7", ""]
    assert target.backend.documents(RUN, 1) == first
    assert target.backend.documents(RUN, 2) == target.backend.documents(RUN) != first
    with pytest.raises(Conflict, match="no revision 9"):
        target.backend.documents(RUN, 9)


def test_rollback_keeps_the_live_number_of_actors(target: Target) -> None:
    target.up()
    target.up(lr=2e-3)
    list(target.backend.scale(RUN, {"actor": 4}))
    list(target.backend.rollback(RUN, 1))
    assert target.state().replicas["actor"] == 4


def test_a_revision_that_is_not_kept_is_a_conflict(target: Target) -> None:
    target.up()
    with pytest.raises(Conflict):
        list(target.backend.rollback(RUN, 7))
    with pytest.raises(Conflict):
        list(target.backend.rollback("nobody", 1))
    with pytest.raises(Conflict):
        target.backend.revisions("nobody")


def test_the_newest_five_revisions_are_kept(target: Target) -> None:
    for number in range(1, 8):
        target.up(lr=number * 1e-3)
    assert [revision.number for revision in target.backend.revisions(RUN)] == [7, 6, 5, 4, 3]
