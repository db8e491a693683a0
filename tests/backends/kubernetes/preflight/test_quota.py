"""Quotas that count objects: all that a run makes is in the sum, what is not rendered, too."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from rlctl.backends.kubernetes.api.interface import KINDS, Key, Object
from rlctl.backends.kubernetes.preflight import findings
from rlctl.backends.kubernetes.run_state.lock import Lock
from tests.backends.kubernetes.fakes.lab import Lab, spec_of


def told(hard: dict[str, Any], used: dict[str, Any] | None = None, lab: Lab | None = None) -> tuple[str, str]:
    lab = lab or Lab()
    plan, rendered = lab.plan(spec_of())
    status = {"hard": hard, "used": dict.fromkeys(hard, "0") | (used or {})}
    quota: Object = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "team"}, "status": status}
    lab.api.objects[Key("ResourceQuota", "team")] = quota
    found = next(each for each in findings.checks(lab.api, plan, rendered) if each.name == "quota")
    return found.verdict, found.text


def made() -> Counter[str]:
    """Objects that a first `up` really makes, its lock included."""
    lab = Lab()
    lab.up()
    with Lock(lab.api, "pong", "up", me=lab.me).held():
        return Counter(key.kind for key in lab.api.objects if key.kind != "Pod")


def counted(kind: str) -> str:
    group = KINDS[kind].api_version.rpartition("/")[0]
    return f"count/{KINDS[kind].plural}" + (f".{group}" if group else "")


def test_a_quota_that_fits_exactly_is_enough_and_one_less_is_told_for_each_kind() -> None:
    needed = {counted(kind): count for kind, count in made().items() if kind in KINDS}
    assert needed["count/secrets"] == 2
    assert told({name: str(count) for name, count in needed.items()})[0] == "ok"
    for name, count in needed.items():
        verdict, text = told({name: str(count - 1)})
        assert verdict == "problem", name
        assert text == f"quota team is smaller than the run: {name}: the run needs {count} of {count - 1}"


@pytest.mark.parametrize("name", ["configmaps", "secrets", "services", "persistentvolumeclaims"])
def test_an_object_is_counted_by_both_names(name: str) -> None:
    assert told({name: "0"})[0] == told({f"count/{name}": "0"})[0] == "problem"


def test_what_down_has_left_is_not_asked_for_again(lab: Lab) -> None:
    lab.up()
    lab.settle()
    lab.down()
    left = Counter(counted(key.kind) for key in lab.api.objects if key.kind in KINDS)
    assert left["count/secrets"] == 2
    hard = {counted(kind): str(count) for kind, count in made().items() if kind in KINDS}
    used = {name: str(left[name]) for name in hard}
    asked = lab.of("PersistentVolumeClaim", "pong-volume")["spec"]["resources"]["requests"]
    storage = {"requests.storage": asked["storage"]}
    verdict, text = told(hard | storage, used | storage, lab)
    assert verdict == "ok", text
