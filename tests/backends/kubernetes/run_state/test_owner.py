"""Owners of runs and objects: no command changes or removes those of others unless it is told to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from rlctl.backends.kubernetes.api.interface import Key
from rlctl.backends.kubernetes.apply import ramp
from rlctl.backends.kubernetes.backend import KubernetesBackend
from rlctl.backends.kubernetes.run_state import index
from rlctl.errors import Conflict
from rlctl.spec.names import UID as UID_NOTE
from rlctl.spec.runs.run_index import IndexEntry
from tests.backends.kubernetes.fakes.lab import BOB, UID, Lab

Act = Callable[[KubernetesBackend], Iterable[object]]
VERBS: dict[str, Act] = {
    "down": lambda backend: backend.delete("pong", volumes=False, grace_s=5.0),
    "down --volumes": lambda backend: backend.delete("pong", volumes=True, grace_s=5.0),
    "scale": lambda backend: backend.scale("pong", {"actor": 2}),
    "restart": lambda backend: backend.restart("pong", "learner"),
    "rollback": lambda backend: backend.rollback("pong", 1),
}
each_verb = pytest.mark.parametrize("act", VERBS.values(), ids=VERBS)


@pytest.fixture
def bob(lab: Lab, home: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A person with an empty index, beside the live run of alice."""
    lab.up()
    lab.settle()
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "bob"))
    lab.api.new_command()
    return Lab(lab.api, BOB)


def note_another(lab: Lab) -> None:
    """Note another run of the same name and place in the index of this user."""
    api = lab.api
    index.record(
        IndexEntry("pong", "f" * 32, "kubernetes", context=api.context, namespace=api.namespace, server=api.server)
    )


@each_verb
def test_a_run_of_somebody_else_is_left_alone_and_its_owner_named(bob: Lab, act: Act) -> None:
    with pytest.raises(Conflict, match="run pong in namespace rl is owned by alice@desk: started 2026-01-02") as error:
        list(act(bob.backend()))
    assert error.value.exit_code == 5
    assert "--force-conflicts" in error.value.hint
    assert bob.api.requests.writes == 0


@each_verb
def test_a_run_of_somebody_else_is_changed_by_force(bob: Lab, act: Act) -> None:
    assert list(act(bob.backend(force=True)))


@each_verb
def test_another_run_than_the_one_that_was_started_from_here_is_left_alone(lab: Lab, act: Act) -> None:
    lab.up()
    lab.settle()
    note_another(lab)
    lab.api.new_command()
    with pytest.raises(Conflict, match=f"with uid {UID[:8]}; the one that was started from here has uid ffffffff"):
        list(act(lab.backend()))
    assert lab.api.requests.writes == 0


@each_verb
def test_another_run_than_the_one_that_was_started_from_here_is_changed_by_force(lab: Lab, act: Act) -> None:
    lab.up()
    lab.settle()
    note_another(lab)
    assert list(act(lab.backend(force=True)))


def test_a_run_that_was_taken_over_by_force_is_changed_like_ones_own(bob: Lab) -> None:
    bob.up(force=True)
    bob.scale(actor=2)
    assert bob.replicas("pong-actor-0") == 2


def test_the_owner_of_an_unreadable_run_is_known_too(bob: Lab) -> None:
    bob.of("ConfigMap", "pong-state")["data"]["state.json"] = "{"
    with pytest.raises(Conflict, match="is owned by alice@desk"):
        bob.down()
    assert bob.api.requests.writes == 0


def test_whoever_is_asked_first_hears_the_owner_or_is_refused(bob: Lab, lab: Lab) -> None:
    assert lab.backend().check_owner("pong") == "alice@desk"
    assert bob.backend(force=True).check_owner("pong") == "alice@desk"
    with pytest.raises(Conflict, match="is owned by alice@desk"):
        bob.backend().check_owner("pong")
    assert bob.backend().check_owner("other") == ""


def test_down_of_an_absent_run_leaves_a_lease_of_that_name_alone(lab: Lab) -> None:
    lab.api.put({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "pong-lock"}})
    assert lab.down() == []
    assert lab.there() == {"Lease pong-lock"}
    assert lab.api.requests.writes == 0


def test_up_beside_a_lease_of_that_name_writes_nothing(lab: Lab) -> None:
    lab.api.put({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "pong-lock"}})
    with pytest.raises(Conflict, match="Lease pong-lock in namespace rl is not the lock of run pong"):
        lab.up()
    assert lab.there() == {"Lease pong-lock"}


ANOTHER = {
    "apiVersion": "apps/v1",
    "spec": {
        "replicas": 1,
        "selector": {"matchLabels": {"app": "x"}},
        "template": {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": []}},
    },
}


def replaced(lab: Lab, key: Key) -> object:
    """Remove an object of the run, and make a foreign one of that name."""
    lab.api.remove(key)
    return lab.api.put({**ANOTHER, "kind": key.kind, "metadata": {"name": key.name}})


@pytest.mark.parametrize("act", [VERBS["scale"], lambda backend: backend.restart("pong", "actor")])
def test_a_workload_of_somebody_else_is_neither_scaled_nor_restarted(lab: Lab, act: Act) -> None:
    lab.up()
    lab.settle()
    theirs = replaced(lab, Key("Deployment", "pong-actor-0"))
    with pytest.raises(Conflict, match="pong-actor-0 in namespace rl is not of run pong: it is of another owner"):
        list(act(lab.backend(force=True)))
    assert lab.of("Deployment", "pong-actor-0") == theirs
    assert "Lease pong-lock" not in lab.there()


def test_a_workload_that_becomes_somebody_elses_is_not_scaled_while_actors_come(lab: Lab) -> None:
    key = Key("Deployment", "pong-actor-0")

    def look() -> None:
        if lab.replicas(key.name) == ramp.CANARY:
            lab.api.edit(key, "x", lambda thing: thing["metadata"]["annotations"].pop(UID_NOTE, None))

    lab.api.step = 2
    lab.api.on_tick = look
    with pytest.raises(Conflict, match="Deployment pong-actor-0 in namespace rl is not of run pong"):
        lab.up(roles={"actor": {"replicas": 40}})
    assert lab.replicas(key.name) == ramp.CANARY
