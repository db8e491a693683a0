"""Parts that every role makes from the spec."""

from __future__ import annotations

import logging

import pytest

from rlctl.spec.schema import Network
from rlctl_agents.acting.bootstrap import decided, make_algorithm, make_env
from rlctl_agents.algorithms import schema_of
from rlctl_agents.algorithms.base import AlgorithmError
from rlctl_agents.envs import EnvRefused
from rlctl_agents.models.precision import bf16_flag
from rlctl_agents.types.spaces import Box, Dict, Discrete, Space, Spaces
from tests.manager.world import spec

PIXELS = Spaces(Box((4, 84, 84), "uint8", 0, 255), Discrete(3))
HERE = "bf16: the processor has" if bf16_flag() else "fp32: the processor has no bf16"


@pytest.mark.parametrize(
    ("asked", "sync", "gpu", "said"),
    [
        ("auto", False, False, HERE),
        ("auto", False, True, "fp32: there is a GPU, on which bf16 was never measured"),
        ("bf16", False, True, "bf16: model.precision says so"),
        ("auto", True, False, "fp32: sync is true"),
        ("auto", True, True, "fp32: sync is true"),
        ("bf16", True, False, "fp32: sync is true"),
    ],
)
def test_the_log_says_what_the_network_computes_in_and_why_and_so_it_does(
    asked: str, sync: bool, gpu: bool, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "rlctl_agents.acting.bootstrap")
    network = Network.model_validate({"precision": asked})
    found = decided(network, spec(sync=sync), PIXELS, gpu=gpu)
    (line,) = caplog.messages
    assert line.startswith(f"the network computes in {said}")
    assert found == network.model_copy(update={"precision": said.partition(":")[0]})


def test_every_role_says_it_once_when_it_makes_its_algorithm(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "rlctl_agents.acting.bootstrap")
    make_algorithm(spec(sync=True), "main", PIXELS)
    assert caplog.messages == ["the network computes in fp32: sync is true"]


@pytest.mark.parametrize(
    ("obs", "words"),
    [
        (Dict({f"n{number}": Discrete(2) for number in range(300)}), "can have 256: join leaves into one Box"),
        (Box((1,) * 7, "float32"), "obs: shape .* has more than 6 axes.*: reshape it"),
    ],
)
def test_segments_that_cannot_be_sent_are_told_to_the_user_before_a_role_begins(obs: Space, words: str) -> None:
    with pytest.raises(AlgorithmError, match=words):
        schema_of(spec(), Spaces(obs, Discrete(2)), "main")


def test_lives_are_episodes_where_it_learns_and_not_where_it_is_measured() -> None:
    section = {"id": "CartPole-v1", "episodic_life": True}
    make_env(spec(env=section), 1, training=False).reset()
    with pytest.raises(EnvRefused, match=r"env\.episodic_life needs info"):
        make_env(spec(env=section), 1, training=True).reset()
