"""One run that is looked at, refused a change, given new settings and restarted: what a day brings, in this order."""

import json
import urllib.error
import urllib.request

import pytest

from tests.cluster.support.people import Person
from tests.cluster.support.training import Training, start
from tests.cluster.support.witness import Witness
from tests.end_to_end.conftest import wait_until

pytestmark = [pytest.mark.smoke, pytest.mark.nodes, pytest.mark.rwx, pytest.mark.registry]

ALL = ("manager", "modelpool", "learner", "actor", "evaluator")


@pytest.fixture(scope="module")
def started(resident: Person, witness: Witness, images: dict[str, str]) -> Training:
    return start(resident, witness, images, actors=2)


@pytest.fixture
def run(started: Training, explained: None) -> Training:
    """Each test compares with what it found."""
    return started


def test_pages_are_forwarded_for_as_long_as_open_runs(run: Training) -> None:
    run.until("tensorboard", 1)  # `up` does not wait for it
    for page, words in (("status", b"train"), ("tensorboard", b"TensorBoard")):
        with run.who.started("open", page, "train", "--no-browser") as command:
            url = command.line()
            browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
            with browser.open(url, timeout=30) as answer:
                assert answer.status == 200
                assert words in answer.read()
            with pytest.raises(urllib.error.HTTPError, match="403"):
                urllib.request.urlopen(url, timeout=30)  # the link is good once


def test_a_new_env_is_refused_with_exit_5_while_the_run_goes_on(run: Training) -> None:
    before = run.uids(*ALL)
    refused = run.up("--set", "env.id=Acrobot-v1", code=5)
    assert "env.id" in refused.stderr
    run.goes_on()
    assert run.uids(*ALL) == before


def test_a_new_learning_rate_restarts_the_learner_alone_and_a_stop_condition_nobody(run: Training) -> None:
    before = run.uids(*ALL)
    told = run.up("--set", "stop.agent_steps=100000000")
    assert "reloaded" in told.said
    assert run.uids(*ALL) == before
    wait_until(lambda: "agent_steps" in run.status()["stop"]["conditions"], timeout_s=30, what="the new condition")

    steps, learner = run.steps(), run.uids("learner")
    run.up("--set", "stop.agent_steps=100000000", "--set", "algorithm.lr=0.0005")
    run.until("learner", 1, other_than=learner)
    after = run.uids(*ALL)
    assert {name for name in after if after[name] != before.get(name)} == {"train-learner-0"}
    run.goes_on()
    assert run.status()["resumed"]["steps"] > 0
    assert run.steps() > steps


def test_logs_of_every_role_are_merged_and_a_previous_life_is_kept(run: Training) -> None:
    merged = run.who("logs", "--run", "train", "-o", "json").stdout
    assert {"manager/0", "learner/0", "modelpool/0", "actor/0", "actor/1"} <= _processes(merged)
    run.who("logs", "actor", "--run", "train", "--grep", "no such words", code=1)

    before = run.uids("learner")
    run.who("restart", "learner", "--run", "train")
    run.until("learner", 1, other_than=before)
    run.goes_on()
    assert run.who("logs", "learner", "--run", "train", "--previous").stdout


def test_segments_of_another_length_roll_through_the_actors(run: Training) -> None:
    """The last old actor ends only once a new one is ready, so both live for a while."""
    before, steps = run.uids("learner", "actor"), run.steps()
    run.up("--set", "stop.agent_steps=100000000", "--set", "algorithm.unroll_length=8")
    run.until("actor", 2, other_than={name: uid for name, uid in before.items() if "actor" in name})
    assert not set(run.uids("learner", "actor").values()) & set(before.values())
    run.goes_on()
    assert run.steps() > steps


def _processes(lines: str) -> set[str]:
    return {json.loads(line)["process"] for line in lines.splitlines() if line.strip()}
