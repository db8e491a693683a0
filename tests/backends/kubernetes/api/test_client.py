"""The official client against an API server over HTTP, and the way to a cluster."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from rlctl.backends.kubernetes.api.calls import Calls
from rlctl.backends.kubernetes.api.client import connect
from rlctl.backends.kubernetes.api.interface import ApiError, Expired, Key
from rlctl.backends.kubernetes.api.retries import Retries
from rlctl.backends.kubernetes.backend import KubernetesBackend
from rlctl.errors import BackendUnreachable
from tests.backends.kubernetes.fakes.api import FakeApi
from tests.backends.kubernetes.fakes.lab import Lab, spec_of
from tests.backends.kubernetes.fakes.selectors import forbidden
from tests.backends.kubernetes.fakes.server import Server, kubeconfig, serving

THING = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "labels": {"x": "y"}}, "data": {"k": "v"}}
KEY = Key("ConfigMap", "a")


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(FakeApi()) as found:
        yield found


@pytest.fixture
def api(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Calls:
    path = tmp_path / "config"
    path.write_text(kubeconfig(f"http://127.0.0.1:{server.server_port}"))
    monkeypatch.setenv("KUBECONFIG", str(path))
    return connect()


def test_the_context_leads_to_server_and_namespace(api: Calls, server: Server) -> None:
    assert (api.context, api.namespace) == ("fake", "rl")
    assert api.server == f"http://127.0.0.1:{server.server_port}"
    assert connect("fake", "other").namespace == "other"
    assert not server.said, "nothing is sent, and nothing discovered, before it is needed"


def test_an_object_is_made_read_changed_and_removed(api: Calls, server: Server) -> None:
    assert api.get(KEY) is None
    made = api.apply(THING, manager="rlctl")
    assert made["metadata"]["managedFields"][0]["manager"] == "rlctl"
    found = api.get(KEY)
    assert found is not None
    assert found["data"] == {"k": "v"}
    api.replace({**found, "data": {"k": "w"}})
    with pytest.raises(ApiError) as error:
        api.replace({**found, "data": {"k": "x"}})
    assert error.value.status == 409
    assert api.list("ConfigMap", labels="x=y").items[0]["data"] == {"k": "w"}
    assert api.delete(KEY, uid="another") is False
    assert api.delete(KEY, uid=found["metadata"]["uid"]) is True
    assert api.get(KEY) is None


def test_the_token_and_the_name_of_the_program_are_sent(api: Calls, server: Server) -> None:
    api.version()
    headers = server.headers_said[-1]
    assert headers["authorization"] == "Bearer secret-token"
    assert headers["user-agent"].startswith("rlctl/")


def test_credentials_that_changed_in_the_kubeconfig_are_read_again(api: Calls, server: Server, tmp_path: Path) -> None:
    api.version()
    path = tmp_path / "config"
    path.write_text(path.read_text().replace("secret-token", "another-token"))
    server.planned = [(401, {}, {"message": "Unauthorized"})]
    assert api.version() == "v1.34.1"
    assert server.headers_said[-1]["authorization"] == "Bearer another-token"


def test_apply_is_sent_as_a_patch_of_its_own_type(api: Calls, server: Server) -> None:
    api.apply(THING, manager="rlctl", dry_run=True)
    method, _, query, content_type, body = server.said[-1]
    assert (method, content_type) == ("PATCH", "application/apply-patch+yaml")
    assert query["fieldValidation"] == "Strict"
    assert body == THING
    assert server.api.objects == {}


def test_an_overloaded_server_is_asked_again(api: Calls, server: Server) -> None:
    server.planned = [(429, {"Retry-After": "0"}, {"message": "busy"}), (503, {}, {"message": "starting"})]
    assert api.version() == "v1.34.1"
    assert len(server.said) == 3


def test_a_watch_ends_with_its_time_and_tells_what_changed(api: Calls, server: Server) -> None:
    api.apply(THING, manager="rlctl")
    version = api.list("ConfigMap").resource_version
    api.apply({**THING, "data": {"k": "w"}}, manager="rlctl")
    found = list(api.watch("ConfigMap", resource_version=version, timeout_s=1))
    assert [each.what for each in found] == ["MODIFIED", "BOOKMARK"]
    server.api.forget()
    with pytest.raises(Expired):
        list(api.watch("ConfigMap", resource_version=version, timeout_s=1))


def test_pages_are_put_together(api: Calls, server: Server) -> None:
    for number in range(5):
        api.apply({**THING, "metadata": {"name": f"a{number}"}}, manager="rlctl")
    page = api.list("ConfigMap", most=2)
    assert (len(page.items), page.remaining) == (2, 3)


def test_logs_and_rights_and_raw_paths(api: Calls) -> None:
    assert list(api.pod_log("p", within_s=5)) == ["first", "second"]
    assert api.may("get", "pods") is True
    assert api.raw("/apis/storage.k8s.io/v1/storageclasses") == {"items": []}


def test_a_whole_run_goes_over_the_wire(api: Calls, server: Server, home: Path) -> None:
    far = server.api
    lab = Lab(far)
    spec = spec_of()
    plan, rendered = lab.plan(spec)
    backend = KubernetesBackend(api=api, clock=far.clock, sleep=far.sleep, now=far.now)
    list(backend.apply(plan, rendered, spec.model_dump(mode="json")))
    lab.settle()
    before = far.requests.writes
    assert {each.what for each in backend.apply(plan, rendered, spec.model_dump(mode="json"))} == {"unchanged"}
    assert far.requests.writes == before
    list(backend.delete("pong", volumes=True, grace_s=5))
    assert lab.there() == set()


def test_a_server_that_is_not_there_is_told(api: Calls, server: Server, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(kubeconfig("http://127.0.0.1:1"))
    gone = connect()
    times = iter(range(1000))
    gone._patience = Retries(lambda: float(next(times)), lambda seconds: None, lambda: 0.0)
    with pytest.raises(ApiError, match=r"does not answer: .*refused"):
        gone.version()


def test_without_a_kubeconfig_the_missing_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(BackendUnreachable, match="there is no kubeconfig") as error:
        connect()
    assert "KUBECONFIG" in error.value.hint


def test_a_context_that_is_not_there_is_told_with_those_that_are(api: Calls) -> None:
    with pytest.raises(BackendUnreachable, match="has no context nope") as error:
        connect("nope")
    assert "fake" in error.value.hint


def test_a_broken_kubeconfig_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, text in enumerate(("", "]", "{}", '{"contexts": 3}')):
        path = tmp_path / f"config{number}"
        path.write_text(text)
        monkeypatch.setenv("KUBECONFIG", str(path))
        with pytest.raises(BackendUnreachable, match="cannot be used"):
            connect()


def test_a_credential_plugin_that_fails_is_told_and_nobody_asks_as_nobody(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "config"
    config = yaml.safe_load(kubeconfig(f"http://127.0.0.1:{server.server_port}"))
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "/nowhere/login", "interactiveMode": "Never"}
    config["users"][0]["user"] = {"exec": plugin}
    path.write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(path))
    with pytest.raises(BackendUnreachable, match=r"no credentials for context fake.*/nowhere/login") as error:
        connect()
    assert "kubectl --context fake auth whoami" in error.value.hint
    assert not server.said
    assert not caplog.records


def test_a_credential_plugin_that_fails_later_is_told_as_well(api: Calls) -> None:
    def expired(configuration: object) -> None:
        logging.error("exec: process returned 1. token has expired")

    api._connection._configuration.refresh_api_key_hook = expired  # type: ignore[attr-defined]
    with pytest.raises(BackendUnreachable, match="token has expired"):
        api.version()


def test_a_forward_without_the_right_is_told_as_that(api: Calls, server: Server) -> None:
    with pytest.raises(ApiError) as error, api.forward("p", 7190):
        pass
    assert error.value.status == 0, "the pod may only not be there yet"
    server.api.refuse = lambda method, key: forbidden(key, "create") if method == "FORWARD" else None
    told = r"port 7190 of Pod p cannot be reached: .*is forbidden: User"
    with pytest.raises(ApiError, match=told) as error, api.forward("p", 7190):
        pass
    assert error.value.status == 403
