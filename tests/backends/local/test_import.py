import subprocess
import sys

import pytest


@pytest.mark.processes
def test_the_backend_is_imported_without_what_a_light_command_must_not_load() -> None:
    code = "import rlctl.backends.local, sys; print(*sys.modules)"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert not loaded & {"jinja2", "typer", "rich", "torch", "zmq", "numpy", "yaml", "supervisor", "msgspec", "psutil"}
    assert "rlctl.backends.local.process.watch" not in loaded
