"""Causes of an image that cannot be pulled."""

from __future__ import annotations

import re
from typing import NamedTuple

from rlctl.backends.kubernetes.api.interface import Object
from rlctl.backends.kubernetes.diagnose.causes.base import (
    Cause,
    RelatedObjects,
    describe,
    evidence,
    name_of,
    namespaced,
)
from rlctl.image_names import HUB, LOCAL, Reference, loopback

REASONS = (
    "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError",
    "RegistryUnavailable", "SignatureValidationFailed",
)  # fmt: skip


class _Sort(NamedTuple):
    kind: str
    signs: str  # pattern over the message in lower case
    text: str  # {image}, {host}
    permanent: bool
    next: str  # {ns}, {host}, {describe}


# in this order: a registry that limits us also says "denied", one behind a broken proxy also says "not found"
_SORTS = (
    _Sort(
        "image-rate-limited", r"toomanyrequests|too many requests|rate limit|\b429\b",
        "the registry {host} limits how often images are pulled; the cluster goes on trying", False,
        "rlctl image push --registry REGISTRY  (to a registry of your own, and name that one under images:)",
    ),
    _Sort(
        "image-no-space", r"no space left on device|disk quota exceeded",
        "the node has no room left on its disk for image {image}", False,
        "{describe}  (names the node; its images and logs fill the disk)",
    ),
    _Sort(
        "image-tls", r"x509|certificate|gave http response to https client|tls: |tls handshake failure",
        "the nodes do not trust the registry {host} (TLS)", True,
        "{describe}  (the node's container runtime needs the registry's certificate)",
    ),
    _Sort(
        "image-dns", r"no such host|dial tcp: lookup|server misbehaving|name resolution|service not known",
        "the nodes cannot look up the registry {host} (DNS)", False,
        "rlctl image push --registry REGISTRY  (check the registry's name under images:)",
    ),
    _Sort(
        "image-denied", r"does not exist or may require",
        "image {image} does not exist, or the registry {host} wants a login", True,
        "rlctl image push --registry REGISTRY  (or imagePullSecrets by a patch, when the registry is private)",
    ),
    _Sort(
        "image-denied",
        r"unauthorized|denied|forbidden|authentication required|authorization failed|no basic auth|\b40[13]\b",
        "the registry {host} does not let the cluster pull image {image}", True,
        "kubectl{ns} create secret docker-registry pull --docker-server={host}  (and a patch with imagePullSecrets)",
    ),
    _Sort(
        "image-platform", r"no match for platform|no matching manifest|does not match the (?:specified|detected) plat",
        "image {image} does not exist for the processor of this node", True, "rlctl image build  (for that platform)",
    ),
    _Sort(
        "image-not-found", r"not found|manifest unknown|name unknown|no such (?:image|manifest)|does not exist|\b404\b",
        "image {image} does not exist in the registry", True,
        "rlctl image push --registry REGISTRY  (prints the digest that belongs under images:)",
    ),
    _Sort(
        "image-broken",
        r"digest mismatch|unexpected commit digest|failed to extract|failed commit on ref|invalid (?:tar|checksum)",
        "image {image} arrives broken", False, "rlctl image push --registry REGISTRY",
    ),
    _Sort(
        "image-unreachable",
        r"refused|i/o timeout|deadline exceeded|timed? ?out|unreachable|connection reset|\beof\b|\b50[0-9]\b",
        "the nodes cannot reach the registry {host}; the cluster goes on trying", False, "{describe}",
    ),
)  # fmt: skip


def cause(pod: Object, status: Object, spec: Object, related: RelatedObjects) -> Cause | None:
    """Cause for which the image of a waiting container is missing; None when it waits for something else."""
    waiting = (status.get("state") or {}).get("waiting") or {}
    reason = str(waiting.get("reason", ""))
    if reason not in REASONS:
        return None
    image = str(spec.get("image") or status.get("image") or "?")
    message = _message(pod, image, str(waiting.get("message", "")), related)
    said = evidence(reason, message)
    registry, repository = _parts(image)
    words = {"image": image, "host": registry, "ns": namespaced(pod), "describe": describe(pod)}
    if reason == "InvalidImageName" or "invalid reference format" in message:
        return Cause(
            "image-invalid", f"{image!r} is no image name", "failed", said,
            "rlctl image push --registry REGISTRY  (prints the name that belongs under images:)", permanent=True,
        )  # fmt: skip
    if reason == "ErrImageNeverPull":
        return Cause(
            "image-never-pulled", f"image {image} is not on the node, and imagePullPolicy Never forbids to fetch it",
            "failed", said, describe(pod), permanent=True,
        )  # fmt: skip
    if reason == "SignatureValidationFailed":
        text = f"the cluster refuses image {image}: its signature is not valid"
        return Cause("image-signature", text, "failed", said, describe(pod), permanent=True)
    if _not_mirrored(registry, message):
        text = f"image {image} does not exist in the registry that the nodes use for {registry}"
        return Cause("image-not-found", text, "failed", said, "rlctl image push --registry REGISTRY", permanent=True)
    low = message.lower()
    for part in (image, registry, repository):  # a name such as team/404-denied must not match
        low = low.replace(part.lower(), "…")
    for sort in _SORTS:
        if re.search(sort.signs, low):
            return Cause(
                sort.kind, sort.text.format(**words), "failed" if sort.permanent else "backoff", said,
                sort.next.format(**words), permanent=sort.permanent,
            )  # fmt: skip
    return Cause("image", f"image {image} cannot be pulled", "backoff", said, describe(pod))


def _message(pod: Object, image: str, message: str, related: RelatedObjects) -> str:
    """Message of the registry: while the kubelet waits between two attempts, an older one has it in an event only."""
    if message and not re.fullmatch(r"Back-off pulling image \S+", message):
        return message
    for event in related.of("Pod", name_of(pod), "Failed", "InspectFailed"):
        said = str(event.get("message", ""))
        if image in said and not said.startswith("Error: "):
            return said
    return message


def _not_mirrored(registry: str, message: str) -> bool:
    """Whether an image named after a registry on the node itself is missing in its mirror. Mirrors come first, and
    one without the image is skipped silently; the error reported is that nothing listens under the name itself.
    """
    where = re.escape(registry)
    return loopback(registry) and re.search(rf"https?://{where}/.*connection refused", message) is not None


def _parts(image: str) -> tuple[str, str]:
    """Registry and repository of an image. A patch may have a name that is invalid here (IPv6 registry): then
    the part before the first slash is the registry if it looks like one.
    """
    named = Reference.try_parse(image)
    if named is not None:
        return named.registry or HUB, named.repository
    first, slash, rest = image.partition("/")
    known = slash and ("." in first or ":" in first or first == LOCAL)
    path = (rest if known else image).partition("@")[0]
    return first if known else HUB, path.rpartition(":")[0] or path


def pulling(pod: Object, related: RelatedObjects) -> tuple[str, Object] | None:
    """Image that is being pulled, and the event that says so; None when none is."""
    for event in related.of("Pod", name_of(pod), "Pulling", "Pulled", "Created", "Started"):
        if event.get("reason") != "Pulling":
            return None
        found = re.search(r'"([^"]+)"', str(event.get("message", "")))
        return (found[1] if found else "?"), event
    return None
