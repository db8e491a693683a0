"""Which cluster a verb goes to: the recorded one, unless the command line names another."""

import os
from dataclasses import replace
from typing import Any

import pytest

from rlctl.cli.context import World
from rlctl.cli.experiments.scores import scored
from rlctl.cli.options import complete_context, complete_namespace
from rlctl.cli.run.clusters import recorded
from rlctl.cli.run.target import find
from rlctl.errors import Conflict
from tests.cli.clusters import CLUSTER_SPEC, Clusters, Namespace
from tests.cli.conftest import Rlctl


@pytest.fixture
def clusters(rlctl: Rlctl) -> Clusters:
    return Clusters(rlctl)


def test_a_run_is_started_where_the_kubeconfig_points(rlctl: Rlctl, clusters: Clusters) -> None:
    assert rlctl("up", clusters.spec, "-d").code == 0
    assert clusters("prod", "team").find("pole") is not None
    entry = recorded("pole")
    assert entry is not None
    assert (entry.context, entry.namespace, entry.server) == ("prod", "team", "https://prod:6443")


def test_options_and_environment_name_context_and_namespace(rlctl: Rlctl, clusters: Clusters) -> None:
    assert rlctl("up", clusters.spec, "-d", "--context", "stage", "-n", "mine").code == 0
    assert clusters("stage", "mine").find("pole") is not None
    rlctl.environ |= {"RLCTL_CONTEXT": "stage", "RLCTL_NAMESPACE": "yours"}
    assert rlctl("up", clusters.spec, "-d", "--set", "run=other").code == 0
    assert clusters("stage", "yours").find("other") is not None


def test_a_verb_goes_to_the_recorded_cluster_whatever_the_current_context_is(rlctl: Rlctl, clusters: Clusters) -> None:
    clusters.up()
    clusters.current = "stage"
    told = rlctl("status", "pole", "-o", "json")
    assert told.code == 0
    assert told.json["run"] == "pole"
    assert ("stage", "team") not in clusters.made
    again = rlctl("up", clusters.spec, "-d")
    assert again.code == 0
    assert "unchanged" in again.err


@pytest.mark.parametrize(("variable", "option"), [("RLCTL_CONTEXT", "--context"), ("RLCTL_NAMESPACE", "-n")])
def test_an_environment_that_says_another_cluster_is_5_and_the_option_decides(
    rlctl: Rlctl, clusters: Clusters, variable: str, option: str
) -> None:
    clusters.up()
    rlctl.environ[variable] = "stage"
    for verb in (["status", "pole"], ["up", clusters.spec, "-d"], ["scale", "actor=3", "--run", "pole"]):
        result = rlctl(*verb)
        assert result.code == 5, verb
        assert f"{variable} is stage" in result.err
        assert f"{option} {'prod' if option == '--context' else 'team'}" in result.err
    assert rlctl("status", "pole", option, "prod" if option == "--context" else "team").code == 0


def test_a_target_of_the_environment_that_differs_from_the_record_is_5_and_the_option_decides(
    rlctl: Rlctl, clusters: Clusters
) -> None:
    clusters.up()
    rlctl.environ["RLCTL_TARGET"] = "local"
    result = rlctl("down", "pole")
    assert result.code == 5
    assert "run pole is recorded for target kubernetes, and RLCTL_TARGET is local" in result.err
    assert rlctl("down", "pole", "-t", "kubernetes").code == 0


def test_a_context_that_has_become_another_cluster_is_5(rlctl: Rlctl, clusters: Clusters) -> None:
    clusters.up()
    clusters.servers["prod"] = "https://elsewhere:6443"
    result = rlctl("down", "pole")
    assert result.code == 5
    assert "https://prod:6443" in result.err
    assert "https://elsewhere:6443" in result.err
    assert rlctl("down", "pole", "--context", "prod").code == 0


def test_an_option_alone_means_a_cluster_and_keeps_the_rest_of_the_record(rlctl: Rlctl, clusters: Clusters) -> None:
    clusters.up()
    clusters.current = "stage"
    assert rlctl("status", "pole", "-n", "other").code == 2, "the run is not in that namespace"
    assert ("prod", "other") in clusters.made
    assert rlctl("status", "-n", "team", "--context", "prod").code == 0, "no name: the only run there"


def test_no_verb_without_a_run_on_a_cluster_makes_the_backend_of_one(rlctl: Rlctl, clusters: Clusters) -> None:
    rlctl.up()
    for verb in (["status"], ["status", "--all"], ["scale", "actor=3"], ["history"], ["down"]):
        assert rlctl(*verb).code == 0, verb
    assert clusters.made == {}


