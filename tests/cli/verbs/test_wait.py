"""`wait`: yes, no, too late, or failed."""

from typing import Any

import pytest

from rlctl.cli.verbs.wait import parse
from rlctl.errors import UsageError
from tests.cli.conftest import START, STATUS, Rlctl
from tests.cli.test_surface import FAILURE


@pytest.mark.parametrize(
    "condition",
    [
        "ready",
        "steps=1e4",
        "steps>=76800",
        "consumed_steps=70000",
        "updates>100",
        "episodes=1204",
        "return>=200",
        "return<300",
    ],
)
def test_a_condition_that_holds_is_0_at_once(rlctl: Rlctl, condition: str) -> None:
    rlctl.up()
    assert rlctl("wait", "pole", "--for", condition).code == 0
    assert rlctl.time_s == 0


def test_the_word_of_release_0_1_is_refused_with_the_one_of_now() -> None:
    with pytest.raises(UsageError, match="--for rows>=5: rows are consumed_steps since") as refused:
        parse("rows>=5")
    assert str(refused.value.hint).startswith("consumed_steps>=5:")


def test_it_waits_until_the_number_is_reached(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl.at(30, lambda: rlctl.report(totals={**STATUS["totals"], "env_steps": 1_000_000}))
    result = rlctl("wait", "--for", "steps=1e6", "--timeout", "1m", "-o", "json")
    assert result.code == 0
    assert result.json["met"] is True
    assert result.json["value"] == 1e6
    assert rlctl.time_s == pytest.approx(30, abs=1)


def test_of_a_run_whose_manager_says_nothing_no_number_is_known(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl.report(time=None, totals={})
    result = rlctl("wait", "--for", "consumed_steps<100", "--timeout", "5s", "-o", "json")
    assert result.code == 6


def test_ready_means_that_every_wanted_replica_runs(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl.backend.set_process("pole", "actor", 1, state="starting")
    rlctl.at(4, lambda: rlctl.backend.set_process("pole", "actor", 1, state="running"))
    assert rlctl("wait", "--for", "ready").code == 0
    assert rlctl.time_s == pytest.approx(4)


def learner(time_s: float, **values: Any) -> dict[str, Any]:
    """A report at this time, with another learner than the one of STATUS."""
    changed = {**STATUS["roles"]["learner"][0], **values}
    return {"time": START.timestamp() + time_s, "roles": {**STATUS["roles"], "learner": [changed]}}


def test_ready_means_that_a_restarted_learner_has_gone_on_and_reported(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl.time_s = 20
    rlctl("restart", "learner")
    rlctl.at(22, lambda: rlctl.report(**learner(22, age_s=21.0)))  # the manager still means the one before
    rlctl.at(24, lambda: rlctl.report(**learner(24, age_s=1.0, joined=False)))  # it has said hello, and resumes
    rlctl.at(28, lambda: rlctl.report(**learner(28, age_s=5.0, silent_s=0.2)))
    assert rlctl("wait", "--for", "ready").code == 0
    assert rlctl.time_s == pytest.approx(28)


def test_who_has_not_joined_is_named_while_ready_is_waited_for(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl.report(roles={**learner(12, joined=False)["roles"], "evaluator": []})
    result = rlctl("wait", "--for", "ready", "--timeout", "15s")
    assert result.code == 6
    assert "slowest: evaluator/0 (has not joined yet)" in result.err
    assert "learner     0/1     running" in rlctl("status").out


def test_too_late_is_6_with_a_heartbeat_before(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl.backend.set_process("pole", "actor", 1, state="backoff", reason="again in 8 s")
    result = rlctl("wait", "--for", "return>=475", "--timeout", "25s")
    assert result.code == 6
    assert result.err.splitlines()[:2] == [
        f"00:00:{second} waiting for return>=475 (now 212.3), running; slowest: actor/1 (backoff: again in 8 s)"
        for second in (10, 20)
    ]
    assert "after 25s (now 212.3); slowest: actor/1 (backoff: again in 8 s)" in result.err


def test_a_run_that_is_over_cannot_get_further(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl.at(3, lambda: list(rlctl.backend.delete("pole", volumes=False, grace_s=1)))
    result = rlctl("wait", "--for", "return>=475", "-o", "json")
    assert result.code == 1
    assert result.json["met"] is False


def test_a_failed_run_is_7_with_its_cause(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl.at(3, lambda: rlctl.backend.fail("pole", FAILURE))
    result = rlctl("wait", "--for", "finished")
    assert result.code == 7
    assert FAILURE.text in result.err


def test_what_was_reached_counts_after_the_end(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl.backend.finish("pole", "enough")
    assert rlctl("wait", "pole", "--for", "finished").code == 0
    assert rlctl("wait", "pole", "--for", "return>=200").code == 0
    assert rlctl("wait", "pole", "--for", "return>=300").code == 1


def test_deleted_holds_for_a_run_that_is_not_there(rlctl: Rlctl) -> None:
    assert rlctl("wait", "pole", "--for", "deleted").code == 0
    rlctl.up()
    rlctl.at(3, lambda: list(rlctl.backend.delete("pole", volumes=True, grace_s=1)))
    assert rlctl("wait", "pole", "--for", "deleted").code == 0
    assert rlctl.time_s == pytest.approx(3)


def test_an_unknown_run_is_a_usage_error(rlctl: Rlctl) -> None:
    assert rlctl("wait", "nobody", "--for", "ready").code == 2


@pytest.mark.parametrize("text", ["", "done", "steps", "steps=", "steps=many", "steps=nan", "return~1", "loss<1"])
def test_other_conditions_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse(text)


def test_the_return_of_one_of_several_seats_is_no_condition(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl.report(evaluation={**STATUS["evaluation"], "seats": 2})
    result = rlctl("wait", "--for", "return>=475")
    assert result.code == 2
    assert "cannot be judged: the environment of pole has 2 seats" in result.err
    assert rlctl("wait", "--for", "updates=1").code == 0
