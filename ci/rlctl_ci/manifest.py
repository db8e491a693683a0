"""The objects of the service on a cluster, from templates/kubernetes/ci.yaml.j2."""

from __future__ import annotations

from rlctl.render.engine import environment, render

TEMPLATE = "kubernetes/ci.yaml.j2"


def manifest(*, namespace: str, image: str, host: str, name: str = "rlctl-ci", size: str = "20Gi") -> str:
    """One YAML text.

    Args:
        namespace: that of the runs which it redeploys.
        image: holds rlctl with its extras ci and kubernetes, and git; by digest.
        host: a name of `hosts:` in ci.yaml; probes say it.
        name: of all objects, and of the ConfigMap and the Secret that somebody makes.
        size: of the disk for database, logs and repositories.
    """
    labels = {"app.kubernetes.io/name": "rlctl-ci", "app.kubernetes.io/instance": name}
    values = {
        "namespace": namespace, "image": image, "host": host, "name": name, "size": size, "labels": labels,
        "config": f"{name}-config", "secret": f"{name}-secrets",
    }  # fmt: skip
    return render(environment("yaml"), TEMPLATE, values)