def test_without_a_name_runs_of_this_machine_and_my_runs_on_clusters_count(rlctl: Rlctl, clusters: Clusters) -> None:
    clusters.up()
    assert rlctl("status", "-o", "json").json["target"] == "kubernetes"
    other = clusters.here
    theirs = rlctl("up", clusters.spec, "-d", "--set", "run=theirs")
    assert theirs.code == 0
    os.remove(rlctl.folder / "state" / "rlctl" / "index" / "theirs.json")  # as if a colleague had started it
    assert other.find("theirs") is not None
    assert rlctl("status", "-o", "json").json["run"] == "pole"
    rows = rlctl("status", "--all", "-t", "kubernetes").out.splitlines()
    assert sorted(row.split()[0] for row in rows[1:]) == ["pole", "theirs"]


def test_a_run_that_is_recorded_as_live_and_is_over_is_not_the_only_live_one(
    rlctl: Rlctl, clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    clusters.up()
    assert rlctl("up", clusters.spec, "-d", "--set", "run=other").code == 0
    here, listed = clusters.here, clusters.here.runs
    here.finish("pole", "eval_return")
    monkeypatch.setattr(here, "runs", lambda broken=None: [replace(one, phase="running") for one in listed(broken)])
    assert rlctl("status", "-o", "json").json["run"] == "other"


def test_the_record_of_a_run_is_fetched_once(rlctl: Rlctl, clusters: Clusters, monkeypatch: pytest.MonkeyPatch) -> None:
    clusters.up()
    assert rlctl("up", clusters.spec, "-d", "--set", "run=other").code == 0
    here, listed, fetch = clusters.here, clusters.here.runs, clusters.here.find
    here.finish("pole", "eval_return")
    fetched: list[str] = []
    monkeypatch.setattr(here, "runs", lambda broken=None: [replace(one, phase="running") for one in listed(broken)])
    monkeypatch.setattr(here, "find", lambda run: fetched.append(run) or fetch(run))
    world = World(environ=rlctl.environ, targets=rlctl.targets)
    assert find(world, None, None)[1].run == "other"
    assert sorted(fetched) == ["other", "pole"]
    fetched.clear()
    assert scored(world, "other", None).phase == "running"
    assert fetched == ["other"]


def test_a_cluster_that_is_gone_hides_no_run_that_is_elsewhere(rlctl: Rlctl, clusters: Clusters) -> None:
    rlctl.up(run="here")
    clusters.record("lost", "1" * 32, "gone", "team")
    clusters("gone", "team").unreachable = True
    result = rlctl("status", "-o", "json")
    assert result.code == 0
    assert result.json["run"] == "here"
    assert "left out: " in result.err
    assert rlctl("status", "lost").code == 4


def test_down_without_a_name_asks_each_target_once(rlctl: Rlctl, clusters: Clusters) -> None:
    rlctl.up(run="here")
    clusters.record("lost", "1" * 32, "gone", "team")
    clusters("gone", "team").unreachable = True
    result = rlctl("down")
    assert (result.code, result.err.count("left out: ")) == (0, 1)


def test_several_runs_in_one_namespace_cost_one_list(rlctl: Rlctl, clusters: Clusters) -> None:
    clusters.up()
    rlctl("up", clusters.spec, "-d", "--set", "run=second")
    clusters.here.asked = 0
    assert rlctl("status", "--all").code == 0
    assert clusters.here.asked == 1


def test_a_run_of_one_target_is_not_started_on_another(rlctl: Rlctl, clusters: Clusters) -> None:
    clusters.up()
    result = rlctl("up", rlctl.spec, "-d")
    assert result.code == 5
    assert "recorded for target kubernetes" in result.err


def test_removing_data_names_context_and_namespace_before_it_asks(rlctl: Rlctl, clusters: Clusters) -> None:
    clusters.up()
    clusters.here.set_process("pole", "learner", 0, state="failed", name="pole-learner-0")
    result = rlctl("down", "pole", "--volumes", terminal=True, answer="no\n")
    assert result.code == 9
    assert "removes run pole on kubernetes, context prod, namespace team for good" in result.err
    assert "6 processes are stopped" in result.err, "a failed pod is there to be removed, too"
    assert "kubernetes, context prod, namespace team" in rlctl("status", "pole").out


def test_completion_knows_recorded_contexts_and_namespaces(rlctl: Rlctl, clusters: Clusters) -> None:
    clusters.record("a", "1" * 32, "prod", "team")
    clusters.record("b", "2" * 32, "stage", "team")
    assert complete_context("") == ["prod", "stage"]
    assert complete_context("s") == ["stage"]
    assert complete_namespace("") == ["team"]


def test_waiting_looks_at_a_cluster_every_two_seconds(rlctl: Rlctl, clusters: Clusters) -> None:
    clusters.up()
    looks: list[float] = []
    ask = clusters.here.processes

    def processes(run: str, *known: Any) -> object:
        looks.append(rlctl.time_s)
        return ask(run, *known)

    clusters.here.processes = processes  # type: ignore[method-assign,assignment]
    rlctl.at(9, lambda: clusters.here.finish("pole", "enough"))
    assert rlctl("wait", "pole", "--for", "finished").code == 0
    assert looks[:4] == [0, 2, 4, 6]


class Owned(Namespace):
    """A namespace in which everything is alice's, and nothing is forced."""

    def check_owner(self, run: str) -> str:
        if not self.force_conflicts:
            raise Conflict(f"run {run} is owned by alice@desk")
        return "alice@desk"


def test_removing_data_of_somebody_else_is_refused_before_it_asks(rlctl: Rlctl, clusters: Clusters) -> None:
    clusters.made["prod", "team"] = Owned(clusters, "prod", "team")
    clusters.up()
    result = rlctl("down", "pole", "--volumes", terminal=True, answer="pole\n")
    assert (result.code, "type the name" in result.err) == (5, False)
    result = rlctl("down", "pole", "--volumes", "--force-conflicts", terminal=True, answer="no\n")
    assert "removes run pole of alice@desk on kubernetes, context prod, namespace team for good" in result.err


@pytest.mark.parametrize("verb", [("down", "pole"), ("scale", "actor=3"), ("restart", "learner"), ("rollback", "1")])
def test_what_changes_a_run_can_be_forced_and_is_not_by_default(
    rlctl: Rlctl, clusters: Clusters, verb: tuple[str, ...]
) -> None:  # fmt: skip
    clusters.up()
    assert rlctl("scale", "actor=2").code == 0
    assert clusters.here.force_conflicts is False
    assert rlctl(*verb, "--force-conflicts").code == 0
    assert clusters.here.force_conflicts is True


def test_a_cluster_that_is_gone_does_not_hold_a_name_for_ever(rlctl: Rlctl, clusters: Clusters) -> None:
    clusters.record("pole", "0" * 32, "gone", "team")
    refused = rlctl("up", str(rlctl.write("here.yaml", CLUSTER_SPEC.replace("target: kubernetes\n", ""))), "-d")
    assert refused.code == 5
    assert "rlctl down pole --forget" in refused.err
    unreachable = rlctl("down", "pole")
    assert unreachable.code == 4
    assert unreachable.err.count("rlctl down pole --forget") == 1

    for verb in (["up", clusters.spec, "-d"], ["diff", clusters.spec], ["status", "pole"], ["logs", "--run", "pole"]):
        lost = rlctl(*verb)
        assert (lost.code, lost.err.count("rlctl down pole --forget")) == (4, 1), verb

    made = dict(clusters.made)
    forgotten = rlctl("down", "pole", "--forget")
    assert forgotten.code == 0
    assert "rlctl status pole -t kubernetes --context gone -n team" in forgotten.err
    assert clusters.made == made, "no cluster was asked"
    assert recorded("pole") is None
    assert rlctl("up", str(rlctl.folder / "here.yaml"), "-d").code == 0


@pytest.mark.parametrize("verb", ["up", "diff", "status", "wait", "logs", "down", "scale"])
def test_a_known_cluster_that_does_not_answer_names_the_way_out_once(
    rlctl: Rlctl, clusters: Clusters, verb: str
) -> None:
    clusters.up()
    clusters.here.unreachable = True
    given = {"up": (clusters.spec, "-d"), "diff": (clusters.spec,), "logs": (), "scale": ("actor=2", "--run", "pole")}
    lost = rlctl(verb, *given.get(verb, ("pole",)))
    assert lost.code == 4
    assert lost.err.count("rlctl down pole --forget") == (1 if verb != "logs" else lost.err.count("--forget"))


def test_forgetting_is_for_runs_on_clusters_and_takes_nothing_with_it(rlctl: Rlctl, clusters: Clusters) -> None:
    clusters.up()
    assert rlctl("down", "pole", "--forget", "--volumes", "--yes").code == 2
    assert rlctl("down", "--forget").code == 2
    assert rlctl("down", "pole", "--forget").code == 0
    assert clusters.here.find("pole") is not None, "the run itself stays"
    assert rlctl("down", "pole", "--forget").code == 0, "a second time is no error"
    index = rlctl.folder / "state" / "rlctl" / "index" / "mine.json"
    uid = rlctl.backend.place("mine", None).uid
    index.write_text(f'{{"run": "mine", "uid": "{uid}", "target": "local"}}')
    assert rlctl("down", "mine", "--forget").code == 2
    assert index.exists()
