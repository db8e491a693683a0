"""Where a run is, as this user has noted it."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest

from rlctl.backends.kubernetes.api.interface import ApiError
from rlctl.backends.kubernetes.backend import KubernetesBackend
from rlctl.backends.kubernetes.run_state import index
from rlctl.errors import Conflict, RlctlError
from rlctl.spec.runs import run_index
from rlctl.spec.runs.run_index import IndexEntry, Torn
from tests.backends.kubernetes.fakes.api import FakeApi
from tests.backends.kubernetes.fakes.lab import Lab, spec_of

ENTRY = IndexEntry("pong", "a" * 32, "kubernetes", context="prod", namespace="rl", server="https://one:6443")


def test_what_is_noted_is_found(home: Path) -> None:
    assert run_index.read("pong") is None
    assert index.record(ENTRY)
    assert not index.record(ENTRY)
    assert run_index.read("pong") == ENTRY


def test_a_run_elsewhere_is_not_reached_by_chance(home: Path) -> None:
    index.record(ENTRY)
    assert index.check("pong", "prod", "rl", "https://one:6443", explicit=False) == ENTRY
    for server, namespace in (("https://two:6443", "rl"), ("https://one:6443", "other")):
        with pytest.raises(Conflict, match="run pong was started in namespace rl of context prod") as error:
            index.check("pong", "prod", namespace, server, explicit=False)
        assert "--context prod -n rl" in error.value.hint
        assert index.check("pong", "prod", namespace, server, explicit=True) is None


def test_a_backend_refuses_another_cluster_unless_it_is_named(lab: Lab) -> None:
    lab.up()
    other = Lab(FakeApi(namespace="elsewhere"))
    with pytest.raises(Conflict, match="was started in namespace rl"):
        other.backend().find("pong")


def test_a_run_of_that_name_on_this_machine_is_not_overwritten(lab: Lab, home: Path) -> None:
    path = home / "rlctl" / "index" / "pong.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"run": "pong", "uid": "b" * 32, "target": "local"}))
    with pytest.raises(Conflict, match=r"there is a run pong on this machine \(target local\)"):
        lab.up()
    assert lab.there() == set()


def test_a_home_that_cannot_be_written_is_no_reason_to_stop(home: Path) -> None:
    (home / "rlctl").write_text("a file where the folder should be")
    assert not index.record(ENTRY)
    assert run_index.read("pong") is None
    index.forget("pong", "x")


def test_a_torn_entry_is_told(home: Path) -> None:
    path = home / "rlctl" / "index" / "pong.json"
    path.parent.mkdir(parents=True)
    path.write_text("[")
    with pytest.raises(Torn, match="does not hold the index entry"):
        run_index.read("pong")


def test_only_the_entry_of_that_run_is_forgotten(home: Path) -> None:
    index.record(ENTRY)
    index.forget("pong", "b" * 32)
    assert run_index.read("pong") is not None
    index.forget("pong", "a" * 32)
    assert run_index.read("pong") is None


def test_an_up_that_is_refused_before_its_first_object_is_found_by_down(lab: Lab) -> None:
    lab.api.refuse = lambda method, key: (
        ApiError("exceeded quota", status=403) if (method, key.kind) == ("POST", "Secret") else None
    )
    with pytest.raises(RlctlError):
        lab.up()
    entry = run_index.read("pong")
    assert entry is not None
    assert entry.uid == lab.record.state.uid
    lab.api.refuse = lambda method, key: None
    lab.down(volumes=True)
    assert lab.there() == set()
    assert run_index.read("pong") is None


def test_the_name_leads_there_from_before_the_first_write(lab: Lab) -> None:
    seen = []
    lab.api.on_write = lambda: seen.append(run_index.read("pong") is not None)
    lab.up()
    assert all(seen)


def test_an_up_that_wrote_nothing_is_not_noted(lab: Lab) -> None:
    lab.api.refuse = lambda method, key: ApiError("no", status=403) if (method, key.kind) == ("POST", "Lease") else None
    with pytest.raises(RlctlError):
        lab.up()
    assert run_index.read("pong") is None


def test_the_second_of_two_first_ups_leaves_the_name_to_the_first(lab: Lab) -> None:
    spec = spec_of()
    late, rendered = lab.plan(spec, uid="f" * 32)
    first: list[object] = []

    def now() -> datetime:  # asked for between its first look and its lock
        if not first:
            first.append(lab.up(spec))
        return lab.api.now()

    second = KubernetesBackend(api=lab.api, me=lab.me, clock=lab.api.clock, sleep=lab.api.sleep, now=now)
    with pytest.raises(Conflict, match="run pong in namespace rl is owned by alice@desk"):
        list(second.apply(late, rendered, spec.model_dump(mode="json")))
    entry = run_index.read("pong")
    assert entry is not None
    assert entry.uid == lab.record.state.uid
    lab.scale(actor=5)
