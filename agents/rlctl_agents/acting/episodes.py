"""Evaluation episodes: a fixed number of whole games per environment, so that fast or short ones do not count more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from rlctl_agents.acting.episode_figures import InfoFigures
from rlctl_agents.acting.policy import Policy, Table
from rlctl_agents.envs.base import Env, Rests
from rlctl_agents.runtime.metrics import Metrics
from rlctl_agents.runtime.process import ENDLESS


class EpisodeResults(NamedTuple):
    """Results of the games that count, environment by environment."""

    returns: list[float]  # raw, of seat 0
    lengths: list[int]  # decisions of all seats
    info: dict[str, float]  # mean over the games of each number in seat 0's `info` at their end


def shares(episodes: int, envs: int) -> list[int]:
    """Number of games of each environment: fixed before the first begins, and as equal as the numbers allow.

    Example:
        `shares(10, 4)` is [3, 3, 2, 2].
    """
    each, rest = divmod(episodes, envs)
    return [each + (env < rest) for env in range(envs)]


def play(
    env: Env,
    seeds: Sequence[int],
    table: Table,
    players: Sequence[Policy],
    episodes: int,
    *,
    metrics: Metrics,
    keep_going: Callable[[], bool],
) -> EpisodeResults | None:
    """Play until every environment has finished its share. A finished environment rests if it can; otherwise its
    further games do not count.

    Args:
        env: reset with `seeds`, one per environment.
        table, players: the policy of each slot.
        episodes: number of games that count, over all environments.
        keep_going: called once per step; False stops.

    Returns:
        The games, or None if stopped before the last was over.

    Raises:
        EnvError: raised by the environment.
    """
    seats = env.spaces.seats
    share = shares(episodes, env.envs)
    games: list[list[tuple[float, int]]] = [[] for _ in range(env.envs)]
    returned, length = np.zeros(env.envs), np.zeros(env.envs, np.int64)
    left, info = episodes, InfoFigures()
    done = np.array(share) == 0
    decisions = env.reset(list(seeds))
    endless = 0
    while True:
        of_env = decisions.slot // seats
        measured = decisions.slot % seats == 0
        returned[of_env[measured]] += decisions.reward[measured]
        ended = decisions.terminated | decisions.truncated
        over = ended if decisions.life is None else ended & ~decisions.life  # a lost life ends no game
        if over.any():
            for number in of_env[over & measured].tolist():
                if len(games[number]) < share[number]:
                    games[number].append((float(returned[number]), int(length[number])))
                    left -= 1
                    info.ended((decisions.info or {}).get(number * seats, {}))
            begin = np.unique(of_env[over])
            returned[begin], length[begin] = 0.0, 0
            metrics.add("episodes", int(np.count_nonzero(~done[begin])))
            done[begin] = [len(games[number]) == share[number] for number in begin]
            if isinstance(env, Rests):
                env.rest(np.flatnonzero(done))
            endless = 0
            metrics.set(ENDLESS, endless)
            if left == 0:
                break
        if not keep_going():
            metrics.set(ENDLESS, 0)
            return None
        acting = of_env[~ended & ~done[of_env]]
        np.add.at(length, acting, 1)
        stepped = np.unique(acting).size
        metrics.add("agent_steps", acting.size)
        metrics.add("env_steps", stepped)
        metrics.add("frames", stepped * env.frame_skip)
        parts = [(rows, players[who].act(part).action) for who, rows, part in table.split(decisions)]
        endless += 1
        metrics.set(ENDLESS, endless)
        decisions = env.step(decisions.slot, table.join(parts, decisions.slot.size))
    flat = [game for one in games for game in one]
    return EpisodeResults([game[0] for game in flat], [game[1] for game in flat], info.means())
