"""Writes the objects of every variation below a folder, as `up` would send them to a namespace: for scanners.

python -m tests.render.write FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

from rlctl.backends.kubernetes.access.reader import pod_and_policy
from rlctl.backends.kubernetes.run_state.desired_state import of_plan
from rlctl.plan import make
from rlctl.render.encode import to_document
from rlctl.render.kubernetes import admin
from rlctl_ci.config.manifest import manifest
from rlctl_ci.config.settings import Config
from tests.render.cluster import UID, VARIATIONS, rendered, spec_of

IMAGE = "registry.example.org/team/rlctl-ci@sha256:" + "0" * 64
SERVICE = Config.model_validate(
    {
        "listen": "0.0.0.0:8710",
        "hosts": ["ci.example.org"],
        "behind_tls": True,
        "projects": {
            "pong": {
                "forge": "github", "repository": "https://github.com/team/pong.git", "secret_file": "/secret",
                "run": "pong", "target": "kubernetes", "registry": "registry.example.org/team",
            }
        },
    }
)  # fmt: skip


def main(folder: Path) -> None:
    for name, more in VARIATIONS.items():
        for document in rendered(spec_of(**more)):
            path = folder / name.replace(" ", "-") / document.name
            path.parent.mkdir(parents=True, exist_ok=True)
            found = yaml.safe_load(document.text)
            found["metadata"]["namespace"] = "team"
            path.write_text(to_document(found))
    for found in reader():
        path = folder / "reader" / f"{found['kind'].lower()}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(to_document(found))
    for document in admin("team", "ann"):
        path = folder / "admin" / document.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(document.text)
    (folder / "ci.yaml").write_text(manifest(SERVICE, namespace="team", image=IMAGE, host="ci.example.org"))


def reader() -> list[dict[str, Any]]:
    """The pod that reads the files of a run that is taken down, and its policy."""
    spec = spec_of()
    plan = make(spec, uid=UID, base=Path("/nowhere"))
    pod, policy = pod_and_policy(of_plan(plan, rendered(spec), {}), "pong-reader-0a1b2c3d") or ({}, {})
    unprobed = "it listens on its loopback alone, where no probe comes; whoever started it asks it"
    pod["metadata"]["annotations"] |= {
        "checkov.io/skip1": f"CKV_K8S_8={unprobed}", "checkov.io/skip2": f"CKV_K8S_9={unprobed}"
    }  # fmt: skip
    return [{**found, "metadata": {**found["metadata"], "namespace": "team"}} for found in (pod, policy)]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
