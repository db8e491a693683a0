"""Interface to an API server: the dozen calls on plain dictionaries that this backend needs.

`rlctl.backends.kubernetes.api.client` makes them with the official client;
`tests/backends/kubernetes/fakes/api.py` answers them from memory. Errors are those of this module and of rlctl.errors.
"""

from __future__ import annotations

import re
import shlex
import socket
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from rlctl.errors import BackendUnreachable
from rlctl.spec.names import IN_CLUSTER

Object = dict[str, Any]
"""Object as JSON: apiVersion, kind, metadata, ..."""


class Kind(NamedTuple):
    """One kind of namespaced object."""

    kind: str
    api_version: str
    plural: str


KINDS: Mapping[str, Kind] = {
    each.kind: each
    for each in (
        Kind("ConfigMap", "v1", "configmaps"),
        Kind("Secret", "v1", "secrets"),
        Kind("Service", "v1", "services"),
        Kind("ServiceAccount", "v1", "serviceaccounts"),
        Kind("PersistentVolumeClaim", "v1", "persistentvolumeclaims"),
        Kind("Pod", "v1", "pods"),
        Kind("Event", "v1", "events"),
        Kind("ResourceQuota", "v1", "resourcequotas"),
        Kind("Deployment", "apps/v1", "deployments"),
        Kind("StatefulSet", "apps/v1", "statefulsets"),
        Kind("PodDisruptionBudget", "policy/v1", "poddisruptionbudgets"),
        Kind("NetworkPolicy", "networking.k8s.io/v1", "networkpolicies"),
        Kind("Role", "rbac.authorization.k8s.io/v1", "roles"),
        Kind("RoleBinding", "rbac.authorization.k8s.io/v1", "rolebindings"),
        Kind("Lease", "coordination.k8s.io/v1", "leases"),
    )
}
"""All kinds that we send or read; listed here, so that no request is spent on discovery."""


class Key(NamedTuple):
    """Name of an object in the namespace."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def key_of(document: Mapping[str, Any]) -> Key:
    return Key(document["kind"], document["metadata"]["name"])


class FieldConflict(NamedTuple):
    """A field that another field manager owns."""

    field: str  # ".spec.replicas"
    owner: str  # field manager


@dataclass(frozen=True, slots=True)
class Page:
    """Objects of one list, and the version from which a watch continues."""

    items: list[Object]
    resource_version: str
    remaining: int = 0  # objects beyond `most`, which were not read


class Event(NamedTuple):
    """One change that a watch saw; an expired watch raises Expired instead."""

    what: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
    object: Object


class ApiError(BackendUnreachable):
    """Refusal of the API server, or no answer: a caller that can do without the target catches this, too.

    Args:
        status: HTTP status; 0 when there was no answer.
        key: the object concerned.
    """

    def __init__(
        self, message: str, *, status: int, key: Key | None = None, hint: str = "",
        conflicts: tuple[FieldConflict, ...] = (),
    ) -> None:  # fmt: skip
        super().__init__(message, hint=hint, objects=(str(key),) if key else ())
        self.status = status
        self.key = key
        self.conflicts = conflicts


class Expired(Exception):
    """A watch or list cannot continue, as the server has dropped its version: list again."""


class Api(Protocol):
    """One namespace of one cluster, as one user. Retries what can be retried on 429, 5xx and timeouts, within a budget;
    then raises ApiError. Every call has a timeout."""

    context: str  # of the kubeconfig; "in-cluster"
    namespace: str
    server: str  # https://...

    def get(self, key: Key) -> Object | None:
        """The object, or None if it does not exist."""

    def list(self, kind: str, *, labels: str = "", fields: str = "", most: int | None = None) -> Page:
        """Objects of a kind, in pages of 500, from the server's cache (resourceVersion 0) when `most` is None."""

    def apply(
        self, document: Object, *, manager: str, force: bool = False, dry_run: bool = False,
        uid: str | None = None,
    ) -> Object:  # fmt: skip
        """Server-side apply, with strict field validation; returns the object.

        Args:
            uid: refuse (409) unless the live object has it.

        Raises:
            ApiError: with `conflicts` if other field managers own fields.
        """

    def create(self, document: Object) -> Object:
        """Create an object; ApiError with status 409 if it exists."""

    def replace(self, document: Object) -> Object:
        """Write a whole object back; status 409 if it has changed since it was read (resourceVersion)."""

    def delete(
        self, key: Key, *, uid: str | None = None, grace_s: int | None = None,
        propagation: Literal["Background", "Foreground"] = "Background",
    ) -> bool:  # fmt: skip
        """Delete an object, with `uid` only that one (precondition); False if it did not exist."""

    def watch(
        self, kind: str, *, labels: str = "", fields: str = "", resource_version: str, timeout_s: float
    ) -> Iterator[Event]:
        """Changes since a version, until the timeout. Raises Expired."""

    def pod_log(self, pod: str, *, within_s: float, previous: bool = False, tail: int | None = None) -> Iterator[str]:
        """Lines of a pod's log without their ends; none if the container has no log, or is gone.

        Args:
            within_s: timeout in seconds, without a retry: the server queries the node, which may be gone.
        """

    def forward(self, pod: str, port: int) -> AbstractContextManager[socket.socket]:
        """Connection to a port of a pod, through the API server; one connection per `with`."""

    def may(self, verb: str, resource: str, *, group: str = "", subresource: str = "") -> bool | None:
        """SelfSubjectAccessReview in this namespace; None if even that may not be requested."""

    def version(self) -> str:
        """Version of the server, as "v1.34.1"."""

    def raw(self, path: str) -> Any:
        """GET of any path, decoded JSON: storage classes, nodes, API groups."""


def in_context(api: Api, command: str) -> str:
    """A printed command whose kubectl names the cluster of `api`: the user's own may have another context."""
    if api.context == IN_CLUSTER:
        return command
    return re.sub(r"\bkubectl(?= (?!--context))", lambda _: f"kubectl --context {shlex.quote(api.context)}", command)


def kubectl(api: Api, *, namespaced: bool = True) -> str:
    """Beginning of a printed kubectl command, for the cluster and namespace of `api`."""
    context = "" if api.context == IN_CLUSTER else f" --context {shlex.quote(api.context)}"
    return f"kubectl{context} -n {api.namespace}" if namespaced else f"kubectl{context}"
