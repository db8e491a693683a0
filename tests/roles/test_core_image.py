"""Packages that the core image lacks are imported by none of its roles."""

from __future__ import annotations

import subprocess
import sys

import pytest

LACKS = ("torch", "safetensors", "gymnasium")


@pytest.mark.processes
@pytest.mark.parametrize("role", ["manager", "modelpool", "replay", "tensorboard_server"])
def test_a_role_of_the_core_image_does_without(role: str) -> None:
    code = f"import sys; sys.modules.update(dict.fromkeys({LACKS!r})); import rlctl_agents.roles.{role}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
