"""A push: from a signed hook to a training that goes on learning with the new code, and back from a bad one."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ci.lights import Ci, Forge
from tests.end_to_end.conftest import Cli, cli, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.timeout(3000)]
__all__ = ["cli"]


@pytest.fixture
def forge(tmp_path: Path) -> Forge:
    return Forge(tmp_path)


@pytest.fixture
def ci(cli: Cli, forge: Forge) -> Iterator[Ci]:
    verify = {"watch_s": 5, "ready_within_s": 500, "min_throughput": 0.01}
    found = Ci(cli, cli.folder, cli.env, forge, verify=verify)
    try:
        yield found
    finally:
        found.stop()


def learned(cli: Cli) -> float:
    return float(cli.status("lights")["totals"]["consumed_steps"])


def test_a_push_redeploys_a_training_that_goes_on_a_bad_one_is_rolled_back_and_a_killed_service_finishes(
    cli: Cli, forge: Forge, ci: Ci
) -> None:
    forge.commit("first")
    cli("up", str(forge.copy / "spec.yaml"), "-d")
    cli("wait", "lights", "--for", "consumed_steps=5000", "--timeout", "500s", timeout_s=520)
    uid, before = cli.status("lights")["uid"], learned(cli)
    stayed = cli.pids("lights", "manager") + cli.pids("lights", "modelpool")
    ci.start()

    good = ci.hook(forge.commit("second"))
    ended = ci.ended(good)
    assert ended["state"] == "succeeded", ci.log(good)
    took = ended["seconds"]
    print("push:", took)
    assert 0 < took["redeployed"] < took["verified"]
    assert f"redeployed {took['redeployed']:.1f} s after the push" in ci.log(good)
    status = cli.status("lights")
    assert status["uid"] == uid
    assert status["revision"] == 2
    assert cli.pids("lights", "manager") + cli.pids("lights", "modelpool") == stayed, "code is nothing to them"
    assert status["resumed"]["steps"] > 0, "the learner went on from its generation"
    wait_until(lambda: learned(cli) > before, timeout_s=400, what="more to be learned")
    state = json.loads((cli.root("lights") / "run" / "state.json").read_text())
    code = Path(state["spec"]["code"]["path"])
    assert 'NOTE = "second"' in (code / "lights" / "guess.py").read_text()
    assert code.with_name(f"{code.name}.provenance.json").is_file()

    bad = ci.hook(forge.commit("third", step='raise RuntimeError("a bad commit")'))
    ended = ci.ended(bad)
    assert ended["state"] == "rolled_back", ci.log(bad)
    assert "a bad commit" in ci.log(bad)
    print("bad push:", ended["seconds"])
    status = cli.status("lights")
    assert status["phase"] == "running"
    state = json.loads((cli.root("lights") / "run" / "state.json").read_text())
    assert Path(state["spec"]["code"]["path"]) == code
    rows = learned(cli)
    wait_until(lambda: learned(cli) > rows, timeout_s=400, what="the run of before to learn")

    # killed while it deploys, the service finishes in its next life
    revision = status["revision"]
    build = ci.hook(forge.commit("fourth"))
    wait_until(lambda: ci.build(build)["state"] in ("deploying", "verifying"), timeout_s=400, what="a deployment")
    ci.stop(kill=True)
    time.sleep(0.5)
    ci.start()
    assert ci.ended(build)["state"] == "succeeded", ci.log(build)
    assert cli.status("lights")["revision"] == revision + 1, "it was deployed once"
