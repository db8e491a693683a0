"""`rlctl profile` looks at every role of a real run on this machine, and the run goes on."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tests.end_to_end.conftest import Cli

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]
WAITS_S = 240.0
DOES = {
    "manager": "manage (rlctl_agents/roles/manager.py",
    "modelpool": "main (rlctl_agents/roles/modelpool.py",
    "learner": "Learner.run_once (rlctl_agents/roles/learner.py",
    "actor/0": "Rollout.step (rlctl_agents/acting/rollout.py",
}
"""Process -> what its main thread is in, most of the time."""


def test_every_role_is_drawn_and_none_ends(cli: Cli) -> None:
    spec = cli.spec(
        "drawn",
        **cli.paced(),
        algorithm={"name": "impala", "unroll_length": 10, "batch_size": 80},
        roles={"actor": {"replicas": 1, "envs": 4}, "evaluator": {"replicas": 0}},
        stop={"wall_time": "1h"},
    )
    cli("up", spec, "-d")
    cli("wait", "drawn", "--for", "updates=5", "--timeout", "240s", timeout_s=WAITS_S + 20)
    pids = {role: cli.pids("drawn", role) for role in ("manager", "modelpool", "learner", "actor")}

    for process, function in DOES.items():
        answer = cli("profile", process, "--run", "drawn", "--seconds", "2", "-o", "json", timeout_s=WAITS_S)
        found = json.loads(answer.stdout)
        assert found["process"].partition("/")[0] == process.partition("/")[0]
        assert found["cpu_s"]
        graph, collapsed = (Path(path) for path in found["files"])
        assert graph.parent == cli.root("drawn") / "results" / "profiles"
        ElementTree.parse(graph)
        main = [line for line in collapsed.read_text().splitlines() if line.startswith("MainThread;")]
        assert any(function in line for line in main), main[:5]

    refused = cli("profile", "actor/1", "--run", "drawn", exit_code=2)
    assert "no actor/1: the last is actor/0" in refused.stderr
    assert {role: cli.pids("drawn", role) for role in pids} == pids, "nobody was restarted by being looked at"
