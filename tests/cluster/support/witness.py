"""The cluster as its administrator sees it: an independent look at what rlctl did, by watches and never by sleeping."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from kubernetes import client, config, dynamic
from kubernetes.client.exceptions import ApiException
from kubernetes.stream import stream

from tests.cluster.support.contract import MARKER, refuse
from tests.support.home import KUBECONFIG

Object = dict[str, Any]
VERSIONS: Final[Mapping[str, str]] = {
    "Deployment": "apps/v1",
    "StatefulSet": "apps/v1",
    "ReplicaSet": "apps/v1",
    "PodDisruptionBudget": "policy/v1",
    "NetworkPolicy": "networking.k8s.io/v1",
    "Role": "rbac.authorization.k8s.io/v1",
    "RoleBinding": "rbac.authorization.k8s.io/v1",
    "PriorityClass": "scheduling.k8s.io/v1",
    "StorageClass": "storage.k8s.io/v1",
    "Lease": "coordination.k8s.io/v1",
}
"""Of every other kind: v1."""
KINDS: Final = (
    "ConfigMap", "Secret", "Service", "ServiceAccount", "PersistentVolumeClaim", "Deployment", "StatefulSet",
    "PodDisruptionBudget", "NetworkPolicy", "Role", "RoleBinding", "Lease",
)  # fmt: skip
"""Everything that a run may leave behind."""
_LOOPBACK: Final = ("0100007F", "00000000000000000000000001000000")
"""As the kernel writes 127.0.0.1 and ::1."""


def kubeconfig() -> str | None:
    """Of the administrator: tests run with a KUBECONFIG that leads nowhere, benchmarks with the user's."""
    return os.environ.get(KUBECONFIG) or os.environ.get("KUBECONFIG")


