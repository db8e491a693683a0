"""A server that refuses in the middle of an `up`: exit 8, in the words of the cause, with its way out."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rlctl.backends.kubernetes.api.interface import ApiError, FieldConflict, Key, Object
from rlctl.errors import Conflict, PartlyApplied
from tests.backends.kubernetes.fakes.lab import Lab
from tests.backends.kubernetes.fakes.selectors import forbidden

GRACE = ".spec.template.spec.terminationGracePeriodSeconds"


def refuse_actors(lab: Lab, error: Callable[[Key], ApiError], *, after: int = 0) -> None:
    """The Deployment of actors, once so many more writes were let through."""
    so_far = len(lab.api.writes)

    def refuse(method: str, key: Key) -> ApiError | None:
        theirs = (method, key) == ("PATCH", Key("Deployment", "pong-actor-0"))
        return error(key) if theirs and len(lab.api.writes) - so_far >= after else None

    lab.api.refuse = refuse


def denied(key: Key) -> ApiError:
    said = 'admission webhook "policy.corp" denied the request: team label missing'
    return ApiError(said, status=403, key=key)


def shorter_grace(document: Object) -> None:
    if document["kind"] in ("Deployment", "StatefulSet"):
        document["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 33


def second_up_fails(lab: Lab, error: Callable[[Key], ApiError]) -> PartlyApplied:
    lab.up()
    lab.settle()
    lab.change = shorter_grace
    refuse_actors(lab, error, after=3)
    with pytest.raises(PartlyApplied) as found:
        lab.up()
    return found.value


def test_what_a_webhook_denies_is_partly_applied_and_no_missing_right(lab: Lab) -> None:
    refuse_actors(lab, denied)
    with pytest.raises(PartlyApplied, match=r"Deployment pong-actor-0 was refused.*team label missing") as error:
        lab.up()
    assert error.value.exit_code == 8
    assert "administrator" not in error.value.hint
    assert "by a patch" in error.value.hint
    assert "it goes on where this one stopped" in error.value.hint
    assert error.value.objects == ("Deployment pong-actor-0",)
    lab.api.refuse = lambda method, key: None
    lab.up()
    assert lab.record.state.revision == 1


def test_what_the_server_calls_invalid_is_partly_applied_once_something_was_written(lab: Lab) -> None:
    error = second_up_fails(lab, lambda key: ApiError("Deployment is invalid: bad", status=422, key=key))
    assert "Deployment pong-actor-0: Deployment is invalid: bad" in error.message


def test_what_cannot_change_is_partly_applied_with_its_way_out(lab: Lab) -> None:
    error = second_up_fails(lab, lambda key: ApiError("spec.x: field is immutable", status=422, key=key))
    assert "kubectl --context fake -n rl delete deployment pong-actor-0 --cascade=orphan" in error.hint
    assert error.hint.endswith("it goes on where this one stopped.")


def test_a_field_conflict_in_the_middle_does_not_say_that_all_is_as_it_was(lab: Lab) -> None:
    theirs = (FieldConflict(GRACE, "kubectl"),)
    error = second_up_fails(lab, lambda key: ApiError("conflict", status=409, key=key, conflicts=theirs))
    assert "kubectl" in error.message
    assert "--force-conflicts" in error.hint
    assert "as it was" not in error.hint


def test_a_read_that_fails_after_a_write_is_partly_applied_too(lab: Lab) -> None:
    def refuse(method: str, key: Key) -> ApiError | None:
        is_revision = (method, key.name) == ("GET", "pong-revision-1")
        return ApiError("etcd is away", status=503, key=key) if is_revision and len(lab.api.writes) > 20 else None

    lab.api.refuse = refuse
    with pytest.raises(PartlyApplied, match="etcd is away"):
        lab.up()


def test_a_down_that_is_refused_after_the_last_status_was_stored_is_partly_applied(lab: Lab) -> None:
    lab.up()
    lab.settle()
    lab.api.manager = lambda method, path, body: (200, {"phase": "running"})
    lab.api.refuse = lambda method, key: (
        forbidden(key, "delete") if (method, key.kind) == ("DELETE", "Deployment") else None
    )
    with pytest.raises(PartlyApplied, match="may not delete Deployment"):
        lab.down()
    assert lab.record.final == {"phase": "running"}


def test_a_refusal_of_the_very_first_write_is_no_partial_one(lab: Lab) -> None:
    lab.api.refuse = lambda method, key: forbidden(key) if (method, key.name) == ("POST", "pong-state") else None
    with pytest.raises(ApiError, match="may not create ConfigMap pong-state") as error:
        lab.up()
    assert error.value.exit_code == 4
    assert lab.there() == set()


def test_a_lock_that_is_lost_in_the_middle_stays_a_conflict(lab: Lab) -> None:
    def lose() -> None:
        if len(lab.api.writes) == 9:
            lab.api.remove(Key("Lease", "pong-lock"))
            lab.api.seconds += 25

    lab.api.on_write = lose
    with pytest.raises(Conflict, match="the lock of run pong was lost"):
        lab.up()


@pytest.mark.parametrize("kind", ["Lease", "ConfigMap"])
def test_a_quota_that_refuses_the_very_first_write_is_no_partial_one(lab: Lab, kind: str) -> None:
    said = "is forbidden: exceeded quota: team, requested: objects=1, used: objects=3, limited: objects=3"
    lab.api.refuse = lambda method, key: (
        ApiError(said, status=403, key=key) if (method, key.kind) == ("POST", kind) else None
    )
    with pytest.raises(Conflict, match=r"quota team exceeded: objects: 3 used \+ 1 asked > 3") as error:
        lab.up()
    assert error.value.exit_code == 5
    assert (
        error.value.hint == "Ask for less, or have the quota raised (kubectl --context fake -n rl describe quota team)."
    )
    assert lab.there() == set()


@pytest.mark.parametrize(
    ("method", "name", "command"),
    [
        ("DELETE", "pong-manager", lambda lab: lab.down()),
        ("PATCH", "pong-actor-1", lambda lab: lab.scale(actor=2000)),
        ("PATCH", "pong-actor-1", lambda lab: list(lab.backend().restart("pong", "actor"))),
    ],
)
def test_a_later_step_of_another_command_that_fails_is_partly_applied(
    lab: Lab, method: str, name: str, command: Callable[[Lab], object]
) -> None:
    lab.up(roles={"actor": {"replicas": 1500}})
    lab.settle()
    lab.api.refuse = lambda verb, key: (
        ApiError("etcd is away", status=503, key=key) if (verb, key.name) == (method, name) else None
    )
    with pytest.raises(PartlyApplied, match="etcd is away") as error:
        command(lab)
    assert error.value.hint == "Run the same command again: it goes on where this one stopped."
    lab.api.refuse = lambda verb, key: None
    command(lab)
