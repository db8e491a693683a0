"""`python -m rlctl_agents evaluate`: whole episodes with a stored model, without a run.

The request comes on stdin, one JSON object:

    {"folder": "model", "env": {...}, "episodes": 100, "modes": ["greedy", "sample"], "seed": 7, "envs": null}

`env` is the section of the spec, `envs` as `evaluation.envs` there. A reply is a line of JSON for each mode, in
their order, or `{"error": "..."}`. Whatever the environment prints goes to stderr.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

import numpy as np
import torch

from rlctl.statistics import bootstrap, iqm
from rlctl_agents import envs
from rlctl_agents.acting.episodes import EpisodeResults, play
from rlctl_agents.acting.policy import Table
from rlctl_agents.acting.policy_player import NetworkPolicy
from rlctl_agents.acting.random_streams import environment_seeds
from rlctl_agents.algorithms.base import Act, ActInputs, Algorithm
from rlctl_agents.envs.base import Env
from rlctl_agents.policies.answering import answer, answering, require_spaces, stored_model
from rlctl_agents.runtime.closing import closed
from rlctl_agents.runtime.gauges import ENDLESS
from rlctl_agents.runtime.metrics import Metrics

ENVS = 25
"""Number of environments, unless the spec says otherwise; fewer where fewer episodes are wanted. One decision for many
costs little more than one for a few."""
NOISE_ROWS = 64
NOTE_EVERY_S = 30.0
"""Seconds between two lines on stderr about an evaluation that is going on."""


def main(_: Sequence[str] = ()) -> int:
    """Run the command; returns its exit code."""
    return answering(_evaluate)


def _evaluate(question: Mapping[str, Any], answers: TextIO) -> None:
    described, algorithm = stored_model(question)
    episodes, seed = int(question["episodes"]), int(question["seed"])
    count = min(question.get("envs") or ENVS, episodes)
    env = envs.make_of(question["env"], envs=count, seeds=[0] * count, training=False)
    with closed(env):
        require_spaces(env, described)
        for mode in question["modes"]:
            started = time.monotonic()
            games = played(env, algorithm, episodes, seed=seed, greedy=mode == "greedy", progress=described.steps)
            found = {"mode": mode, **figures(games, seed), "seconds": time.monotonic() - started}
            answer(answers, found)


def played(
    env: Env,
    algorithm: Algorithm,
    episodes: int,
    *,
    seed: int,
    greedy: bool,
    progress: int,
    watch: Callable[[], None] = lambda: None,
    metrics: Metrics | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> EpisodeResults:
    """Play whole episodes; the model acts in every seat. One that takes long says on stderr how far it is.

    Args:
        seed: of environments and noise.
        progress: agent steps that the weights were learned from.
        watch: called before each decision.
        metrics: counters of the process, where others look at them.

    Raises:
        EnvError: the environment failed.
    """
    torch.manual_seed(seed)  # for a network that draws by itself
    algorithm = outside_of_a_run(algorithm)
    table = Table.of_seats(env.spaces, env.envs, [list(range(env.spaces.seats))])
    player = NetworkPolicy(algorithm, table.slots[0], seed=seed, rows=NOISE_ROWS, greedy=greedy, spaces=env.spaces)
    player.progress = progress
    seeds = environment_seeds(seed, np.arange(env.envs, dtype=np.int64))

    metrics, noted = metrics or Metrics(), clock()
    before = metrics.values()[0].get("episodes", 0)

    def keep_going() -> bool:
        nonlocal noted
        watch()
        if clock() - noted >= NOTE_EVERY_S:
            noted, (counters, gauges, *_) = clock(), metrics.values()
            done = counters.get("episodes", 0) - before
            print(
                f"{'greedy' if greedy else 'sample'}: {done:.0f} of {episodes} episodes, "
                f"{gauges.get(ENDLESS, 0):,.0f} steps since one ended",
                file=sys.stderr, flush=True,
            )  # fmt: skip
        return True

    games = play(env, seeds, table, [player], episodes, metrics=metrics, keep_going=keep_going)
    assert games is not None
    return games


def outside_of_a_run(algorithm: Algorithm) -> Algorithm:
    """Copy of an algorithm, with the same networks, that ignores stream ids: where exploration rates are those of
    streams, every slot explores at the lowest one, not at that of a training actor.
    """
    evaluated, act = object.__new__(type(algorithm)), algorithm.act  # copy.copy calls a __new__ that may want arguments
    evaluated.__dict__.update(algorithm.__dict__)

    def without_stream(inputs: ActInputs) -> Act:
        return act(inputs._replace(stream=None))

    evaluated.act = without_stream  # type: ignore[method-assign]
    return evaluated


def figures(games: EpisodeResults, seed: int) -> dict[str, Any]:
    """Mean, interquartile mean, 95 % interval of the mean by percentile bootstrap, and the episodes themselves."""
    returns = np.array(games.returns)
    return {
        "mean": float(returns.mean()), "iqm": iqm(returns),
        "interval": list(bootstrap(returns, lambda drawn: float(drawn.mean()), seed=seed)),
        "std": float(returns.std()), "min": float(returns.min()), "max": float(returns.max()),
        "length": float(np.mean(games.lengths)), "episodes": returns.size, "info": games.info,
        "returns": games.returns, "lengths": games.lengths,
    }  # fmt: skip
