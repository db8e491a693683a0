"""`.ci/run` goes on after a part that fails, and names it at the end."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT

CLUSTER = '#!/bin/sh\necho "$@" >> "$TOLD"\n[ "$1" != down ]\n'


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: the part with clusters is for root alone")
def test_a_cluster_that_does_not_go_down_ends_no_other_part(tmp_path: Path) -> None:
    script, cluster = tmp_path / "main" / ".ci" / "run", tmp_path / "shared" / "cluster" / "cluster"
    tools = tmp_path / "tools"
    for folder in (script.parent, cluster.parent, tools):
        folder.mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "run", script)
    for file, text in ((cluster, CLUSTER), (tools / "make", "#!/bin/sh\n"), (tools / "chromium", "#!/bin/sh\n")):
        file.write_text(text)
        file.chmod(0o755)
    env = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "TOLD": str(tmp_path / "told")}
    done = subprocess.run(["bash", script], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert f"FAILED: {cluster} down" in done.stderr
    assert "up --nodes 0 --fake-nodes 20 --fast" in (tmp_path / "told").read_text()
