"""The newcomer's path: one spec file, one command, a solved environment."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import onnxruntime
import pytest
from PIL import Image, ImageSequence

import rlctl_agents
from benchmarks.learning.rows import find
from benchmarks.learning.train import fell_back, success, train
from tests.end_to_end.conftest import Cli, wait_until

SPECS = Path(__file__).parents[2] / "specs"
pytestmark = [pytest.mark.processes, pytest.mark.timeout(1200)]

CARTPOLE = {
    "algorithm": {"name": "impala"},
    "roles": {"actor": {"envs": 8}},
    "evaluation": {"episodes": 10, "every": "5s"},
    "checkpoint": {"every": "3s"},
}


@pytest.mark.learning
def test_up_ends_0_with_cartpole_solved_by_the_evaluator(cli: Cli) -> None:
    spec = str(SPECS / "cartpole-impala.yaml")
    done = cli("up", spec, timeout_s=400)

    status = cli.status("cartpole")
    assert status["phase"] == "finished"
    assert status["evaluation"]["episodes"] == 100
    assert status["evaluation"]["mean"] >= 475  # Gymnasium's own threshold for CartPole-v1
    assert "475" in done.stdout
    assert status["policies"]["main"]["ledger"]["balanced"]
    assert cli("logs", "learner", "-o", "json").stdout
    assert "finished" in cli("up", spec).stdout + done.stderr

    models = json.loads(cli("models", "cartpole", "-o", "json").stdout)["models"]
    assert models[0]["name"] == "goal"
    assert models[0]["evaluations"]["greedy"]["mean"] == status["evaluation"]["mean"]
    pulled = [line for line in cli("pull", "cartpole@last", "model").stdout.splitlines() if line]
    assert [Path(line).name for line in pulled] == ["policy.json", "policy.safetensors", "run.json"]
    again = json.loads(cli("eval", "cartpole", "--episodes", "200", "--seed", "7", "-o", "json").stdout)["results"]
    assert again["greedy"]["mean"] >= 450  # 475 on average over others
    assert again["greedy"]["episodes"] == again["sample"]["episodes"] == 200
    same = json.loads(cli("eval", "./model", "--episodes", "5", "--mode", "greedy", "-o", "json").stdout)["results"]
    assert set(same) == {"greedy"}
    films = json.loads(cli("play", "./model", "--episodes", "2", "--video", "out", "--seed", "3", "-o", "json").stdout)
    assert [one["seed"] for one in films["episodes"]] == [3, 4]
    for one in films["episodes"]:
        with Image.open(one["file"]) as film:
            shown_ms = sum(frame.info["duration"] for frame in ImageSequence.Iterator(film))
            assert shown_ms == 20 * (one["length"] + 1)
    assert "is not overwritten" in cli("play", "./model", "--video", "out", "--seed", "4", exit_code=1).stderr
    policy = rlctl_agents.load(cli.folder / "model")
    assert played_by_hand(lambda obs: policy.act(obs)[0]) >= 100  # alone, without rlctl's environments
    exported = json.loads(cli("export", "./model", "policy.onnx", "-o", "json").stdout)
    assert exported["checked"]["observations"] == 68
    session = onnxruntime.InferenceSession(cli.folder / "policy.onnx")
    assert played_by_hand(lambda obs: session.run(["action"], {"obs": obs[None]})[0][0]) >= 100


def played_by_hand(act: Callable[[Any], Any]) -> float:
    """Return of one episode of Gymnasium's own environment."""
    env = gymnasium.make("CartPole-v1")
    obs, _ = env.reset(seed=1)
    returned, over = 0.0, False
    while not over:
        obs, reward, terminated, truncated, _ = env.step(act(obs))
        returned, over = returned + float(reward), terminated or truncated
    env.close()
    return returned


@pytest.mark.learning
def test_ppo_on_its_defaults_reaches_the_goal_of_the_learning_table_in_its_steps_and_keeps_it() -> None:
    row = find("cartpole-ppo")
    line, points = train(row, seed=0, tell=lambda folder: None)
    assert success(points, row.goal) is not None, points
    # one evaluation of twenty may be of a policy that dips: what actors gather when is another in each run
    assert fell_back(points, row.goal) <= 1, points
    assert 0 < line["mean_return"] <= 500
    assert row.agent_steps <= line["agent_steps"] < row.agent_steps + row.spec.policy().algorithm.batch_size
    assert 0 < points[-1]["cpu_s"] <= line["cpu_s"]


def test_the_life_of_a_run(cli: Cli) -> None:
    spec = cli.spec("life", **CARTPOLE, **cli.paced())
    cli("up", spec, "-d")
    cli("wait", "life", "--for", "steps=5000", "--timeout", "240s")
    uid = cli.status("life")["uid"]

    before = cli.pids("life", "actor"), cli.pids("life", "learner")
    cli("scale", "actor=3")
    wait_until(lambda: len(cli.status("life")["roles"]["actor"]) == 3, timeout_s=240, what="three actors")
    assert cli.pids("life", "learner") == before[1]
    assert cli.pids("life", "actor")[0] == before[0][0]

    assert cli("logs", "actor", "--grep", "lease").stdout
    cli("logs", "actor", "--grep", "no such words", exit_code=1)

    wait_until(
        lambda: (cli.status("life")["checkpoint"] or {"number": 0})["number"] >= 1, timeout_s=240, what="a generation"
    )
    refused = cli("up", spec, "-d", "--set", "env.id=Acrobot-v1", exit_code=5)
    assert "env.id" in refused.stderr
    actors, faster = cli.pids("life", "actor"), ("--set", "algorithm.lr=0.0007")
    cli("up", spec, "-d", *faster)
    wait_until(lambda: cli.pids("life", "learner") not in ([], before[1]), timeout_s=240, what="another learner")
    assert cli.pids("life", "actor") == actors, "a new learning rate restarts the learner alone"
    wait_until(lambda: cli.status("life")["resumed"] is not None, timeout_s=240, what="the learner to go on")
    steps = cli.status("life")["resumed"]["steps"]
    assert steps > 0

    again = cli("up", spec, "-d", *faster)
    assert "unchanged" in again.stdout + again.stderr
    assert len(cli.pids("life", "actor")) == 3, "a second up keeps the live number of actors"

    cli("down", "life")
    assert not cli.pids("life", "actor")
    assert cli.root("life").exists()
    assert json.loads(cli("status", "life", "-o", "json").stdout)["uid"] == uid

    cli("up", spec, "-d", *faster)
    wait_until(
        lambda: (cli.status("life")["resumed"] or {"steps": 0})["steps"] >= steps, timeout_s=240, what="a resumed run"
    )
    assert cli.status("life")["uid"] == uid


def test_an_environment_that_does_not_exist_starts_nothing_and_is_told_with_its_line(cli: Cli) -> None:
    spec = cli.spec("wrong", **CARTPOLE, env={"id": "CartPole-v9"})
    line = next(n for n, text in enumerate((cli.folder / spec).read_text().splitlines(), 1) if "CartPole-v9" in text)
    for verb in ("lint", "up"):
        refused = cli(verb, spec, exit_code=3)
        said = f"{spec}:{line}:3: env.id: Gymnasium has no CartPole-v9; it has CartPole-v0 and CartPole-v1"
        assert said in (refused.stdout + refused.stderr).splitlines()
    cli("status", "wrong", exit_code=2)
