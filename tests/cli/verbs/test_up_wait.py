"""`up --wait`: ready, hopeless, too late; `--atomic` puts back what was there before."""

import signal
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import pytest

from rlctl.backends.base import Check, Document
from rlctl.errors import PartlyApplied
from rlctl.plan import Plan
from tests.cli.clusters import Clusters, Namespace
from tests.cli.conftest import Rlctl
from tests.cli.test_surface import FAILURE

BAD_IMAGE: dict[str, Any] = {
    "state": "failed",
    "reason": "image registry.example/learner@sha256:0123 does not exist in the registry",
    "name": "pole-learner-0",
    "permanent": True,
    "evidence": 'Failed: Failed to pull image "registry.example/learner": not found',
    "next": "rlctl image push, then set images.learner",
}


@pytest.fixture
def clusters(rlctl: Rlctl) -> Clusters:
    return Clusters(rlctl)


def break_learner(rlctl: Rlctl, clusters: Clusters, *, at_s: float = 1, **fields: Any) -> None:
    """Have the cluster break the learner a moment after the `up`."""
    event = {**BAD_IMAGE, **fields}
    rlctl.at(at_s, lambda: clusters.here.set_process("pole", "learner", 0, **event))


def test_it_returns_once_every_replica_runs(rlctl: Rlctl, clusters: Clusters) -> None:
    rlctl.at(7, clusters.report)
    result = rlctl("up", clusters.spec, "--wait", "-o", "json")
    assert result.code == 0
    assert result.json["status"]["ready"] is True
    assert rlctl.time_s == pytest.approx(8, abs=1)
    assert "pole is ready" in result.err


def test_a_replica_that_never_will_run_ends_it_with_7_within_15_seconds(rlctl: Rlctl, clusters: Clusters) -> None:
    break_learner(rlctl, clusters)
    result = rlctl("up", clusters.spec, "--wait")
    assert result.code == 7
    assert rlctl.time_s <= 15
    assert "error: pole-learner-0: image registry.example/learner@sha256:0123 does not exist" in result.err
    assert 'said: Failed: Failed to pull image "registry.example/learner": not found' in result.err
    assert "next: rlctl image push, then set images.learner" in result.err
    assert clusters.here.find("pole") is not None, "it goes on: nobody said --atomic"


def test_what_an_up_has_just_replaced_may_fail_for_a_moment(rlctl: Rlctl, clusters: Clusters) -> None:
    clusters.up()
    clusters.here.set_process("pole", "learner", 0, **BAD_IMAGE)
    well: dict[str, Any] = {"state": "running", "permanent": False, "name": "", "reason": "", "evidence": ""}
    rlctl.at(rlctl.time_s + 3, lambda: clusters.here.set_process("pole", "learner", 0, **well))
    assert rlctl("up", clusters.spec, "--wait").code == 0


def test_a_process_that_dies_again_and_again_is_as_hopeless(rlctl: Rlctl) -> None:
    def dies(times: int) -> None:
        fields = {"state": "backoff", "restarts": times, "reason": "exited 1: ImportError"}
        rlctl.backend.set_process("pole", "actor", 1, **fields)

    for times in range(1, 6):
        rlctl.at(3 * times, lambda times=times: dies(times))  # type: ignore[misc]
    result = rlctl("up", rlctl.spec, "--wait")
    assert result.code == 7
    assert "actor/1 is in backoff: exited 1: ImportError" in result.err


def test_too_late_is_6_and_names_the_slowest_and_why(rlctl: Rlctl, clusters: Clusters) -> None:
    break_learner(
        rlctl, clusters, state="backoff", permanent=False, reason="no node fits: 2 of 2 have too little cpu left",
        next="kubectl describe nodes",
    )  # fmt: skip
    result = rlctl("up", clusters.spec, "--wait", "--timeout", "40s", "-o", "json")
    assert result.code == 6
    assert rlctl.time_s == pytest.approx(40)
    assert "not ready after 40s; slowest: pole-learner-0 (backoff: no node fits" in result.json["error"]["message"]
    assert result.json["error"]["objects"] == ["pole-learner-0"]
    assert "00:00:1" in result.err, "a heartbeat"
    assert "said: Failed" in result.err


def test_waiting_is_bounded_by_itself(rlctl: Rlctl, clusters: Clusters) -> None:
    result = rlctl("up", clusters.spec, "--wait")
    assert result.code == 6
    assert rlctl.time_s == pytest.approx(600)


def test_a_run_that_fails_while_it_starts_is_7_with_its_first_cause(rlctl: Rlctl) -> None:
    rlctl.at(3, lambda: rlctl.backend.fail("pole", FAILURE))
    result = rlctl("up", rlctl.spec, "--wait")
    assert result.code == 7
    assert FAILURE.text in result.err


def test_atomic_removes_what_a_first_up_has_made(rlctl: Rlctl, clusters: Clusters) -> None:
    break_learner(rlctl, clusters)
    result = rlctl("up", clusters.spec, "--atomic")
    assert result.code == 7
    assert "pole is removed again" in result.err
    assert clusters.here.find("pole") is None


