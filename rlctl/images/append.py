"""Append of a code layer to an image, in this process: without builder or daemon, and without executing any of it."""

from __future__ import annotations

import json
import re
import tarfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from rlctl.errors import UsageError
from rlctl.image_names import DIGEST, Reference
from rlctl.images.code import BASE_LABEL, FOLDER, UID, CodeArchive, Sink, tar_into
from rlctl.images.registry.client import Registry, sha256

_LAYERS: Final = {
    "application/vnd.oci.image.manifest.v1+json": "application/vnd.oci.image.layer.v1.tar+gzip",
    "application/vnd.docker.distribution.manifest.v2+json": "application/vnd.docker.image.rootfs.diff.tar.gzip",
}
_CONFIGS: Final = {
    "application/vnd.oci.image.manifest.v1+json": "application/vnd.oci.image.config.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json": "application/vnd.docker.container.image.v1+json",
}
EPOCH: Final = "1970-01-01T00:00:00Z"


@dataclass(frozen=True, slots=True)
class Base:
    """Base image for one platform, with what is needed to append a layer."""

    reference: Reference  # by digest, and with the tag by which it was named
    kind: str
    manifest: Mapping[str, Any]
    config: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Layer:
    """Layer of code as an image holds it."""

    file: Path  # gzip
    digest: str  # of the file
    size: int  # of the file, bytes
    diff_id: str  # digest of the uncompressed tar


@dataclass(frozen=True, slots=True)
class Appended:
    """Image with an appended layer, not pushed yet."""

    base: Base
    layer: Layer
    config: bytes
    manifest: bytes


def read_base(registry: Registry, image: Reference, platform: str, check: Callable[[Reference], object]) -> Base:
    """Read a base image: of an index the image for `platform`; of an image with code, the base below it.

    Args:
        image: image to read; the base below it may be in another registry.
        platform: for example linux/amd64.
        check: raises if an image may not be requested.

    Raises:
        UsageError: it does not exist, is not for this platform, or no layer can be appended to it.
        BackendUnreachable: the registry does not answer.
    """
    check(image)
    found = registry.document(image)
    if found is None:
        raise UsageError(f"there is no {image}", hint="push it, or name another", objects=(str(image),))
    body, kind = found
    manifest = json.loads(body)
    kind = manifest.get("mediaType") or kind.partition(";")[0]
    if "manifests" in manifest:
        system, _, machine = platform.partition("/")
        for one in manifest["manifests"]:
            about = one.get("platform") or {}
            if (about.get("os"), about.get("architecture")) == (system, machine):
                return read_base(registry, replace(image, digest=one["digest"]), platform, check)
        raise UsageError(f"{image} is not for {platform}", hint="platform: in ci.yaml", objects=(str(image),))
    digests = [str(one.get("digest")) for one in (manifest.get("config") or {}, *(manifest.get("layers") or ()))]
    if strange := next((one for one in digests if not re.fullmatch(DIGEST, one)), None):
        raise UsageError(f"{image} names {strange!r}, which is no digest", objects=(str(image),))
    if kind not in _LAYERS:
        raise UsageError(f"{image} is {kind}, which nothing can be laid over", objects=(str(image),))
    read = registry.document(image, manifest["config"]["digest"], blob=True)
    if read is None:
        raise UsageError(f"{image} has no configuration", objects=(str(image),))
    config = json.loads(read[0])
    below = (config.get("config", {}).get("Labels") or {}).get(BASE_LABEL)
    if below:
        return read_base(registry, Reference.parse(below), platform, check)
    return Base(replace(image, digest=sha256(body)), kind, manifest, config)


def append(base: Base, layer: Layer, labels: Mapping[str, str]) -> Appended:
    """Append a layer to an image; the same code over the same base gives the same image, byte for byte."""
    config = json.loads(json.dumps(base.config))
    inner = config.setdefault("config", {})
    inner["Env"] = [
        *(one for one in inner.get("Env") or () if not one.startswith("PYTHONPATH=")),
        f"PYTHONPATH={FOLDER}",
    ]
    inner["User"] = f"{UID}:{UID}"
    inner["Labels"] = {**(inner.get("Labels") or {}), BASE_LABEL: str(base.reference), **labels}
    config["created"] = EPOCH
    config["rootfs"]["diff_ids"] = [*config["rootfs"]["diff_ids"], layer.diff_id]
    config["history"] = [*(config.get("history") or ()), {"created": EPOCH, "created_by": "rlctl append"}]
    configured = _json(config)
    manifest = {
        "schemaVersion": 2,
        "mediaType": base.kind,
        "config": {"mediaType": _CONFIGS[base.kind], "digest": sha256(configured), "size": len(configured)},
        "layers": [
            *base.manifest["layers"],
            {"mediaType": _LAYERS[base.kind], "digest": layer.digest, "size": layer.size},
        ],
    }
    return Appended(base, layer, configured, _json(manifest))


def push(appended: Appended, to: Registry, image: Reference) -> str:
    """Write the blobs that the registry lacks, and the manifest last; returns its digest.

    Raises:
        BackendUnreachable: the registry does not answer, or refuses.
    """
    for one in appended.base.manifest["layers"]:
        to.copy(image, one["digest"], appended.base.reference)
    to.send_file(image, appended.layer.file, appended.layer.digest)
    to.send(image, appended.config)
    return to.put(image, appended.manifest, appended.base.kind)


def layer(code: CodeArchive, into: Path) -> Layer:
    """Pack the code as a layer, with its files below FOLDER; it is streamed, not held in memory.

    Args:
        code: code to pack.
        into: path of the layer's file, which is written.

    Raises:
        UsageError: the code needs packages, which only a builder installs.
    """
    if code.requirements is not None:
        raise UsageError(
            "`code.requirements` is set, and append executes nothing, so it installs nothing",
            hint="builder: buildah, or put the packages into the base image",
        )
    # level 6 and a header without a time: the bytes depend on the content (and on the release of zlib) alone
    packer = zlib.compressobj(6, wbits=31)
    with into.open("wb") as file:
        packed = Sink(file.write)
        raw = Sink(lambda part: packed.write(packer.compress(part)))
        with tarfile.open(code.archive, "r:") as source, tar_into(raw) as target:
            root = tarfile.TarInfo(FOLDER.strip("/"))
            root.type, root.mode, root.uid, root.gid = tarfile.DIRTYPE, 0o755, UID, UID
            target.addfile(root)
            for member in source:
                member.name = f"{FOLDER.strip('/')}/{member.name}"
                member.pax_headers = {}  # a long or non-ASCII name is there too, and would take precedence
                target.addfile(member, source.extractfile(member) if member.isreg() else None)
        packed.write(packer.flush())
    return Layer(into, f"sha256:{packed.digest}", packed.tell(), f"sha256:{raw.digest}")


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
