"""Drift of a live object from its document: values, and owners of fields."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.backends.kubernetes.api import quantity
from rlctl.backends.kubernetes.api.interface import Key, Object
from rlctl.backends.kubernetes.api.ownership import owning, shown
from rlctl.backends.kubernetes.apply.drift import compare, replaced
from tests.backends.kubernetes.fakes.api import FakeApi

DOCUMENT: Object = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "a", "labels": {"app": "a"}, "annotations": {"rlctl.dev/uid": "1"}},
    "spec": {
        "selector": {"matchLabels": {"app": "a"}},
        "strategy": {"rollingUpdate": {"maxSurge": "10%"}},
        "template": {
            "metadata": {"labels": {"app": "a"}},
            "spec": {
                "enableServiceLinks": False,
                "tolerations": [{"key": "spot", "operator": "Exists"}],
                "containers": [
                    {
                        "name": "main",
                        "image": "one",
                        "args": ["-a", "-b"],
                        "env": [
                            {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                            {"name": "EMPTY", "value": ""},
                        ],
                        "ports": [{"name": "rpc", "containerPort": 7100}],
                        "resources": {"requests": {"cpu": "1000m", "memory": "1024Mi"}, "limits": {"memory": "1Gi"}},
                        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
                    }
                ],
                "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "1024Mi"}}],
            },
        },
    },
}
KEY = Key("Deployment", "a")


def live_of(document: Object) -> tuple[FakeApi, Object]:
    api = FakeApi()
    api.apply(document, manager="rlctl")
    return api, api.objects[KEY]


def edited(path: str, value: Any, document: Object = DOCUMENT) -> Object:
    """A copy with something else at `spec.template.spec.containers.0.image`."""
    changed = copy.deepcopy(document)
    *steps, last = path.split(".")
    place: Any = changed
    for step in steps:
        place = place[int(step)] if step.isdigit() else place[step]
    if value is None:
        del place[int(last) if last.isdigit() else last]
    elif last == "+":
        place.append(value)
    else:
        place[int(last) if last.isdigit() else last] = value
    return changed


def drifted(document: Object, live: Object) -> list[str]:
    return [str(each) for each in compare(document, live)]


def test_what_the_server_fills_in_or_writes_differently_is_no_drift() -> None:
    _, live = live_of(DOCUMENT)
    assert live["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "1", "memory": "1Gi"}
    assert drifted(DOCUMENT, live) == []


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("metadata.labels.app", "b", ".metadata.labels.app"),
        ("spec.template.spec.containers.0.image", "two", '.spec.template.spec.containers[name="main"].image'),
        ("spec.template.spec.containers.0.args", ["-a"], '.spec.template.spec.containers[name="main"].args'),
        ("spec.template.spec.containers.0.resources.requests.cpu", "1.5",
         '.spec.template.spec.containers[name="main"].resources.requests.cpu'),
        ("spec.template.spec.containers.0.env.1.value", "x",
         '.spec.template.spec.containers[name="main"].env[name="EMPTY"].value'),
        ("spec.template.spec.enableServiceLinks", True, ".spec.template.spec.enableServiceLinks"),
        ("spec.template.spec.tolerations.0.key", "gpu", ".spec.template.spec.tolerations"),
        ("spec.template.spec.volumes.0.emptyDir.sizeLimit", "2Gi",
         '.spec.template.spec.volumes[name="tmp"].emptyDir.sizeLimit'),
        ("spec.minReadySeconds", 5, ".spec.minReadySeconds"),
        ("spec.template.spec.containers.0.ports.+", {"containerPort": 7101, "name": "more"},
         '.spec.template.spec.containers[name="main"].ports[containerPort=7101,protocol="TCP"].containerPort'),
    ],
)  # fmt: skip
def test_a_field_that_differs_is_named(path: str, value: Any, field: str) -> None:
    _, live = live_of(DOCUMENT)
    assert field in drifted(edited(path, value), live)


@pytest.mark.parametrize(
    "path",
    [
        "metadata.annotations", "spec.strategy", "spec.template.spec.tolerations", "spec.template.spec.volumes",
        "spec.template.spec.containers.0.env.1", "spec.template.spec.containers.0.ports",
        "spec.template.spec.containers.0.resources.limits",
    ],
)  # fmt: skip
def test_a_field_that_is_named_no_more_is_given_up(path: str) -> None:
    api, live = live_of(DOCUMENT)
    without = edited(path, None)
    assert drifted(without, live)
    api.apply(without, manager="rlctl")
    assert drifted(without, api.objects[KEY]) == []


@pytest.mark.parametrize(
    "path", ["spec.template.spec.containers.0.args", "spec.template.spec.containers.0.env", "metadata.annotations"]
)
def test_after_an_apply_nothing_differs_any_more(path: str) -> None:
    api, _ = live_of(edited(path, None))
    assert drifted(DOCUMENT, api.objects[KEY])
    api.apply(DOCUMENT, manager="rlctl")
    assert drifted(DOCUMENT, api.objects[KEY]) == []


def test_what_somebody_else_adds_is_left_alone() -> None:
    api, _ = live_of(DOCUMENT)

    def change(thing: Object) -> None:
        thing["metadata"]["annotations"]["deployment.kubernetes.io/revision"] = "3"
        thing["spec"]["template"]["spec"]["containers"].append({"name": "sidecar", "image": "mesh"})
        thing["spec"]["template"]["metadata"]["annotations"] = {"rlctl.dev/restarted-at": "now"}

    api.edit(KEY, "mesh", change)
    assert drifted(DOCUMENT, api.objects[KEY]) == []


def test_what_somebody_else_changes_is_drift_and_names_its_owner() -> None:
    api, _ = live_of(DOCUMENT)

    def change(thing: Object) -> None:
        thing["spec"]["template"]["spec"]["containers"][0]["image"] = "theirs"

    api.edit(KEY, "kubectl-edit", change)
    [found] = compare(DOCUMENT, api.objects[KEY])
    assert (found.theirs, found.ours, found.owners, found.differs) == ("theirs", "one", ("kubectl-edit",), True)
    assert replaced([found])


def test_an_equal_value_that_is_not_ours_becomes_ours() -> None:
    api = FakeApi()
    api.put(copy.deepcopy(DOCUMENT), manager="kubectl")
    found = compare(DOCUMENT, api.objects[KEY])
    assert found
    assert not any(each.differs for each in found if "resources" not in str(each))
    assert not any(each.differs and each.owners for each in found)


def test_owners_of_one_field() -> None:
    api, _ = live_of(DOCUMENT)
    api.apply({**DOCUMENT, "spec": {"replicas": 3}}, manager="rlctl-scale")
    assert [owner.manager for owner in owning(api.objects[KEY], ("f:spec", "f:replicas"))] == ["rlctl-scale"]


def test_a_place_is_written_as_the_server_writes_it() -> None:
    assert shown(("f:spec", 'k:{"containerPort":7100,"protocol":"TCP"}', "f:name")) == (
        '.spec[containerPort=7100,protocol="TCP"].name'
    )


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1000m", 1),
        ("1", 1),
        ("1Gi", 1 << 30),
        ("1024Mi", 1 << 30),
        ("1e3", 1000),
        ("2E", 2 * 10**18),
        (2, 2),
        ("1.5Ki", 1536),
    ],
)
def test_quantities_are_numbers(text: Any, number: int) -> None:
    assert quantity.parse(text) == number


@pytest.mark.parametrize("text", ["", "1Zi", "x", None, True, "1 Gi", "--1", [1], "1_0", "NaN", "1e"])
def test_what_is_no_quantity_is_none(text: Any) -> None:
    assert quantity.parse(text) is None


@given(st.integers(0, 10**6))
def test_milli_and_whole_agree(number: int) -> None:
    assert quantity.same(f"{number * 1000}m", str(number))