def test_atomic_removes_nothing_of_a_run_whose_record_alone_was_gone(rlctl: Rlctl) -> None:
    storage = rlctl.folder / "runs"
    kept = rlctl.backend.place("pole", str(storage)).layout.root / "checkpoints" / "one"
    kept.parent.mkdir(parents=True)
    rlctl.backend.partly_after = 3
    result = rlctl("up", rlctl.spec, "--atomic", "--set", f"storage.path={storage}")
    assert result.code == PartlyApplied.exit_code
    assert "pole is stopped again; its data stays" in result.err


def test_atomic_goes_back_to_the_revision_before(rlctl: Rlctl, clusters: Clusters) -> None:
    clusters.up()
    break_learner(rlctl, clusters, at_s=rlctl.time_s + 1)
    clusters.here.silence("pole")
    result = rlctl("up", clusters.spec, "--atomic", "--set", "algorithm.lr=5e-3")
    assert result.code == 7
    assert "pole is rolled back to revision 1" in result.err
    state = clusters.here.find("pole")
    assert state is not None
    assert state.spec["algorithm"]["lr"] == 1e-3
    assert clusters.here.revisions("pole")[0].note == "rollback to 1"


def test_atomic_puts_back_a_number_that_scale_had_set(rlctl: Rlctl, clusters: Clusters) -> None:
    clusters.up()
    assert rlctl("scale", "actor=5").code == 0
    break_learner(rlctl, clusters, at_s=rlctl.time_s + 1)
    clusters.here.silence("pole")
    result = rlctl("up", clusters.spec, "--atomic", "--set", "roles.actor.replicas=3")
    assert result.code == 7
    state = clusters.here.find("pole")
    assert state is not None
    assert (state.replicas["actor"], state.spec_replicas["actor"]) == (5, 2)


def test_atomic_stops_a_run_again_that_was_stopped(rlctl: Rlctl, clusters: Clusters) -> None:
    clusters.up()
    rlctl("down", "pole")
    break_learner(rlctl, clusters, at_s=rlctl.time_s + 1)
    result = rlctl("up", clusters.spec, "--atomic", "--timeout", "30s")
    assert result.code == 7
    state = clusters.here.find("pole")
    assert state is not None
    assert state.phase == "stopped"


def test_atomic_leaves_alone_what_somebody_else_took_down(rlctl: Rlctl, clusters: Clusters) -> None:
    clusters.up()
    clusters.here.silence("pole")
    rlctl.at(rlctl.time_s + 3, lambda: list(clusters.here.delete("pole", volumes=False, grace_s=1)))
    result = rlctl("up", clusters.spec, "--atomic", "--set", "algorithm.lr=5e-3")
    assert result.code == 1
    assert "rolled back" not in result.err


def test_atomic_undoes_what_was_applied_in_part(rlctl: Rlctl, clusters: Clusters) -> None:
    clusters.here.partly_after = 3
    result = rlctl("up", clusters.spec, "--atomic")
    assert result.code == PartlyApplied.exit_code
    assert clusters.here.find("pole") is None


def test_that_it_cannot_be_undone_does_not_hide_the_cause(rlctl: Rlctl, clusters: Clusters) -> None:
    break_learner(rlctl, clusters)
    rlctl.at(2, lambda: setattr(clusters.here, "refuse", PartlyApplied("the cluster says no")))
    result = rlctl("up", clusters.spec, "--atomic")
    assert result.code == 7
    assert "does not exist in the registry" in result.err
    assert "it could not be undone: the cluster says no" in result.err


def test_the_preflight_is_told_in_numbers_before_anything_is_sent(rlctl: Rlctl, clusters: Clusters) -> None:
    clusters.here.checks = [
        Check("creation rate", "ok", "10,000 pods take at least 500 s at this controller's default QPS"),
        Check("quota", "warning", "cpu 40 of 48 used"),
    ]
    result = rlctl("up", clusters.spec, "-d", "-o", "json")
    assert result.code == 0
    assert "10,000 pods take at least 500 s" in result.err
    assert [check["verdict"] for check in result.json["preflight"]] == ["ok", "warning"]
    again = rlctl("up", clusters.spec, "-d")
    assert "500 s" not in again.err, "nothing is sent: only what is wrong is told again"
    assert "cpu 40 of 48 used" in again.err


@pytest.mark.parametrize(("name", "code"), [("quota", 5), ("objects", 3)])
def test_a_problem_that_the_preflight_sees_stops_it(rlctl: Rlctl, clusters: Clusters, name: str, code: int) -> None:
    clusters.here.checks = [Check(name, "problem", "64 > 48", "ask for less"), Check("rwx", "not checked", "forbidden")]
    result = rlctl("up", clusters.spec, "-d")
    assert result.code == code
    assert "64 > 48" in result.err
    assert clusters.here.writes == 0
    assert rlctl("up", clusters.spec, "--dry-run", "server").code == code


