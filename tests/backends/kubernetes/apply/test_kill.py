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


def converges(prepare: Callable[[], Lab], act: Callable[[Lab], object]) -> int:
    """Kill `act` everywhere, do it again, and compare with what it does undisturbed; how many writes it has."""
    wanted: dict[str, Any] = {}

    def check(lab: Lab, undisturbed: Lab) -> None:
        if not wanted:
            undisturbed.settle()
            wanted.update(undisturbed.picture())
        lost = lab.there() - lab.known()
        assert not lost, f"the inventory does not know {lost}"
        act(lab)
        lab.settle()
        picture = lab.picture()
        assert set(picture) == set(wanted)
        for name, thing in wanted.items():
            assert picture[name] == thing, name

    return killed_at_writes(prepare, act, check)


def test_up_killed_at_any_write_converges() -> None:
    assert converges(fresh, lambda lab: lab.up()) > 40


def test_up_of_many_actors_killed_at_any_write_converges() -> None:
    assert converges(fresh, lambda lab: lab.up(**LARGE)) > 45


def test_a_changed_up_killed_at_any_write_converges() -> None:
    assert converges(large, lambda lab: lab.up(**CHANGED)) > 10


def test_scale_killed_at_any_write_converges() -> None:
    assert converges(large, lambda lab: lab.scale(actor=1900, evaluator=3)) > 3


def test_scale_to_fewer_killed_at_any_write_converges() -> None:
    assert converges(large, lambda lab: lab.scale(actor=30)) > 3


def test_down_killed_at_any_write_converges() -> None:
    assert converges(large, lambda lab: lab.down()) > 10


def test_down_with_its_volumes_killed_at_any_write_leaves_nothing() -> None:
    assert converges(large, lambda lab: lab.down(volumes=True)) > 10


def test_down_of_a_run_on_a_foreign_volume_killed_at_any_write_leaves_nothing() -> None:
    def claimed() -> Lab:
        lab = Lab()
        lab.up(storage={"claim": "shared"})
        lab.settle()
        return lab

    assert converges(claimed, lambda lab: lab.down(volumes=True)) > 10


def test_rollback_killed_at_any_write_converges() -> None:
    def changed() -> Lab:
        lab = large()
        lab.up(**CHANGED)
        lab.settle()
        return lab

    assert converges(changed, lambda lab: list(lab.backend().rollback("pong", 1))) > 10


def test_an_up_killed_anywhere_can_be_followed_by_another_spec() -> None:
    another = fresh()
    another.up(**LARGE)
    another.settle()
    wanted = {name for name in another.there() if name.startswith(("Deployment", "StatefulSet"))}

    def check(lab: Lab, _: Lab) -> None:
        lab.up(**LARGE)
        lab.settle()
        assert lab.there() - lab.known() == set()
        assert {name for name in lab.there() if name.startswith(("Deployment", "StatefulSet"))} == wanted
        lab.api.new_command()
        lab.up(**LARGE)
        assert lab.api.requests.writes == 0, lab.api.writes

    killed_at_writes(large, lambda lab: lab.up(**CHANGED), check)


def test_an_up_killed_anywhere_can_be_taken_down_without_a_trace() -> None:
    def check(lab: Lab, _: Lab) -> None:
        lab.down(volumes=True)
        lab.settle()
        assert lab.there() == set()

    killed_at_writes(fresh, lambda lab: lab.up(**LARGE), check)
