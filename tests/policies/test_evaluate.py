"""Episodes with a stored model, outside of a run."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from rlctl.spec import algorithms as specs
from rlctl.spec.schema import Network
from rlctl_agents import envs
from rlctl_agents.acting.episodes import EpisodeResults
from rlctl_agents.algorithms import find
from rlctl_agents.algorithms.apex_dqn import ApexDqn
from rlctl_agents.policies import evaluate
from rlctl_agents.policies.answering import NoModel, failed
from rlctl_agents.types.spaces import Box, Discrete, Spaces
from tests.training.test_stored_policy import IDS, KINDS, chosen


def test_figures_are_those_of_the_episodes() -> None:
    found = evaluate.figures(EpisodeResults([1.0, 2.0, 3.0, 6.0], [10, 10, 10, 30], {"score": 2.0}), seed=1)
    assert (found["mean"], found["min"], found["max"], found["length"], found["episodes"]) == (3.0, 1.0, 6.0, 15.0, 4)
    low, high = found["interval"]
    assert 1.0 <= low < 3.0 < high <= 6.0
    assert json.loads(json.dumps(found)) == found


def test_an_evaluation_that_samples_explores_as_no_stream_of_a_run() -> None:
    spaces = Spaces(Box((4,), "float32"), Discrete(2))
    config = specs.ApexDqn.model_validate({})
    one = ApexDqn(config, Network(hidden=[8]), spaces, seed=1)
    streams: list[object] = []
    act = one.act
    one.act = lambda inputs: streams.append(inputs.stream) or act(inputs)  # type: ignore[method-assign, func-returns-value]
    env = envs.make_of({"id": "CartPole-v1"}, envs=2, seeds=[0, 0], training=False)
    try:
        assert len(evaluate.played(env, one, 2, seed=1, greedy=False, progress=0).returns) == 2
    finally:
        env.close()
    assert set(streams) == {None}


def test_an_evaluation_that_takes_long_says_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    one = ApexDqn(
        specs.ApexDqn.model_validate({}), Network(hidden=[8]), Spaces(Box((4,), "float32"), Discrete(2)), seed=1
    )
    env = envs.make_of({"id": "CartPole-v1"}, envs=1, seeds=[0], training=False)
    seconds = iter(range(0, 1_000_000, 10))
    try:
        games = evaluate.played(env, one, 2, seed=1, greedy=True, progress=0, clock=lambda: float(next(seconds)))
    finally:
        env.close()
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("greedy: 0 of 2 episodes, ")
    assert said[-1].startswith("greedy: 1 of 2 episodes, ")
    assert 2 < len(said) < sum(games.lengths)


@pytest.mark.parametrize(("config", "network", "spaces"), KINDS, ids=IDS)
def test_every_algorithm_acts_outside_of_a_run_as_it_does_without_a_stream(
    config: Any, network: Network, spaces: Spaces
) -> None:
    one = find(config.name)(config, network, spaces, seed=5)
    expected, found = chosen(one, spaces), chosen(evaluate.outside_of_a_run(one), spaces)
    assert expected.keys() == found.keys()
    assert all(torch.equal(values, found[name]) for name, values in expected.items())


def test_a_folder_without_a_model_is_told_as_an_answer(tmp_path: Path) -> None:
    answers = io.StringIO()
    question: dict[str, Any] = {"folder": str(tmp_path), "env": {}, "episodes": 1, "modes": ["greedy"], "seed": 1}
    for described in (None, "{}", '{"format": 1}'):
        if described is not None:
            (tmp_path / "policy.json").write_text(described)
        with pytest.raises(NoModel, match="the model cannot be loaded"):
            evaluate._evaluate(question, answers)
    assert failed(answers, "no") == 1
    assert json.loads(answers.getvalue()) == {"error": "no", "environment": ""}
