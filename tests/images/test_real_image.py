"""A real builder, a real registry: a small base, code over it, and nothing done twice.

Needs RLCTL_TEST_REGISTRY (host:port, plain HTTP) and buildah, podman or docker.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from rlctl.images.builders.choose import BUILDERS

REGISTRY = os.environ.get("RLCTL_TEST_REGISTRY", "")
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(not REGISTRY, reason="RLCTL_TEST_REGISTRY is not set"),
    pytest.mark.skipif(not any(shutil.which(name) for name in BUILDERS), reason="no builder of images is here"),
]
SPEC = 'run: lights\nenv: {id: "lights:Guess"}\ncode: {path: .}\n'


def rlctl_image(*arguments: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "rlctl", "image", *arguments, "--no-tls-verify", "-o", "json"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)["images"]


def test_code_is_one_small_layer_and_the_same_code_is_pushed_once(tmp_path: Path) -> None:
    repository = f"{REGISTRY}/test-{uuid.uuid4().hex[:8]}"
    base = tmp_path / "base"
    base.mkdir()
    (base / "Dockerfile").write_text("FROM scratch\nCOPY large /large\n")
    (base / "large").write_bytes(os.urandom(1 << 20))
    builder = next(name for name in BUILDERS if shutil.which(name))
    tag = f"{repository}/base:1"
    subprocess.run([builder, "build", "-t", tag, str(base)], check=True, capture_output=True, timeout=60)
    insecure = [] if builder == "docker" else ["--tls-verify=false"]
    subprocess.run([builder, "push", *insecure, tag], check=True, capture_output=True, timeout=60)

    project = tmp_path / "project"
    project.mkdir()
    spec = project / "spec.yaml"
    spec.write_text(SPEC)
    (project / "lights.py").write_text("LIGHTS = 2\n")
    push = ["push", str(spec), "--registry", repository, "--base", f"actor={tag}", "--only", "actor"]
    push += ["--builder", builder, "--write", str(project / "images.yaml")]
    (first,) = rlctl_image(*push)
    assert first["what"] == "pushed"
    assert len(first["layers"]) == 2
    assert first["layers"][1]["bytes"] < 2000
    assert first["reference"] in (project / "images.yaml").read_text()

    (again,) = rlctl_image(*push)
    assert again["what"] == "there"
    assert again["reference"] == first["reference"]

    (project / "lights.py").write_text("LIGHTS = 3\n")
    (changed,) = rlctl_image(*push)
    assert changed["what"] == "pushed"
    assert changed["layers"][0] == first["layers"][0]
    assert changed["layers"][1] != first["layers"][1]

    # laid over the base again, not over its own result
    over = ["push", str(spec), str(project / "images.yaml"), "--registry", repository, "--only", "actor"]
    (unwrapped,) = rlctl_image(*over, "--builder", builder)
    assert (unwrapped["what"], unwrapped["reference"]) == ("there", changed["reference"])
