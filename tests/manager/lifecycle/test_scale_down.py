"""A finished run gives its pods back, as far as it may."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlctl_agents.manager.lifecycle.scale_down import (
    AGAIN_S,
    DENIED_AGAIN_S,
    TOLD_AFTER,
    Cluster,
    Release,
    Workload,
    workloads,
)
from tests.support.api_server import TOKEN, account, cluster, serving

ALL = "deployments/r-actor-0,deployments/r-actor-1,statefulsets/r-learner"


def test_workloads_are_read_from_one_word() -> None:
    assert workloads(ALL)[-1] == Workload("statefulsets", "r-learner")
    assert workloads(" ") == []
    assert workloads("deployments/a,,") == [Workload("deployments", "a")]


@pytest.mark.parametrize("text", ["pods/x", "deployments/", "deployments/../secrets", "deployments/A", "r-actor-0"])
def test_what_is_no_workload_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be deployments/NAME"):
        workloads(text)


def test_every_workload_is_scaled_to_zero_by_server_side_apply_and_it_is_said_once(tmp_path: Path) -> None:
    with serving(*ALL.split(",")) as server:
        release = Release(workloads(ALL), cluster(tmp_path), server.connect)
        release.run()
        assert release.done
        assert release.said == "the run is over: its other 3 workloads were scaled to 0"
        assert set(server.replicas.values()) == {0}
        method, path, query, kind = server.asked[0]
        assert (method, kind) == ("PATCH", "application/apply-patch+yaml")
        assert path == "/apis/apps/v1/namespaces/team/deployments/r-actor-0/scale"
        assert query == {"fieldManager": ["rlctl-scale"], "force": ["true"]}


def test_a_workload_that_is_not_there_is_no_hindrance(tmp_path: Path) -> None:
    with serving("statefulsets/r-learner") as server:
        release = Release(workloads(ALL), cluster(tmp_path), server.connect)
        release.run()
        assert release.done
        assert server.replicas == {"statefulsets/r-learner": 0}


def test_without_the_right_the_way_out_is_said_at_once_and_it_is_tried_again_in_a_minute(tmp_path: Path) -> None:
    said: list[tuple[float, str]] = []

    def sleep(seconds: float) -> bool:
        said.append((seconds, release.said))
        return False

    with serving(*ALL.split(",")) as server:
        server.answers = [(403, {"message": 'deployments "r-actor-0" is forbidden: User "x" cannot patch'}), (401, {})]
        release = Release(workloads(ALL), cluster(tmp_path), server.connect, sleep)
        release.run()
        assert release.done
    assert [seconds for seconds, _ in said] == [DENIED_AGAIN_S] * 2
    assert "`rlctl down` removes them" in said[0][1]
    assert 'User "x" cannot patch' in said[0][1]
    assert "deployments/r-actor-1: HTTP 401" in said[1][1]


def test_a_workload_that_may_not_be_scaled_does_not_keep_the_others(tmp_path: Path) -> None:
    with serving(*ALL.split(",")) as server:
        server.answers = [(403, {"message": "no"})]

        def sleep(_: float) -> bool:
            server.answers = [] if set(server.replicas.values()) == {0} else server.answers
            return False

        release = Release(workloads(ALL), cluster(tmp_path), server.connect, sleep)
        release.run()
        assert [path.split("/")[-2] for _, path, *_ in server.asked][-1] == "r-actor-0"
        assert release.done


def test_without_a_service_account_it_is_said_and_without_workloads_nothing() -> None:
    release = Release(workloads(ALL), None)
    release.run()
    assert "no service account" in release.said
    nothing = Release([], None)
    nothing.run()
    assert (nothing.said, nothing.done) == ("", False)


def test_an_api_server_that_is_busy_or_away_is_asked_again(tmp_path: Path) -> None:
    waited: list[float] = []
    with serving(*ALL.split(",")) as server:
        server.answers = [(429, {}), (500, {"message": "etcd"}), (409, {})]
        connections = iter([False, True, True, True])

        def connect() -> object:
            if not next(connections, True):
                raise ConnectionRefusedError(111, "Connection refused")
            return server.connect()

        def sleep(seconds: float) -> bool:
            waited.append(seconds)
            return False

        release = Release(workloads(ALL), cluster(tmp_path), connect, sleep)  # type: ignore[arg-type]
        release.run()
        assert release.done
        assert waited == [AGAIN_S] * 4
        assert set(server.replicas.values()) == {0}


def test_an_api_server_that_nobody_lets_it_reach_is_said_after_a_few_tries(tmp_path: Path) -> None:
    said: list[str] = []

    def connect() -> object:
        raise TimeoutError("timed out")

    def sleep(seconds: float) -> bool:
        said.append(release.said)
        return len(said) == TOLD_AFTER

    release = Release(workloads(ALL), cluster(tmp_path), connect, sleep)  # type: ignore[arg-type]
    release.run()
    assert said[:-1] == [""] * (TOLD_AFTER - 1)
    assert "cannot scale them (TimeoutError: timed out)" in said[-1]
    assert "NetworkPolicy" in said[-1]
    assert not release.done


def test_a_run_that_goes_on_meanwhile_keeps_its_pods(tmp_path: Path) -> None:
    with serving(*ALL.split(",")) as server:
        release = Release(workloads(ALL), cluster(tmp_path), server.connect)
        release.cancel()
        release.run()
        assert server.asked == []
        assert (release.said, release.done) == ("", False)


def test_the_token_is_read_anew_each_time(tmp_path: Path) -> None:
    with serving(*ALL.split(",")) as server:
        place = cluster(tmp_path)
        (tmp_path / "token").write_text("an old one")

        def renewed(_: float) -> bool:
            assert "Unauthorized" in release.said
            (tmp_path / "token").write_text(TOKEN)
            return False

        release = Release(workloads(ALL), place, server.connect, renewed)
        release.run()
        assert release.done


def test_the_cluster_is_found_where_a_pod_finds_it(tmp_path: Path) -> None:
    there = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    assert Cluster.found(there, tmp_path / "none") is None
    account(tmp_path)
    assert Cluster.found({}, tmp_path) is None
    found = Cluster.found(there, tmp_path)
    assert found is not None
    assert (found.host, found.port, found.namespace) == ("10.96.0.1", 443, "team")