def test_force_conflicts_reaches_the_cluster_and_is_off_by_default(rlctl: Rlctl, clusters: Clusters) -> None:
    rlctl("up", clusters.spec, "-d")
    assert clusters.here.force_conflicts is False
    rlctl("up", clusters.spec, "-d", "--force-conflicts")
    assert clusters.here.force_conflicts is True
    assert rlctl("up", rlctl.spec, "-d", "--force-conflicts", "--set", "run=other").code == 0


def test_dry_run_client_asks_no_cluster(rlctl: Rlctl, clusters: Clusters) -> None:
    result = rlctl("up", clusters.spec, "--dry-run", "client", "-o", "json")
    assert result.code == 0
    assert clusters.made == {}
    rendered = rlctl("render", clusters.spec, "-o", "json").json["documents"]
    assert [each["name"] for each in result.json["documents"]] == [each["name"] for each in rendered]
    assert result.json["replicas"]["actor"] == 2


def test_dry_run_server_tells_what_would_change_and_changes_nothing(rlctl: Rlctl, clusters: Clusters) -> None:
    clusters.up()
    writes = clusters.here.writes
    result = rlctl("up", clusters.spec, "--dry-run", "server", "--set", "algorithm.lr=5e-3")
    assert result.code == 0
    assert result.out.startswith("restart learner    algorithm.lr: 0.001 -> 0.005\n")
    assert "dry run: nothing was changed" in result.err
    assert clusters.here.writes == writes
    refused = rlctl("up", clusters.spec, "--dry-run", "server", "--set", "env.id=Acrobot-v1")
    assert refused.code == 5


def test_dry_run_server_forces_as_up_would(rlctl: Rlctl, clusters: Clusters) -> None:
    clusters.up()
    assert clusters.here.force_conflicts is False
    assert rlctl("up", clusters.spec, "--dry-run", "server", "--force-conflicts").code == 0
    assert clusters.here.force_conflicts is True


@pytest.mark.parametrize("how", ["client", "server"])
def test_dry_run_on_this_machine_is_for_no_namespace(rlctl: Rlctl, how: str) -> None:
    result = rlctl("up", rlctl.spec, "--dry-run", how, "-n", "team")
    assert result.code == 2
    assert "-n and --context are for a cluster" in result.err


def test_dry_run_on_this_machine_compares_files(rlctl: Rlctl) -> None:
    result = rlctl("up", rlctl.spec, "--dry-run", "client", "-o", "json")
    assert result.code == 0
    assert result.json["exists"] is False
    assert {each["what"] for each in result.json["objects"]} == {"add"}
    assert rlctl.backend.writes == 0


def test_the_preflight_is_lent_a_way_to_ask_registries_for_sizes(rlctl: Rlctl, clusters: Clusters) -> None:
    found: list[object] = []

    class Measured(Namespace):
        """Its preflight wants to know how large images are."""

        def __init__(self) -> None:
            super().__init__(clusters, "prod", "team")
            self.forget()

        def forget(self) -> None:
            """As a command does that has ended."""
            self.image_sizes: Callable[[Collection[str]], Mapping[str, int]] = lambda images: {"nobody": 0}

        def preflight(self, plan: Plan, documents: Iterable[Document]) -> list[Check]:
            found.append(self.image_sizes(["no name of an image!"]))
            self.forget()
            return []

    clusters.made["prod", "team"] = Measured()
    assert rlctl("up", clusters.spec, "--dry-run", "server").code == 0
    assert rlctl("up", clusters.spec, "-d").code == 0
    assert rlctl("up", clusters.spec, "-d").code == 0
    assert found == [{}, {}, {"nobody": 0}], "not for an `up` that changes nothing"


def test_ctrl_c_during_atomic_says_that_the_change_stays_and_how_to_undo_it(
    rlctl: Rlctl, clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    clusters.up()
    apply = clusters.here.apply

    def slow(*arguments: Any, **named: Any) -> Any:
        yield from apply(*arguments, **named)
        clusters.here.set_process("pole", "learner", 0, state="starting")

    monkeypatch.setattr(clusters.here, "apply", slow)
    rlctl.at(rlctl.time_s + 5, lambda: signal.raise_signal(signal.SIGINT))
    result = rlctl("up", clusters.spec, "--atomic", "--set", "algorithm.lr=2e-3")
    assert result.code == 130
    assert "it goes on; what --atomic would have undone stays\n  undo it       rlctl rollback --run pole" in result.err


def test_an_option_for_a_cluster_does_not_start_a_run_on_this_machine(rlctl: Rlctl) -> None:
    spec = str(rlctl.write("spec.yaml", "run: here\nenv: {id: CartPole-v1}\nalgorithm: {name: impala}\n"))
    result = rlctl("up", spec, "-d", "-n", "team")
    assert result.code == 2
    assert "the target is local\n  next: add -t kubernetes" in result.err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (("rollback", "NAME"), "Invalid value for 'REV': must be a whole number, got 'NAME'"),
        (("open", "foo"), "Invalid value for 'tensorboard|status': 'foo' is not one of"),
    ],
)
def test_a_wrong_value_is_told_in_words_of_the_command_line(rlctl: Rlctl, line: tuple[str, ...], said: str) -> None:
    assert said in rlctl(*line).err
