"""Sections for clusters alone: images, the claim of the volume, access to the pages. The rest are patches."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, WithJsonSchema

from rlctl.image_names import IMAGE, IMAGE_BY_DIGEST
from rlctl.spec.base import Model, Role, live, new_run, restart
from rlctl.spec.units import Memory
from rlctl.spec.words import show

OBJECT_NAME: Final = r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"
QUEUE_NAME: Final = r"^[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?$"
"""Pattern of a LocalQueue's name, which becomes the value of a label."""

Image = Annotated[str, Field(pattern=IMAGE, max_length=400)]
ImageByDigest = Annotated[str, Field(pattern=IMAGE_BY_DIGEST, max_length=400)]
ObjectName = Annotated[str, Field(pattern=OBJECT_NAME)]
QueueName = Annotated[str, Field(pattern=QUEUE_NAME)]

IMAGE_OF: Final[dict[Role, Literal["core", "actor", "learner"]]] = {
    "manager": "core",
    "modelpool": "core",
    "replay": "core",
    "actor": "actor",
    "evaluator": "actor",
    "learner": "learner",
    "inference": "learner",
}
"""Image that each role runs from. TensorBoard runs from core, because the other two may hold code of a commit."""
DEFAULT_SIZE: Final = "50Gi"


def network(value: str) -> str:
    """Canonical spelling of a range of addresses.

    Raises:
        ValueError: it is not one, or has bits beyond its prefix.
    """
    try:
        return str(ipaddress.ip_network(value))
    except ValueError:
        pass
    try:
        meant = ipaddress.ip_network(value, strict=False)
    except ValueError:
        raise ValueError(f"must be a range of addresses, as in 203.0.113.0/24, got {show(value)}") from None
    alone = f"{value.partition('/')[0]}/{meant.max_prefixlen}"
    raise ValueError(f"{show(value)} has bits beyond its prefix; write {meant} or {alone}")


Network = Annotated[
    str, AfterValidator(network), WithJsonSchema({"type": "string", "examples": ["203.0.113.0/24", "2001:db8::/32"]})
]


class Images(Model):
    """Images of the pods of a run: `name@sha256:...`, as `rlctl image push` prints it, or `name:tag`.

    `up` asks the registry once what a tag is, and records the digest: it holds until the tag is another, or --pull.
    """

    core: Annotated[Image | None, restart("manager", "modelpool", "replay", in_run_file=False)] = None
    """manager, modelpool, replay and TensorBoard; holds no torch, and no code of yours."""
    actor: Annotated[Image | None, restart("actor", "evaluator", in_run_file=False)] = None
    """actor and evaluator."""
    learner: Annotated[Image | None, restart("learner", "inference", in_run_file=False)] = None


class Storage(Model):
    """Storage of a run's data."""

    path: Annotated[str | None, Field(min_length=1), new_run()] = None
    """On one machine a folder, relative to the spec file; null: $XDG_STATE_HOME/rlctl."""
    claim: Annotated[ObjectName | None, new_run()] = None
    """On a cluster a ReadWriteMany claim that is there already; the run keeps to its own folder in it. null: the run
    gets a claim of its own, of this class and size."""
    class_: Annotated[ObjectName | None, Field(alias="class"), new_run()] = None
    """StorageClass of the run's own claim; it must offer ReadWriteMany. null: the default of the cluster."""
    size: Annotated[Memory, live()] = DEFAULT_SIZE
    """Size of the run's own claim. It can grow, where the class allows it, and never shrinks."""


class Proxy(Model):
    """An authenticating proxy of your choice before each page. Its arguments may name `$(UPSTREAM)`, the page."""

    image: Annotated[ImageByDigest, live()]
    args: Annotated[list[str], live()] = []
    secret: Annotated[ObjectName | None, live()] = None
    """A Secret of the namespace whose keys become files below /etc/proxy."""
    port: Annotated[int, Field(ge=1024, le=65_535), live()] = 8080
    """Where it listens; it runs without root, so not below 1024."""


class Kubernetes(Model):
    """Values for clusters alone; everything else about them belongs into patches of the templates."""

    expose: Annotated[Literal["clusterip", "loadbalancer"], live()] = "clusterip"
    """loadbalancer: TensorBoard and the status page get an address outside the cluster, behind `proxy`, for callers
    within `source_ranges`. clusterip: `rlctl open` forwards a port."""
    source_ranges: Annotated[list[Network], live()] = []
    proxy: Proxy | None = None
    gang: Annotated[Literal["none", "kueue"], restart("learner", in_run_file=False)] = "none"
    """kueue: the learners wait in `queue` until all of them can run."""
    queue: Annotated[QueueName | None, restart("learner", in_run_file=False)] = None
    """A LocalQueue of the namespace."""