class Witness:
    """All rights on the test cluster."""

    def __init__(self, context: str) -> None:
        try:
            self._api = config.new_client_from_config(kubeconfig(), context)
        except config.ConfigException as error:
            refuse(f"context {context}: {error}")
        self.server: str = self._api.configuration.host
        self.ca_file: str = self._api.configuration.ssl_ca_cert or ""
        self._client = dynamic.DynamicClient(self._api)
        self._core = client.CoreV1Api(self._api)

    def marker(self) -> Mapping[str, str]:
        """The cluster's abilities as it states them; ends the session on one that was not made for tests."""
        found = self.get("ConfigMap", MARKER, "kube-system")
        if found is None:
            refuse(f"{self.server} carries no ConfigMap kube-system/{MARKER}: it may be somebody's production")
        return found.get("data") or {}  # type: ignore[union-attr]

    def version(self) -> str:
        return str(client.VersionApi(self._api).get_code().git_version)

    def get(self, kind: str, name: str, namespace: str | None = None) -> Object | None:
        try:
            return self._kind(kind).get(name=name, namespace=namespace).to_dict()  # type: ignore[no-any-return]
        except ApiException as error:
            if error.status == 404:
                return None
            raise

    def list(self, kind: str, namespace: str | None = None, labels: str = "") -> list[Object]:
        found = self._kind(kind).get(namespace=namespace, label_selector=labels)
        return found.to_dict()["items"]  # type: ignore[no-any-return]

    def names(self, namespace: str, kinds: Iterable[str] = KINDS) -> set[str]:
        """ "Kind/name" of everything in a namespace, but for what every namespace has."""
        found = {f"{kind}/{thing['metadata']['name']}" for kind in kinds for thing in self.list(kind, namespace)}
        return found - {"ConfigMap/kube-root-ca.crt", "ServiceAccount/default"}

    def apply(self, *documents: Object, namespace: str | None = None, manager: str = "administrator") -> None:
        """Server-side apply with force: the administrator's word counts."""
        for document in documents:
            self._client.server_side_apply(
                self._kind(document["kind"]),
                body=document,
                name=document["metadata"]["name"],
                namespace=document["metadata"].get("namespace", namespace),
                field_manager=manager,
                force_conflicts=True,
            )

    def scale(self, deployment: str, namespace: str, replicas: int, *, manager: str) -> None:
        """As an autoscaler does: by the subresource."""
        client.AppsV1Api(self._api).patch_namespaced_deployment_scale(
            deployment, namespace, {"spec": {"replicas": replicas}}, field_manager=manager
        )

    def delete(self, kind: str, name: str, namespace: str | None = None, grace_s: int | None = None) -> None:
        """It goes in the background; what is not there is no fault."""
        body: Object = {"propagationPolicy": "Background"}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        try:
            self._kind(kind).delete(name=name, namespace=namespace, body=body)
        except ApiException as error:
            if error.status != 404:
                raise

    def delete_all(self, kind: str, namespace: str, grace_s: int) -> None:
        """Everything of a kind in a namespace, which may be on its way out itself."""
        every = f"metadata.namespace={namespace}"  # one selector has to be named
        self._kind(kind).delete(namespace=namespace, body={"gracePeriodSeconds": grace_s}, field_selector=every)

    def evict(self, pod: str, namespace: str) -> None:
        """As a drain of its node would, heeding disruption budgets."""
        body = client.V1Eviction(metadata=client.V1ObjectMeta(name=pod, namespace=namespace))
        self._core.create_namespaced_pod_eviction(pod, namespace, body)

    def token(self, account: str, namespace: str) -> str:
        """A token of a service account, for the time of a test session."""
        body = client.AuthenticationV1TokenRequest(
            spec=client.V1TokenRequestSpec(audiences=[], expiration_seconds=14400)
        )
        return str(self._core.create_namespaced_service_account_token(account, namespace, body).status.token)

    def log(self, pod: str, namespace: str, *, previous: bool = False, lines: int = 60) -> str:
        try:
            return str(self._core.read_namespaced_pod_log(pod, namespace, previous=previous, tail_lines=lines))
        except ApiException as error:
            return f"({error.status} {error.reason})"

    def run(self, pod: str, namespace: str, *command: str, timeout_s: float = 60.0) -> str:
        """Run a program inside a pod to its end; returns what it wrote to its standard output."""
        answer = stream(
            self._core.connect_get_namespaced_pod_exec, pod, namespace, _preload_content=False, command=list(command),
            stdout=True, stderr=True, stdin=False, tty=False,
        )  # fmt: skip
        try:
            answer.run_forever(timeout=timeout_s)
            out, err = answer.read_stdout(), answer.read_stderr()
            assert not answer.is_open(), f"{command[:4]} in {pod} does not end\n{out}{err}"
            assert answer.returncode == 0, f"{command[:4]} in {pod}: exit {answer.returncode}\n{out}{err}"
            return str(out)
        finally:
            answer.sock.shutdown()  # its own `close` leaves the connection open

    def listening(self, pod: str, namespace: str) -> set[tuple[str, int]]:
        """("pod" | "loopback" | "anywhere", port) of everything that listens for TCP inside a pod."""
        told = self.run(pod, namespace, "cat", "/proc/net/tcp", "/proc/net/tcp6")
        found = set()
        for line in told.splitlines():
            words = line.split()
            if len(words) > 3 and words[3] == "0A":
                address, port = words[1].split(":")
                where = "loopback" if address in _LOOPBACK else "anywhere" if not int(address, 16) else "pod"
                found.add((where, int(port, 16)))
        return found

    def until(
        self, kind: str, namespace: str | None, condition: Callable[[dict[str, Object]], Any], *, what: str,
        timeout_s: float, labels: str = "",
    ) -> dict[str, Object]:  # fmt: skip
        """Watch objects of a kind until the condition holds of all of them, by name; returns them.

        Raises:
            AssertionError: it does not hold within the time; says what was seen last.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            page = self._kind(kind).get(namespace=namespace, label_selector=labels).to_dict()
            seen = {thing["metadata"]["name"]: thing for thing in page["items"]}
            if condition(seen):
                return seen
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise AssertionError(f"waited {timeout_s:g} s for {what}; last seen:\n{_told(seen)}")
            # the server ends a watch itself; a few seconds each keep us from trusting one connection for long
            span_s = max(1, min(30, int(left_s) + 1))
            for what_happened, thing in self._changes(kind, namespace, labels, page, span_s):
                if what_happened == "DELETED":
                    seen.pop(thing["metadata"]["name"], None)
                else:
                    seen[thing["metadata"]["name"]] = thing
                if condition(seen):
                    return seen

    def _changes(
        self, kind: str, namespace: str | None, labels: str, page: Object, span_s: int
    ) -> Iterator[tuple[str, Object]]:
        try:
            for event in self._client.watch(
                self._kind(kind), namespace=namespace, label_selector=labels,
                resource_version=page["metadata"]["resourceVersion"], timeout=span_s,
            ):  # fmt: skip
                if event["type"] in ("ADDED", "MODIFIED", "DELETED"):
                    yield event["type"], event["raw_object"]
        except ApiException as error:
            if error.status != 410:  # expired: whoever asks lists again
                raise

    def _kind(self, kind: str) -> Any:
        return self._client.resources.get(api_version=VERSIONS.get(kind, "v1"), kind=kind)


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Whether a pod takes part."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    living = not pod["metadata"].get("deletionTimestamp")
    return living and any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _told(seen: Mapping[str, Object]) -> str:
    lines = []
    for name, thing in sorted(seen.items()):
        status = thing.get("status") or {}
        told = {key: value for key, value in status.items() if isinstance(value, int | str)}
        lines.append(f"  {name}: {told}" + (" (being deleted)" if thing["metadata"].get("deletionTimestamp") else ""))
    return "\n".join(lines[:40]) or "  nothing"
