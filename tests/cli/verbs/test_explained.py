"""`status` on processes that do not run: a sentence, their last words, the next command."""

from dataclasses import replace
from typing import Any

import pytest

from rlctl.backends.base import Process
from rlctl.cli.run.problems import sentence, worst
from rlctl.errors import BackendUnreachable
from tests.cli.clusters import Clusters
from tests.cli.conftest import STATUS, Rlctl, check_golden
from tests.cli.verbs.test_up_wait import BAD_IMAGE


@pytest.fixture
def clusters(rlctl: Rlctl) -> Clusters:
    found = Clusters(rlctl)
    found.up()
    return found


def test_a_failure_is_a_sentence_what_was_said_the_last_lines_and_the_next_command(
    rlctl: Rlctl, clusters: Clusters
) -> None:
    clusters.here.set_process("pole", "learner", 0, **BAD_IMAGE)
    crash: dict[str, Any] = {
        "state": "backoff", "restarts": 4, "name": "pole-actor-0-6b5-x2x",
        "reason": "was killed for memory: its limit is 512Mi", "evidence": "OOMKilled: exit code 137",
        "next": "give it more: roles.actor.memory", "first_cause_lines": ("allocating", "still allocating"),
    }  # fmt: skip
    clusters.here.set_process("pole", "actor", 1, **crash)
    result = rlctl("status", "pole")
    assert result.code == 0
    check_golden("status_explained.txt", result.out, folder=rlctl.folder)
    check_golden("status_explained_wide.txt", rlctl("status", "pole", "-o", "wide").out, folder=rlctl.folder)


def test_json_has_evidence_and_lines_of_processes_and_of_problems(rlctl: Rlctl, clusters: Clusters) -> None:
    clusters.here.set_process("pole", "learner", 0, **BAD_IMAGE)
    told = rlctl("status", "pole", "-o", "json").json
    (problem,) = [each for each in told["problems"] if "learner" in each["text"]]
    assert problem["evidence"] == BAD_IMAGE["evidence"]
    assert problem["next"] == BAD_IMAGE["next"]
    (process,) = [each for each in told["processes"] if each["role"] == "learner"]
    assert process["permanent"] is True
    assert process["name"] == "pole-learner-0"
    assert told["healthy"] is False


def test_a_restart_that_is_overcome_is_a_note_and_no_problem(rlctl: Rlctl, clusters: Clusters) -> None:
    before = rlctl("status", "pole", "-o", "json").json
    lately = "pole-learner-0 was restarted 4 min ago: was killed for memory"
    clusters.here.set_process("pole", "learner", 0, lately=lately)
    assert f"note       {lately}\n" in rlctl("status", "pole").out
    told = rlctl("status", "pole", "-o", "json").json
    assert (told["problems"], told["healthy"]) == (before["problems"], before["healthy"])
    assert [each["lately"] for each in told["processes"] if each["role"] == "learner"] == [lately]


def test_what_was_said_of_the_one_before_is_not_said_again(rlctl: Rlctl, clusters: Clusters) -> None:
    clusters.here.set_process("pole", "modelpool", 0, **{**BAD_IMAGE, "name": "pole-modelpool-0"})
    clusters.here.set_process("pole", "learner", 0, **BAD_IMAGE)
    shown = rlctl("status", "pole").out
    assert shown.count("problem: ") == 2
    assert shown.count("   said: ") == 1
    assert shown.count("   next: ") == 2


def test_replicas_that_are_only_counted_count(rlctl: Rlctl, clusters: Clusters) -> None:
    clusters.here.replace_processes(
        "pole",
        "actor",
        [
            Process("actor", 0, "running", count=9800),
            Process(
                "actor",
                9800,
                "failed",
                count=200,
                name="pole-actor-9-x",
                permanent=True,
                reason="200 of 10000 actors: no such image",
                evidence="ErrImagePull",
                next="rlctl image push",
            ),
        ],
        wanted=10_000,
    )
    shown = rlctl("status", "pole").out
    row = next(line for line in shown.splitlines() if line.startswith("actor "))
    assert row.split()[1] == "9800/10000"
    assert "9800 running, 200 failed" in row
    assert "problem: 200 of 10000 actors: no such image\n   said: ErrImagePull\n   next: rlctl image push" in shown
    wide = rlctl("status", "pole", "-o", "wide").out
    assert "actor x9800" in wide
    assert "actor x200" in wide


def test_a_cluster_that_does_not_say_how_its_pods_are_is_told_once_for_each_role(
    rlctl: Rlctl, clusters: Clusters
) -> None:
    clusters.here.freeze("pole", BackendUnreachable("pods may not be listed: forbidden", hint="rlctl render --admin"))
    result = rlctl("status", "pole")
    assert result.code == 0
    row = next(line for line in result.out.splitlines() if line.startswith("actor "))
    assert row.split()[1:3] == ["?/2", "unknown"]
    assert "problem: pods may not be listed: forbidden\n   next: rlctl render --admin" in result.out
    assert len(rlctl("status", "pole", "-o", "json").json["processes"]) == 5


