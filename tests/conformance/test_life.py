"""Life of a run on every target, from before its first `up` until nothing of it is left."""

import pytest

from rlctl.backends.base import Check, LogQuery, LogRecord
from rlctl.errors import BackendUnreachable, Conflict
from tests.conformance.targets import RUN, Target, touched


def test_nothing_is_known_of_a_run_before_its_first_up(target: Target) -> None:
    assert target.backend.find(RUN) is None
    uid = target.backend.place(RUN, None).uid
    assert len(uid) == 32
    assert target.backend.find(RUN) is None, "asking for its place records nothing"
    assert [state.run for state in target.backend.runs()] == []
    assert target.down() == [], "an absent run is no error"


def test_an_up_makes_every_role_and_the_run_is_found(target: Target) -> None:
    done = target.up()
    assert {"manager", "modelpool", "learner", "actor", "evaluator"} <= touched(done)
    state = target.state()
    assert (state.phase, state.revision) == ("running", 1)
    assert state.uid == target.backend.place(RUN, None).uid
    assert state.replicas == state.spec_replicas
    assert state.replicas["actor"] == 2
    assert state.spec["algorithm"]["lr"] == 1e-3
    assert [found.run for found in target.backend.runs()] == [RUN]


def test_the_same_up_again_changes_nothing(target: Target) -> None:
    target.up()
    before = target.state()
    assert {applied.what for applied in target.up()} <= {"unchanged"}
    assert target.state() == before


def test_documents_come_back_as_they_were_applied(target: Target) -> None:
    target.up()
    _, sent = target.rendered(target.spec())
    kept = {document.name: document.text for document in target.backend.documents(RUN)}
    assert kept == {document.name: document.text for document in sent}


def test_another_learning_rate_touches_the_learner_alone_and_is_a_revision(target: Target) -> None:
    target.up()
    done = target.up(lr=2e-3)
    assert touched(done) == {"learner"}
    state = target.state()
    assert state.revision == 2
    assert state.spec["algorithm"]["lr"] == 2e-3


def test_every_wanted_replica_is_shown(target: Target) -> None:
    target.up(actors=3)
    target.until(lambda: target.replicas("actor") == 3, "three actors are shown")
    assert {process.role for process in target.backend.processes(RUN)} == set(target.state().replicas)
    if target.runs:
        target.until(lambda: {each.state for each in target.backend.processes(RUN)} == {"running"}, "all of them run")


def test_scale_touches_that_role_alone_and_holds_until_the_spec_says_another_number(target: Target) -> None:
    target.up()
    assert touched(target.backend.scale(RUN, {"actor": 4})) == {"actor"}
    target.until(lambda: target.replicas("actor") == 4, "four actors are shown")
    assert target.state().replicas["actor"] == 4
    assert {applied.what for applied in target.up()} <= {"unchanged"}
    assert target.state().replicas["actor"] == 4
    assert touched(target.up(actors=3)) == {"actor"}
    assert target.state().replicas["actor"] == 3


def test_scale_to_fewer_takes_the_others_away(target: Target) -> None:
    target.up(actors=3)
    assert touched(target.backend.scale(RUN, {"actor": 1})) == {"actor"}
    target.until(lambda: target.replicas("actor") == 1, "one actor is shown")


def test_a_role_that_the_run_has_not_cannot_be_scaled_or_restarted(target: Target) -> None:
    target.up()
    for change in (target.backend.scale(RUN, {"replay": 2}), target.backend.restart(RUN, "replay")):
        with pytest.raises(Conflict):
            list(change)


def test_restart_touches_that_role_alone(target: Target) -> None:
    if not target.runs:
        pytest.skip("no pod of this target runs, so none becomes ready again")
    target.up()
    target.until(lambda: {each.state for each in target.backend.processes(RUN)} == {"running"}, "all of them run")
    before = {(each.role, each.index): each.pid for each in target.backend.processes(RUN)}
    assert touched(target.backend.restart(RUN, "learner")) == {"learner"}
    target.until(lambda: {each.state for each in target.backend.processes(RUN)} == {"running"}, "all of them run")
    after = {(each.role, each.index): each.pid for each in target.backend.processes(RUN)}
    assert {key for key in before if before[key] != after[key]} <= {("learner", 0)}


def test_down_keeps_what_is_recorded_and_up_goes_on_with_the_same_run(target: Target) -> None:
    target.up()
    before = target.state()
    target.down()
    stopped = target.state()
    assert stopped.phase == "stopped"
    assert (stopped.uid, stopped.storage, stopped.spec) == (before.uid, before.storage, before.spec)
    assert all(each.state in ("stopped", "exited", "stopping") for each in target.backend.processes(RUN))
    target.down()  # once more is no error
    target.up()
    again = target.state()
    assert (again.phase, again.uid, again.created) == ("running", before.uid, before.created)


def test_down_with_volumes_forgets_the_run_and_frees_its_name(target: Target) -> None:
    target.up()
    uid = target.state().uid
    target.down(volumes=True)
    assert target.backend.find(RUN) is None
    assert [state.run for state in target.backend.runs()] == []
    assert target.backend.place(RUN, None).uid != uid


def test_two_names_are_two_runs(target: Target) -> None:
    target.up()
    target.up(run="other", lr=5e-3)
    assert {state.run for state in target.backend.runs()} == {RUN, "other"}
    assert target.state("other").uid != target.state().uid
    target.down(run="other", volumes=True)
    assert {state.run for state in target.backend.runs()} == {RUN}
    assert {applied.what for applied in target.up()} <= {"unchanged"}


def test_a_run_that_is_down_cannot_be_scaled_restarted_or_looked_at(target: Target) -> None:
    target.up()
    target.down()
    for change in (target.backend.scale(RUN, {"actor": 3}), target.backend.restart(RUN, "actor")):
        with pytest.raises(Conflict):
            list(change)
    with pytest.raises(Conflict), target.backend.forward(RUN, "status"):
        pass
    with pytest.raises(BackendUnreachable):
        target.backend.control(RUN, "GET", "/status")


def test_the_manager_answers_while_the_run_lives(target: Target) -> None:
    target.up()
    if not target.answers:
        with pytest.raises(BackendUnreachable):
            target.backend.control(RUN, "GET", "/status")
        return
    target.until(lambda: target.backend.control(RUN, "GET", "/status")["phase"] == "running", "the manager answers")


def test_logs_are_records_by_time(target: Target) -> None:
    target.up()
    if target.runs:
        target.until(lambda: {each.state for each in target.backend.processes(RUN)} == {"running"}, "all of them run")
    records = list(target.backend.logs(RUN, LogQuery(tail=20)))
    assert all(isinstance(record, LogRecord) for record in records)
    assert [record.time for record in records] == sorted(record.time for record in records)


def test_preflight_and_doctor_answer_in_checks(target: Target) -> None:
    plan, documents = target.rendered(target.spec())
    looked_at = [*target.backend.preflight(plan, documents), *target.backend.doctor()]
    assert all(isinstance(check, Check) and check.name and check.text for check in looked_at)
    assert target.backend.doctor(), "there is always something to look at"
    assert target.backend.find(RUN) is None, "nothing was written"
