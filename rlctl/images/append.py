"""One layer of code over an image, made here: no builder, no daemon, and nothing of either is executed."""

from __future__ import annotations

import gzip
import io
import json
import re
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rlctl.errors import UsageError
from rlctl.images.code import BASE_LABEL, FOLDER, UID, Code
from rlctl.images.reference import Reference
from rlctl.images.upload import Uploader, sha256

_LAYERS: Final = {
    "application/vnd.oci.image.manifest.v1+json": "application/vnd.oci.image.layer.v1.tar+gzip",
    "application/vnd.docker.distribution.manifest.v2+json": "application/vnd.docker.image.rootfs.diff.tar.gzip",
}
_CONFIGS: Final = {
    "application/vnd.oci.image.manifest.v1+json": "application/vnd.oci.image.config.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json": "application/vnd.docker.container.image.v1+json",
}
_DIGEST: Final = re.compile("sha256:[0-9a-f]{64}")
EPOCH: Final = "1970-01-01T00:00:00Z"


@dataclass(frozen=True, slots=True)
class Base:
    """An image of one kind of machine, with what is needed to lay something over it."""

    reference: Reference  # by digest
    kind: str
    manifest: Mapping[str, Any]
    config: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Appended:
    """An image that is not pushed yet."""

    base: Base
    layer: bytes  # gzip
    config: bytes
    manifest: bytes


def read_base(source: Callable[[Reference], Uploader], image: Reference, platform: str) -> Base:
    """The image below; where the name is a list, that of one kind of machine; never one that holds code itself.

    Args:
        source: the registry of an image; raises where it may not be asked.
        image: what is named; what that was laid over may be of another registry.
        platform: as in linux/amd64.

    Raises:
        UsageError: it is not there, or not for this kind of machine.
        BackendUnreachable: the registry does not answer.
    """
    registry = source(image)
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
                return read_base(source, image.by_digest(one["digest"]), platform)
        raise UsageError(f"{image} is not for {platform}", hint="platform: in ci.yaml", objects=(str(image),))
    digests = [str(one.get("digest")) for one in (manifest.get("config") or {}, *(manifest.get("layers") or ()))]
    if strange := next((one for one in digests if not _DIGEST.fullmatch(one)), None):
        raise UsageError(f"{image} names {strange!r}, which is no digest", objects=(str(image),))
    if kind not in _LAYERS:
        raise UsageError(f"{image} is {kind}, which nothing can be laid over", objects=(str(image),))
    read = registry.document(image, manifest["config"]["digest"], blob=True)
    if read is None:
        raise UsageError(f"{image} has no configuration", objects=(str(image),))
    config = json.loads(read[0])
    below = (config.get("config", {}).get("Labels") or {}).get(BASE_LABEL)
    if below:
        return read_base(source, Reference.parse(below), platform)
    return Base(image.by_digest(sha256(body)), kind, manifest, config)


def append(base: Base, code: Code, labels: Mapping[str, str]) -> Appended:
    """The image with the code in it; the same code over the same base is the same image, byte for byte.

    Raises:
        UsageError: the code needs packages, which only a builder installs.
    """
    if code.requirements is not None:
        raise UsageError(
            "`code.requirements` is set, and append executes nothing, so it installs nothing",
            hint="builder: buildah, or put the packages into the base image",
        )
    tar = layer(code)
    # level 6 and no time: the bytes depend on the content (and on the release of zlib) alone
    packed = gzip.compress(tar, compresslevel=6, mtime=0)
    config = json.loads(json.dumps(base.config))
    inner = config.setdefault("config", {})
    inner["Env"] = [
        *(one for one in inner.get("Env") or () if not one.startswith("PYTHONPATH=")),
        f"PYTHONPATH={FOLDER}",
    ]
    inner["User"] = f"{UID}:{UID}"
    inner["Labels"] = {**(inner.get("Labels") or {}), BASE_LABEL: str(base.reference), **labels}
    config["created"] = EPOCH
    config["rootfs"]["diff_ids"] = [*config["rootfs"]["diff_ids"], sha256(tar)]
    config["history"] = [*(config.get("history") or ()), {"created": EPOCH, "created_by": "rlctl append"}]
    configured = _json(config)
    manifest = {
        "schemaVersion": 2,
        "mediaType": base.kind,
        "config": {"mediaType": _CONFIGS[base.kind], "digest": sha256(configured), "size": len(configured)},
        "layers": [
            *base.manifest["layers"],
            {"mediaType": _LAYERS[base.kind], "digest": sha256(packed), "size": len(packed)},
        ],
    }
    return Appended(base, packed, configured, _json(manifest))


def push(appended: Appended, to: Uploader, image: Reference, source: Uploader) -> str:
    """Everything that the registry lacks, the manifest last; returns its digest.

    Raises:
        BackendUnreachable: the registry does not answer, or refuses.
    """
    for one in appended.base.manifest["layers"]:
        to.copy(image, one["digest"], appended.base.reference, source)
    to.send(image, appended.layer)
    to.send(image, appended.config)
    return to.put(image, appended.manifest, appended.base.kind)


def layer(code: Code) -> bytes:
    """The tar of the code with its files below FOLDER."""
    made = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(code.archive)) as source,
        tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as target,
    ):
        root = tarfile.TarInfo(FOLDER.strip("/"))
        root.type, root.mode, root.uid, root.gid = tarfile.DIRTYPE, 0o755, UID, UID
        target.addfile(root)
        for member in source:
            member.name = f"{FOLDER.strip('/')}/{member.name}"
            target.addfile(member, source.extractfile(member) if member.isreg() else None)
    return made.getvalue()


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