def test_an_evicted_pod_is_told_of_and_does_not_make_the_run_unhealthy(rlctl: Rlctl, clusters: Clusters) -> None:
    clusters.here.replace_processes(
        "pole",
        "actor",
        [
            Process("actor", 0, "running", count=2),
            Process("actor", 2, "exited", name="pole-actor-0-old", reason="was evicted: the node was low on memory"),
        ],
        wanted=2,
    )
    assert "problem: pole-actor-0-old: was evicted: the node was low on memory" in rlctl("status", "pole").out
    assert rlctl("status", "pole", "--check").code == 0


def test_the_slowest_is_the_one_that_is_worst_off() -> None:
    processes = [
        Process("modelpool", 0, "starting"),
        Process("actor", 1, "backoff", reason="exited 1"),
        Process("learner", 0, "failed", permanent=True),
        Process("actor", 3, "exited", name="evicted"),
    ]
    found = worst(processes)
    assert found is not None
    assert found.role == "learner"
    assert worst([Process("actor", 0, "running")]) is None


def test_who_has_no_node_is_named_before_those_who_wait_to_be_ready(rlctl: Rlctl, clusters: Clusters) -> None:
    """The modelpool answers 503 because there is no learner, and comes first in the order of roles."""
    waits = Process("modelpool", 0, "starting", name="pole-modelpool-0", reason="503", lacks="readiness")
    pending = Process("learner", 0, "starting", name="pole-learner-0", reason="waits for a node", lacks="node")
    fetching = Process("actor", 0, "starting", count=2, reason="its node fetches the image")
    assert worst([waits, pending, fetching]) is pending
    assert worst([waits, fetching]) is fetching
    crashed = Process("actor", 0, "failed", permanent=True)
    assert worst([waits, pending, crashed]) is crashed
    clusters.here.replace_processes("pole", "modelpool", [replace(waits, state="backoff")], wanted=1)
    clusters.here.replace_processes("pole", "learner", [replace(pending, state="backoff")], wanted=1)
    shown = rlctl("status", "pole").out
    assert shown.index("problem: pole-learner-0: waits for a node") < shown.index("problem: pole-modelpool-0: 503")


def test_while_actors_are_missing_no_other_number_of_them_is_advised(rlctl: Rlctl, clusters: Clusters) -> None:
    verdict = {
        "kind": "actor-bound", "text": "actor-bound: the learner waits", "suggest": "rlctl scale actor=2 --run pole",
    }  # fmt: skip
    clusters.here.report("pole", {**STATUS, "run": "pole", "verdict": {**STATUS["verdict"], **verdict}})
    assert "next: rlctl scale actor=2 --run pole" in rlctl("status", "pole").out
    clusters.here.set_process("pole", "actor", 1, state="backoff", reason="exited 1")
    told = rlctl("status", "pole", "-o", "json").json["verdict"]
    assert told["text"] == "actor-bound: the learner waits; 1 of 2 actors run"
    assert told["suggest"] == "rlctl logs actor --run pole --level ERROR"


def test_restarts_of_pods_that_are_only_counted_are_not_known(rlctl: Rlctl, clusters: Clusters) -> None:
    clusters.here.replace_processes("pole", "actor", [Process("actor", 0, "running", count=2)], wanted=2)
    row = next(line for line in rlctl("status", "pole").out.splitlines() if line.startswith("actor "))
    assert row.split()[4] == "-", row
    wide = next(line for line in rlctl("status", "pole", "-o", "wide").out.splitlines() if "actor x2" in line)
    assert " 0 " not in wide


def test_a_run_that_is_not_there_is_told_with_where_it_was_looked_for(rlctl: Rlctl, clusters: Clusters) -> None:
    assert "there is no run nope on this machine; one that another machine started" in rlctl("status", "nope").err
    assert "there is no run nope on this machine; one that another" in rlctl("down", "nope").err
    assert "no run nope on kubernetes, context prod, namespace n2" in rlctl("down", "nope", "-n", "n2").err


def test_every_list_of_runs_asks_who_knows_that_one_has_finished(
    rlctl: Rlctl, clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = clusters.here.find("pole")
    assert before is not None
    monkeypatch.setattr(clusters.here, "find", lambda run: replace(before, phase="finished"))
    assert rlctl("status", "-A").out.splitlines()[1].split()[1] == "finished"


def test_a_process_of_this_machine_is_described_as_ever() -> None:
    assert sentence(Process("actor", 1, "backoff", reason="exited 1")) == "actor/1 is in backoff: exited 1"
    assert sentence(Process("actor", 1, "exited")) == "actor/1 has exited"
