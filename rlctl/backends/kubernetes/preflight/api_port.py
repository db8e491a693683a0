"""Check whether managers reach the API server: their NetworkPolicy allows two ports, a cluster may use another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from rlctl.backends.base import Check
from rlctl.backends.kubernetes.api.interface import Api, ApiError

ALLOWED: Final = (443, 6443)
"""Ports in templates/kubernetes/networkpolicy.yaml.j2; policies see the port behind the Service `kubernetes`."""
SLICES: Final = (
    "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
    "?labelSelector=kubernetes.io%2Fservice-name%3Dkubernetes"
)
_NEXT: Final = "templates/manager.networkpolicy.patch.yaml beside the spec: docs/kubernetes.md, Patches"


def checks(api: Api) -> Iterator[Check]:
    """One check, or none if only the address of the kubeconfig is known and its port is allowed."""
    try:
        slices = api.raw(SLICES).get("items") or ()
    except ApiError:  # in another namespace, which few users may read
        slices = ()
    ports = sorted({int(port["port"]) for each in slices for port in each.get("ports") or () if port.get("port")})
    others = [str(port) for port in ports if port not in ALLOWED]
    if others:
        text = f"the API server listens on port {', '.join(others)}, which the policy of managers does not allow: "
        yield Check("API port", "warning", f"{text}finished runs keep their pods until `rlctl down`", _NEXT)
    elif ports:
        yield Check("API port", "ok", f"the API server listens on port {', '.join(map(str, ports))}")
    elif (port := urlsplit(api.server).port or 443) not in ALLOWED:
        text = f"whether managers reach the API server: you reach it on port {port}, their policy allows 443 and 6443"
        yield Check("API port", "not checked", text, _NEXT)
