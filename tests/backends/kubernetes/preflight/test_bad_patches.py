"""A patch that the server does not take: told before anything is written, with its file."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from rlctl.backends.kubernetes.api.exchange import refusal
from rlctl.backends.kubernetes.api.interface import ApiError, Key
from rlctl.backends.kubernetes.api.refusals import GO_ON, in_words, partly
from rlctl.errors import Conflict, PartlyApplied, SpecError
from rlctl.plan import PATCHED_BY, Document, Plan
from tests.backends.kubernetes.fakes.api import FakeApi
from tests.backends.kubernetes.fakes.lab import Lab, spec_of
from tests.backends.kubernetes.fakes.selectors import forbidden

ACTORS = Key("Deployment", "pong-actor-0")
FILE = "/home/me/templates/actor.patch.yaml"
UNKNOWN = "failed to create typed patch object (rl/pong-actor-0; apps/v1, Kind=Deployment): .spec.x: field not declared"


def invalid(key: Key) -> ApiError:
    return ApiError("Deployment.apps is invalid: containers: Required value", status=422, key=key)


def unknown(key: Key) -> ApiError:
    return refusal(500, json.dumps({"message": UNKNOWN, "code": 500}).encode(), key, "")


def patched(lab: Lab) -> tuple[Plan, list[Document]]:
    """A changed Deployment of actors, with a patch beside the spec."""
    plan, rendered = lab.plan(spec_of())
    text = "minReadySeconds: 5\n  selector:"
    return plan, [
        replace(each, origin=f"{each.origin}{PATCHED_BY}{FILE}", text=each.text.replace("selector:", text, 1))
        if each.name == "deployment-pong-actor-0.yaml" else each
        for each in rendered
    ]  # fmt: skip


def refuse(lab: Lab, error: Callable[[Key], ApiError]) -> None:
    lab.api.refuse = lambda method, key: error(key) if (method, key) == ("PATCH", ACTORS) else None


@pytest.mark.parametrize("error", [invalid, unknown])
@pytest.mark.parametrize("there", [False, True])
def test_it_names_its_file_and_nothing_is_written(lab: Lab, error: Callable[[Key], ApiError], there: bool) -> None:
    if there:
        lab.up()
        lab.settle()
        lab.api.new_command()
    refuse(lab, error)
    plan, rendered = patched(lab)
    said = f"{FILE}: the cluster does not take Deployment pong-actor-0 with this patch: {error(ACTORS).message}"

    with pytest.raises(SpecError) as up:
        list(lab.backend().apply(plan, rendered, spec_of().model_dump(mode="json")))
    with pytest.raises(SpecError) as dry:
        list(lab.backend().differences(plan, rendered))

    assert [str(each) for each in up.value.problems] == [str(each) for each in dry.value.problems] == [said]
    assert up.value.exit_code == 3
    assert not lab.api.writes


def test_a_schema_error_is_not_asked_again_though_the_server_calls_it_its_own() -> None:
    assert unknown(ACTORS).status == 400


def test_what_only_says_something_about_the_dry_run_stops_nobody(lab: Lab) -> None:
    so_far = iter([ApiError('admission webhook "x" does not support dry run', status=400)])
    lab.api.refuse = lambda method, key: next(so_far, None) if (method, key) == ("PATCH", ACTORS) else None
    plan, rendered = patched(lab)
    list(lab.backend().apply(plan, rendered, spec_of().model_dump(mode="json")))
    assert ACTORS in lab.api.objects


@pytest.mark.parametrize("status", [400, 403, 404, 413, 422])
def test_nobody_is_told_to_repeat_what_ends_the_same_way(status: int) -> None:
    told = in_words(ApiError("no", status=status), "create", ACTORS, FakeApi(), written=True)
    assert isinstance(told, ApiError)
    assert "same command" not in told.hint
    assert GO_ON not in partly(told).hint
    assert partly(told).remedy


@pytest.mark.parametrize("status", [0, 429, 503])
def test_what_may_pass_is_to_be_repeated(status: int) -> None:
    told = in_words(ApiError("no", status=status), "create", ACTORS, FakeApi(), written=True)
    assert isinstance(told, PartlyApplied)
    assert told.hint == GO_ON


@pytest.mark.parametrize(
    ("message", "status"),
    [
        (
            'persistentvolumeclaims "pong-volume" is forbidden: only dynamically provisioned pvc can be resized and '
            "the storageclass that provisions the pvc must support resize",
            403,
        ),
        ("spec.resources.requests.storage: Forbidden: field can not be less than status.capacity", 422),
    ],
)
def test_a_volume_that_cannot_take_its_size_is_no_missing_right(lab: Lab, message: str, status: int) -> None:
    lab.up()
    lab.settle()
    lab.api.new_command()
    volume = Key("PersistentVolumeClaim", "pong-volume")
    lab.api.refuse = lambda method, key: (
        ApiError(message, status=status, key=key) if (method, key) == ("PATCH", volume) else None
    )
    with pytest.raises(Conflict, match="the volume cannot take this size") as up:
        lab.up(storage={"size": "99Gi"})
    plan, rendered = lab.plan(spec_of(storage={"size": "99Gi"}))
    with pytest.raises(Conflict, match="the volume cannot take this size"):
        list(lab.backend().differences(plan, rendered))
    assert "storage.size" in up.value.hint
    assert "administrator" not in up.value.hint
    assert not lab.api.writes


def test_a_missing_right_stays_one() -> None:
    assert "administrator" in in_words(forbidden(ACTORS), "patch", ACTORS, FakeApi(), written=False).hint
