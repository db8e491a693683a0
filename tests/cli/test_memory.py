"""The memory target keeps the contract of a backend."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rlctl.backends.base import Applied, Backend, Document
from rlctl.errors import BackendUnreachable, Conflict
from rlctl.plan import Plan, make
from rlctl.spec import Spec
from tests.support.memory import MemoryBackend


def spec(**algorithm: object) -> Spec:
    return Spec.model_validate(
        {
            "run": "pole",
            "env": {"id": "CartPole-v1"},
            "algorithm": {"name": "impala", **algorithm},
            "roles": {"actor": {"replicas": 2}},
        }
    )


def planned(wanted: Spec, backend: Backend) -> Plan:
    return make(wanted, uid=backend.place("pole", None).uid, base=Path("/"))


def apply(backend: Backend, wanted: Spec) -> Iterator[Applied]:
    return backend.apply(planned(wanted, backend), [Document("a.conf", "text")], wanted.model_dump(mode="json"))


@pytest.fixture
def backend() -> MemoryBackend:
    return MemoryBackend(now=lambda: datetime(2026, 11, 21, tzinfo=UTC))


def test_it_is_a_backend(backend: MemoryBackend) -> None:
    whole: Backend = backend
    assert whole.name == "memory"


def test_apply_twice_writes_once(backend: MemoryBackend) -> None:
    assert {done.what for done in apply(backend, spec())} == {"created"}
    assert {done.what for done in apply(backend, spec())} == {"unchanged"}
    assert backend.writes == 1


def test_a_place_is_minted_once(backend: MemoryBackend) -> None:
    before = backend.place("pole", None)
    list(apply(backend, spec()))
    assert backend.place("pole", None).uid == before.uid
    assert backend.place("other", None).uid != before.uid


def test_only_the_roles_whose_hash_differs_are_restarted(backend: MemoryBackend) -> None:
    list(apply(backend, spec()))
    done = list(apply(backend, spec(lr=0.01)))
    assert [entry.object for entry in done if entry.what == "restarted"] == ["learner/0"]
    state = backend.find("pole")
    assert state is not None
    assert state.revision == 2


def test_what_was_not_applied_is_applied_by_the_same_call(backend: MemoryBackend) -> None:
    list(apply(backend, spec()))
    backend.set_process("pole", "actor", 1, state="failed")
    assert [entry.object for entry in apply(backend, spec()) if entry.what == "created"] == ["actor/1"]


def test_delete_keeps_the_run_unless_volumes(backend: MemoryBackend) -> None:
    list(apply(backend, spec()))
    backend.report("pole", {"phase": "running", "term": 3})
    list(backend.delete("pole", volumes=False, grace_s=1))
    state = backend.find("pole")
    assert state is not None
    assert state.phase == "stopped"
    assert backend.processes("pole") == []
    assert backend.stored_status("pole") == {"phase": "running", "term": 3}
    list(backend.delete("pole", volumes=True, grace_s=1))
    assert backend.runs() == []
    assert list(backend.delete("pole", volumes=True, grace_s=1)) == []


def test_the_manager_answers_only_while_it_lives(backend: MemoryBackend) -> None:
    list(apply(backend, spec()))
    with pytest.raises(BackendUnreachable):
        backend.control("pole", "GET", "/status")
    backend.report("pole", {"phase": "running"})
    assert backend.control("pole", "GET", "/status") == {"phase": "running"}
    assert backend.control("pole", "POST", "/checkpoint", {"now": True}) == {"ok": True}
    assert backend.posts("pole") == [("/checkpoint", {"now": True})]
    backend.finish("pole", "enough")
    with pytest.raises(BackendUnreachable):
        backend.control("pole", "GET", "/status")


def test_only_a_live_run_is_scaled_or_restarted(backend: MemoryBackend) -> None:
    list(apply(backend, spec()))
    assert [done.object for done in backend.scale("pole", {"actor": 1}) if done.what == "removed"] == ["actor/1"]
    list(backend.delete("pole", volumes=False, grace_s=1))
    with pytest.raises(Conflict):
        list(backend.scale("pole", {"actor": 1}))
    with pytest.raises(Conflict):
        list(backend.restart("pole", "actor"))
