"""The objects of the service on a cluster, from templates/kubernetes/ci.yaml.j2, with the rights that its runs need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final
from urllib.parse import urlsplit

from rlctl.errors import UsageError
from rlctl.render.engine import environment, render
from rlctl.spec import names
from rlctl_ci.builders.bases import configured
from rlctl_ci.config.settings import Config, Project

TEMPLATE: Final = "kubernetes/ci.yaml.j2"
MOST_ACTORS: Final = 100_000
"""Of a run, by its spec."""
_API_SERVER: Final = (443, 6443)
"""Ports behind which it is, once a Service's address has become its own."""


def manifest(
    config: Config, *, namespace: str, image: str, host: str, name: str = "rlctl-ci", size: str = "20Gi"
) -> str:  # fmt: skip
    """One YAML text.

    Args:
        config: of the service; runs of another namespace, or of no cluster, are not its concern.
        namespace: that of the runs which it redeploys.
        image: holds rlctl with its extras ci and kubernetes, and git; by digest.
        host: a name of `hosts:`; probes say it.
        name: of all objects, and of the ConfigMap and the Secret that a person makes.
        size: of the disk for database, logs and repositories.

    Raises:
        UsageError: a pod with this configuration would not be reached, or would redeploy nothing.
    """
    if config.loopback:
        raise UsageError(f"listen: {config.listen}: no client reaches a pod there", hint="listen: 0.0.0.0:8710")
    if host not in config.hosts:
        raise UsageError(f"hosts: has no {host}", hint=f"--host {' or '.join(config.hosts) or '; hosts: is empty'}")
    on_cluster = [one for one in config.projects.values() if one.target == "kubernetes"]
    here = [one for one in on_cluster if one.namespace in (None, namespace)]
    if not here:
        raise UsageError(
            f"no project has target: kubernetes and a run in namespace {namespace}",
            hint=f"-n {' or '.join(sorted({one.namespace for one in on_cluster if one.namespace})) or 'NAME'}",
        )
    labels = {"app.kubernetes.io/name": "rlctl-ci", "app.kubernetes.io/instance": name}
    values = {
        "namespace": namespace, "image": image, "host": host, "name": name, "size": size, "labels": labels,
        "config": f"{name}-config", "secret": f"{name}-secrets", "port": config.port,
        "ports": [{"port": port} for port in sorted({*_API_SERVER, *(port for one in here for port in _ports(one))})],
        "of": _objects(sorted({one.run for one in here})),
    }  # fmt: skip
    return render(environment("yaml"), TEMPLATE, values)


def _objects(runs: Iterable[str]) -> dict[str, list[str]]:
    """Names of the objects of these runs, kind by kind; those of a ConfigMap depend on its content."""
    found: dict[str, list[str]] = {}
    for run in runs:
        pages = [names.workload_name(run, page) for page in ("tensorboard", "status")]
        proxies = [names.workload_name(run, f"proxy-{page}") for page in ("tensorboard", "status")]
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
                         *proxies, *(f"{replay}-{role}" for role in ("manager", "learner", "actor"))],
            "locks": [names.lock_name(run)],
        }  # fmt: skip
        for kind, called in kinds.items():
            found.setdefault(kind, []).extend(called)
    return found


def _ports(project: Project) -> Iterator[int]:
    """Ports of its forge and its registries, outside the cluster."""
    usual: dict[str, Any] = {"https": 443, "ssh": 22}
    parts = urlsplit(project.repository)
    if parts.scheme in usual:
        yield parts.port or usual[parts.scheme]
    for registry in configured(project):
        yield urlsplit(f"//{registry}").port or 443
