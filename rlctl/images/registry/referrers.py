"""Artifacts beside an image in a registry: they refer to it, and are tagged with the image's tag and a suffix.

OCI 1.1 registries list them among the image's referrers; any other still has the tag.
"""

from __future__ import annotations

import io
import json
import tarfile
import zlib
from collections.abc import Mapping
from typing import Any, Final

from rlctl.image_names import Reference
from rlctl.images.code import BASE_LABEL
from rlctl.images.registry.client import Registry
from rlctl.images.sbom import FILE, KIND, component

SUBJECT: Final = "dev.rlctl.subject"
"""Annotation: the image by digest, for registries without referrers too."""
SBOM: Final = ".sbom"
BASE_NAME: Final = "org.opencontainers.image.base.name"
BASE_DIGEST: Final = "org.opencontainers.image.base.digest"
_VERSION: Final = "org.opencontainers.image.version"
_KIND: Final = "application/vnd.oci.image.manifest.v1+json"
_EMPTY: Final = b"{}"
_MAX_LAYER: Final = 1 << 20
"""Bytes of a layer that may hold the list of packages (SBOM), at most: it has next to nothing else in it."""
_MAX_UNPACKED: Final = 16 << 20


def attach(
    to: Registry, image: Reference, digest: str, content: bytes, kind: str, ending: str, notes: Mapping[str, str]
) -> Reference:
    """Put an artifact beside an image, unless one is there.

    Args:
        to: registry to write to.
        image: image by tag.
        digest: digest of the image.
        content: the artifact.
        kind: its media type.
        ending: suffix of its tag.
        notes: annotations, for people who look at a registry and not into the artifact.

    Returns:
        Its name, by tag.

    Raises:
        BackendUnreachable: the registry does not answer, or refuses.
    """
    where = Reference(image.registry, image.repository, f"{image.tag}{ending}")
    subject = image.by_digest(digest)
    there = to.document(where)
    if there is not None and (json.loads(there[0]).get("annotations") or {}).get(SUBJECT) == str(subject):
        return where
    found = to.document(subject)
    about = {} if found is None else {"subject": _descriptor(found[1].partition(";")[0], digest, len(found[0]))}
    manifest = {
        "schemaVersion": 2,
        "mediaType": _KIND,
        "artifactType": kind,
        "config": _descriptor("application/vnd.oci.empty.v1+json", to.send(where, _EMPTY), len(_EMPTY)),
        "layers": [_descriptor(kind, to.send(where, content), len(content))],
        "annotations": {**notes, SUBJECT: str(subject)},
        **about,
    }
    to.put(where, json.dumps(manifest, sort_keys=True).encode(), _KIND)
    return where


def sbom(to: Registry, image: Reference, digest: str) -> Reference | None:
    """Store the list of packages (SBOM) that a build has left in its image beside the image; None if it has none.

    Args:
        to: registry of the image, read and written.
        image: image by tag.
        digest: digest of the image.

    Raises:
        BackendUnreachable: the registry does not answer, or refuses.
    """
    found = _manifest(to, image.by_digest(digest))
    listed = None if found is None else _listed(to, image, found)
    if found is None or listed is None:
        return None
    config = to.document(image, found["config"]["digest"], blob=True)
    labels = {} if config is None else json.loads(config[0]).get("config", {}).get("Labels") or {}
    own = [component("application", "rlctl", labels[_VERSION], "")] if labels.get(_VERSION) else []
    name = f"{image.registry}/{image.repository}"
    about = component("container", name, digest, "")
    about["properties"] = [
        {"name": key, "value": str(labels[key])} for key in (BASE_NAME, BASE_DIGEST, BASE_LABEL) if key in labels
    ]
    made = {**listed, "metadata": {"component": about}, "components": [*own, *listed["components"]]}
    content = json.dumps(made, indent=1, sort_keys=True).encode()
    return attach(to, image, digest, content, KIND, SBOM, {})


def _manifest(to: Registry, image: Reference) -> dict[str, Any] | None:
    """Manifest of an image; of an index, as some builders push, that of its first image."""
    found = to.document(image)
    manifest: dict[str, Any] | None = None if found is None else json.loads(found[0])
    for one in (manifest or {}).get("manifests") or ():
        if (one.get("platform") or {}).get("os") != "unknown":  # unknown: an artifact of the builder itself
            return _manifest(to, image.by_digest(one["digest"]))
    return manifest


def _listed(to: Registry, image: Reference, manifest: Mapping[str, Any]) -> dict[str, Any] | None:
    """The list in the newest layer that has one. An image may hold anything: every read is bounded."""
    for layer in reversed(manifest.get("layers") or ()):
        if not 0 < int(layer.get("size") or 0) <= _MAX_LAYER:
            continue
        blob = to.document(image, layer["digest"], blob=True)
        try:
            raw = b"" if blob is None else zlib.decompressobj(wbits=47).decompress(blob[0], _MAX_UNPACKED)
            with tarfile.open(fileobj=io.BytesIO(raw), mode="r:") as tar:
                for member in tar:
                    # a sparse file declares its own length, and is read as that many zeros
                    if member.name.lstrip("./") == FILE and member.isreg() and member.size <= _MAX_UNPACKED:
                        content = tar.extractfile(member)
                        found = json.loads(content.read()) if content is not None else None
                        good = isinstance(found, dict) and isinstance(found.get("components"), list)
                        return found if good else None
        except (tarfile.TarError, zlib.error, ValueError, RecursionError):
            continue
    return None


def _descriptor(kind: str, digest: str, size: int) -> dict[str, Any]:
    return {"mediaType": kind, "digest": digest, "size": size}
