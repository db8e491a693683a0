"""A command killed after any of its writes: the same command goes on, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.backends.kubernetes.fakes.lab import Lab, killed_at_writes

CHANGED: dict[str, Any] = {
    "algorithm": {"name": "impala", "lr": 0.001},
    "roles": {"actor": {"replicas": 800, "max_replicas": 1000}, "evaluator": {"replicas": 2}},
    "stop": {"eval_return": 400},
}
LARGE: dict[str, Any] = {"roles": {"actor": {"replicas": 1500, "max_replicas": 2000}}}


def fresh() -> Lab:
    return Lab()


def large() -> Lab:
    lab = Lab()
    lab.up(**LARGE)
    lab.settle()
    return lab


def check(prepare: Callable[[], Lab], act: Callable[[Lab], object]) -> int:
    """Kill `act` everywhere, do it again, and compare with what it does undisturbed; how many writes it has."""
    kills = killed_at_writes(prepare, act)
    kills.undisturbed.settle()
    wanted = kills.undisturbed.picture()
    for at, lab in kills.left:
        where = f"killed after write {at}"
        lost = lab.there() - lab.known()
        assert not lost, f"{where}: the inventory does not know {lost}"
        act(lab)
        lab.settle()
        picture = lab.picture()
        assert set(picture) == set(wanted), where
        for name, thing in wanted.items():
            assert picture[name] == thing, f"{where}: {name}"
    return kills.writes


def test_up_killed_at_any_write_converges() -> None:
    assert check(fresh, lambda lab: lab.up()) > 40


def test_up_of_many_actors_killed_at_any_write_converges() -> None:
    assert check(fresh, lambda lab: lab.up(**LARGE)) > 45


def test_a_changed_up_killed_at_any_write_converges() -> None:
    assert check(large, lambda lab: lab.up(**CHANGED)) > 10


def test_scale_killed_at_any_write_converges() -> None:
    assert check(large, lambda lab: lab.scale(actor=1900, evaluator=3)) > 3


def test_scale_to_fewer_killed_at_any_write_converges() -> None:
    assert check(large, lambda lab: lab.scale(actor=30)) > 3


def test_down_killed_at_any_write_converges() -> None:
    assert check(large, lambda lab: lab.down()) > 10


def test_down_with_its_volumes_killed_at_any_write_leaves_nothing() -> None:
    assert check(large, lambda lab: lab.down(volumes=True)) > 10


def test_down_of_a_run_on_a_foreign_volume_killed_at_any_write_leaves_nothing() -> None:
    def claimed() -> Lab:
        lab = Lab()
        lab.up(storage={"claim": "shared"})
        lab.settle()
        return lab

    assert check(claimed, lambda lab: lab.down(volumes=True)) > 10


def test_rollback_killed_at_any_write_converges() -> None:
    def changed() -> Lab:
        lab = large()
        lab.up(**CHANGED)
        lab.settle()
        return lab

    assert check(changed, lambda lab: list(lab.backend().rollback("pong", 1))) > 10


def test_an_up_killed_anywhere_can_be_followed_by_another_spec() -> None:
    undisturbed = fresh()
    undisturbed.up(**LARGE)
    undisturbed.settle()
    for at, lab in killed_at_writes(large, lambda lab: lab.up(**CHANGED)).left:
        lab.up(**LARGE)
        lab.settle()
        assert lab.there() - lab.known() == set(), f"killed after write {at}"
        workloads = {name for name in lab.there() if name.startswith(("Deployment", "StatefulSet"))}
        assert workloads == {name for name in undisturbed.there() if name.startswith(("Deployment", "StatefulSet"))}
        lab.api.new_command()
        lab.up(**LARGE)
        assert lab.api.requests.writes == 0, f"killed after write {at}: {lab.api.writes}"


def test_an_up_killed_anywhere_can_be_taken_down_without_a_trace() -> None:
    for at, lab in killed_at_writes(fresh, lambda lab: lab.up(**LARGE)).left:
        lab.down(volumes=True)
        lab.settle()
        assert lab.there() == set(), f"killed after write {at}"
