"""Printed next commands work as they are printed, but for names in capitals."""

from __future__ import annotations

import pytest

from rlctl.backends.kubernetes.api.calls import TELLS_MORE
from rlctl.backends.kubernetes.api.interface import ApiError, Key
from rlctl.backends.kubernetes.api.refusals import in_words
from rlctl.backends.kubernetes.diagnose.causes import admission
from rlctl.backends.kubernetes.preflight import doctor
from rlctl.errors import Unreadable
from tests.backends.kubernetes.fakes.api import FakeApi
from tests.backends.kubernetes.fakes.lab import Lab
from tests.backends.kubernetes.fakes.reads import Reads
from tests.backends.kubernetes.fakes.selectors import forbidden

ADMIN = "rlctl render --admin -n rl --user system:serviceaccount:rl:alice"


def test_who_may_not_read_is_asked_for_the_place_and_sent_to_doctor(lab: Lab) -> None:
    lab.api.refuse = lambda method, key: forbidden(key, "get") if method == "GET" else None
    with pytest.raises(ApiError) as find:
        lab.backend().find("pong")
    with pytest.raises(ApiError) as runs:
        lab.backend().runs()
    alice = "in namespace rl as system:serviceaccount:rl:alice"
    assert find.value.message == f"may not get ConfigMap pong-state {alice}"
    assert runs.value.message == f"may not list ConfigMaps of runs {alice}"
    for error in (find.value, runs.value):
        assert all(part in error.hint for part in ("-n", "--context", "`rlctl doctor -t kubernetes`", ADMIN))


def test_a_namespace_that_is_not_there_is_named_with_the_way_to_make_it() -> None:
    error = ApiError('namespaces "rl" not found', status=404)
    told = in_words(error, "create", Key("Lease", "pong-lock"), FakeApi(context="a b"), written=False)
    assert "there is no namespace rl" in str(told)
    assert "kubectl --context 'a b' create namespace rl" in getattr(told, "hint", "")


@pytest.mark.parametrize(
    ("context", "there"),
    [("team a", "kubectl --context 'team a' -n rl"), ("fake", "kubectl --context fake -n rl"),
     ("in-cluster", "kubectl -n rl")],
)  # fmt: skip
def test_a_printed_kubectl_leads_to_where_the_object_is(context: str, there: str) -> None:
    lab = Lab(FakeApi(context=context))
    lab.up()
    lab.of("ConfigMap", "pong-state")["data"]["state.json"] = "{"
    with pytest.raises(Unreadable) as error:
        lab.backend().find("pong")
    assert error.value.hint.endswith(f"{there} get configmap pong-state -o yaml")


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("rlctl-actor", "rlctl render --admin -n rl --user NAME  (prints it)"),
        ("nope", "kubectl get priorityclasses  (there are these; a patch names it)"),
    ],
)
def test_only_the_priority_class_that_is_printed_is_said_to_be(name: str, command: str) -> None:
    workload = {"kind": "Deployment", "metadata": {"name": "pong-actor-0", "namespace": "rl"}}
    said = f"pods is forbidden: no PriorityClass with name {name} was found"
    assert admission.refusal(workload, "FailedCreate", said).next == command


def test_doctor_does_not_send_to_itself() -> None:
    class Away(Reads):
        def version(self) -> str:
            raise ApiError("does not answer", status=0, hint=f"Is the cluster up?{TELLS_MORE}")

    [found] = doctor.checks(Away())
    assert found.next == "Is the cluster up?"


def test_doctor_says_for_which_namespace_an_administrator_prints() -> None:
    api = Reads()
    api.forbidden = {"create deployments"}
    rights = next(each for each in doctor.checks(api) if each.name == "rights")
    assert rights.next.startswith("rlctl render --admin -n team-a --user NAME  ")
