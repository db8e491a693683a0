"""Kubernetes objects of the service, from templates/kubernetes/ci.yaml.j2, with the rights that its runs need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from rlctl.errors import UsageError
from rlctl.image_names import Reference
from rlctl.render.engine import environment, render
from rlctl.spec import names
from rlctl.spec.units import mebibytes
from rlctl_ci.builders.bases import configured
from rlctl_ci.builders.child import READING_MIB
from rlctl_ci.config.settings import Config, Project
from rlctl_ci.deploy.memory import RENDERING_MIB

TEMPLATE: Final = "kubernetes/ci.yaml.j2"
MOST_ACTORS: Final = 100_000
"""Actors of one run, at most: the limit of its spec."""
_NAME: Final = "rlctl-ci"
"""Name of all objects; the ConfigMap and the Secret that a person makes begin with it."""
_SERVICE_MIB: Final = 512
"""Memory of the service itself: the bodies of hooks are half of it."""
_PROCESS_MIB: Final = 256
"""Memory of a build beside what its largest program may ask for."""
_API_SERVER: Final = (443, 6443)
"""Ports of the API server: network policies see them after a Service's address has been translated."""


def manifest(
    config: Config, *, namespace: str, image: str, host: str, own: str | None = None,
    size: str = "20Gi", storage_class: str | None = None, pull_secrets: Sequence[str] = (),
) -> str:  # fmt: skip
    """Manifest of the service: one YAML text.

    Args:
        config: of the service; runs in another namespace, or not on a cluster, are left out.
        namespace: namespace of the runs that it redeploys.
        image: image, by digest, that holds rlctl with its extras ci and kubernetes, and git.
        host: a name of `hosts:`, which probes send as `Host:`.
        own: namespace of the service; None: that of the runs.
        size: size of the disk for database, logs and repositories.
        storage_class: storage class of that disk; None: the default of the cluster.
        pull_secrets: Secrets with the logins with which nodes pull the image.

    Raises:
        UsageError: `image` has no digest, `size` is invalid, or a pod with this configuration would not be reached, or
            would redeploy nothing.
    """
    if not Reference.parse(image).digest:
        raise UsageError(
            f"--image {image}: needs a digest, as what a tag is may change",
            hint="rlctl image push --registry REGISTRY --only ci prints it",
        )
    try:
        mebibytes(size)
    except ValueError as error:
        raise UsageError(f"--size: {error}") from error
    if config.loopback:
        raise UsageError(f"listen: {config.listen}: no client reaches a pod there", hint="listen: 0.0.0.0:8710")
    if host not in config.hosts:
        raise UsageError(f"hosts: has no {host}", hint=f"--host {' or '.join(config.hosts) or '; hosts: is empty'}")
    on_cluster = [one for one in config.projects.values() if one.target == "kubernetes"]
    own = own or namespace
    here = [one for one in on_cluster if (one.namespace or own) == namespace]
    if not here:
        raise UsageError(
            f"no project has target: kubernetes and a run in namespace {namespace}",
            hint=f"-n {' or '.join(sorted({one.namespace for one in on_cluster if one.namespace})) or 'NAME'}",
        )
    labels = {"app.kubernetes.io/name": _NAME, "app.kubernetes.io/instance": _NAME}
    claim = {"accessModes": ["ReadWriteOncePod"], "resources": {"requests": {"storage": size}}}
    values = {
        "namespace": namespace, "own": own, "image": image, "host": host, "name": _NAME, "labels": labels,
        "claim": claim if storage_class is None else {**claim, "storageClassName": storage_class},
        "pull_secrets": [{"name": secret} for secret in pull_secrets],
        "config": f"{_NAME}-config", "secret": f"{_NAME}-secrets", "port": config.port,
        "ports": [{"port": port} for port in sorted({*_API_SERVER, *(port for one in here for port in _ports(one))})],
        "of": _objects(sorted({one.run for one in here})), "memory": f"{memory_mib(config)}Mi",
    }  # fmt: skip
    return render(environment("yaml"), TEMPLATE, values)


def memory_mib(config: Config) -> int:
    """Memory that the service and all its builds need at once, whatever a commit asks for: beyond it a kernel kills."""
    largest = max(RENDERING_MIB, READING_MIB, *(one.git_mib for one in config.projects.values()))
    return _SERVICE_MIB + config.builds * (largest + _PROCESS_MIB)


def _objects(runs: Iterable[str]) -> dict[str, list[str]]:
    """Kind -> names of the objects of these runs; no ConfigMaps, because their names depend on their content."""
    found: dict[str, list[str]] = {}
    for run in runs:
        pages = [names.workload_name(run, page) for page in ("tensorboard", "status")]
        proxies = [names.workload_name(run, f"{page}-proxy") for page in ("tensorboard", "status")]
        stateful = [names.workload_name(run, role) for role in ("manager", "modelpool", "replay", "learner")]
        evaluator, actor, replay = (names.workload_name(run, role) for role in ("evaluator", "actor", "replay"))
        shards = [names.workload_name(run, "actor", shard) for shard in range(names.shards(MOST_ACTORS))]
        kinds: dict[str, list[str]] = {
            "secrets": [names.keys_name(run, key_class) for key_class in ("core", "actor")],
            "managers": [stateful[0]],
            "manager_pods": [f"{stateful[0]}-0"],
            "statefulsets": stateful,
            "deployments": [evaluator, pages[0], *proxies, *shards],
            "services": [*stateful, *pages, *proxies],
            "claims": [names.volume_name(run)],
            "policies": [f"{run}-deny", *stateful, actor, evaluator, *(f"{page}-from-proxy" for page in pages),
                         *proxies, *(f"{replay}.{path}" for path in ("to-manager", "from-learner", "from-actor"))],
            "locks": [names.lock_name(run)],
        }  # fmt: skip
        for kind, called in kinds.items():
            found.setdefault(kind, []).extend(called)
    return found


def _ports(project: Project) -> Iterator[int]:
    """Ports of a project's forge and registries, outside the cluster."""
    usual: dict[str, Any] = {"https": 443, "ssh": 22}
    parts = urlsplit(project.repository)
    if parts.scheme in usual:
        yield parts.port or usual[parts.scheme]
    for registry in configured(project):
        yield urlsplit(f"//{registry}").port or 443
