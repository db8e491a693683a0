"""Writes the objects of every variation below a folder, as `up` would send them to a namespace: for scanners.

python -m tests.render.write FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

from rlctl.render.encode import to_document
from rlctl.render.kubernetes import admin
from rlctl_ci.config.manifest import manifest
from rlctl_ci.config.settings import Config
from tests.render.cluster import VARIATIONS, rendered, spec_of

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
    for document in admin("team", "ann"):
        path = folder / "admin" / document.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(document.text)
    (folder / "ci.yaml").write_text(manifest(SERVICE, namespace="team", image=IMAGE, host="ci.example.org"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
