"""Suggestions for an id that Gymnasium does not know."""

import pytest

from rlctl_agents import envs
from rlctl_agents.envs.base import EnvRefused


@pytest.mark.parametrize(
    ("id", "text"),
    [
        ("CartPole-v9", "Gymnasium has no CartPole-v9; it has CartPole-v0 and CartPole-v1"),
        ("CartPol-v1", "Gymnasium has no CartPol-v1; did you mean CartPole-v1?"),
        ("cartpole-v1", "Gymnasium has no cartpole-v1; did you mean CartPole-v1?"),
        (
            "Pong-v5",
            "Gymnasium has no Pong-v5 here; did you mean ALE/Pong-v5 (`preset: atari` brings the usual frames)?",
        ),
        ("ALE/Pongg-v5", "Gymnasium has no ALE/Pongg-v5; did you mean ALE/Pong-v5?"),
        ("ALE/Pong-v6", "Gymnasium has no ALE/Pong-v6; it has ALE/Pong-v5"),
        ("gymnasium:CartPole-v9", "Gymnasium has no CartPole-v9; it has CartPole-v0 and CartPole-v1"),
        ("gymnasium:Nothing-v0", "Gymnasium has no Nothing-v0, and importing gymnasium has not registered it"),
        (
            "MiniGrid-Empty-5x5-v0",
            "Gymnasium has no MiniGrid-Empty-5x5-v0; one of another package needs that package installed here, and some"
            " need its module named: PACKAGE:MiniGrid-Empty-5x5-v0",
        ),
    ],
)
def test_an_unknown_id_is_refused_with_those_that_were_probably_meant(id: str, text: str) -> None:
    with pytest.raises(EnvRefused) as refused:
        envs.make(id, envs=1, seeds=[0])
    assert str(refused.value) == text


def test_a_game_that_ale_has_not_is_refused_with_near_ones_under_the_preset_as_well() -> None:
    with pytest.raises(EnvRefused, match="did you mean ALE/Breakout-v5"):
        envs.make("ALE/Breakoutt-v5", envs=1, seeds=[0], preset="atari")
