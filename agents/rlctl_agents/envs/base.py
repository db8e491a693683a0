"""Protocol of environments: a vector of environments with seats that wait for actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from rlctl_agents.types.experience import Arrays, Decisions
from rlctl_agents.types.spaces import Spaces


class EnvError(Exception):
    """Misbehaviour of an environment while it ran: a simulator's bug, or bad luck.

    Example:
        `str(EnvError.at("step returned NaN reward", "CartPole-v1", 41, 20184))` is
        "step returned NaN reward (CartPole-v1, seed 41, step 20184)".
    """

    @classmethod
    def at(cls, what: str, env: str, seed: int, step: int) -> EnvError:
        """Error with the place at which it happened, so that it can be reproduced.

        Args:
            what: one clause, without full stop.
            env: id of the environment, as in the spec.
            seed: seed with which the faulty environment was reset.
            step: calls of `step` since that reset, this one included; 0 is the reset itself.
        """
        return cls(f"{what} ({env}, seed {seed}, step {step})")


class EnvRefused(EnvError):
    """Environment that cannot be made as the spec asks: a mistake of the user, which no restart cures."""


class Wrapping(NamedTuple):
    """Wrappers and changes of each copy of a Gymnasium environment, from the inside out."""

    wrappers: Sequence[Mapping[str, Any]] = ()  # name: Gymnasium's, or `module:attribute`; kwargs
    action_repeat: int | None = None
    episodic_life: bool = False
    grayscale: bool = False
    resize: Sequence[int] | None = None  # rows, columns

    @property
    def repeats(self) -> int:
        """Number of times that each action is played."""
        return self.action_repeat or 1


def chosen_seeds(given: Sequence[int] | None, before: Sequence[int]) -> list[int]:
    """Seeds of a reset: the given ones, else those of the reset before.

    Raises:
        ValueError: their number is not that of the environments.
    """
    if given is not None and len(given) != len(before):
        raise ValueError(f"seeds must be one per environment, {len(before)}, got {len(given)}")
    return list(before if given is None else given)


def not_finite(number: float | np.floating[Any], place: str) -> str:
    """A number that is not finite and its place, in words: "NaN reward"."""
    if np.isnan(number):
        return f"NaN {place}"
    return f"infinite {place}; larger ones than 3.4e+38, the most of float32, count as infinite"


class Env(Protocol):
    """A vector of environments of one kind. A slot is one seat of one environment: `env * seats + seat`.

    Its caller gives actions for all slots of the last `Decisions` at once. Returned arrays are valid until the next
    `step` or `reset`: copy what you keep. Passed arrays are neither kept nor changed.

    An episode ends at the same time for every seat that has acted in it; a seat that has not does not see its end. A
    seat's first decision brings no reward. In every answer each environment has a waiting slot. (Vectors of
    Gymnasium's that reset in the same step have an answer with their new episodes alone; see `gymnasium.Resetting`.)

    A user's own class is named `module:Class` in the spec, is called with `envs` and the spec's `env.kwargs`, and can
    be tried with `rlctl_agents.envs.check.check_env`. Every answer that it gives in a run is checked against these
    rules.
    """

    @property
    def spaces(self) -> Spaces:
        """Observation and action space of one seat, and the number of seats."""

    @property
    def envs(self) -> int:
        """Number of environments side by side."""

    @property
    def frame_skip(self) -> int:
        """Simulator frames per step."""

    def reset(self, seeds: Sequence[int] | None = None) -> Decisions:
        """Reset every environment.

        Args:
            seeds: one per environment, from 0 to 2**31 - 1; equal seeds and equal actions give equal decisions. None:
                those that `make` was given (a user's own class is always given seeds).

        Returns:
            The slots that act first: `first` is set, rewards are 0, no episode has ended.
        """

    def step(self, slot: NDArray[np.int64], action: Arrays) -> Decisions:
        """Act, and simulate until the next slots wait for an action.

        Args:
            slot: [K] slots of the last decisions, in their order.
            action: leaf name (`action`, or `action.0` ...) -> [K, ...]. The row of a slot that has ended is ignored.
                Numbers of a Box lie within its bounds.

        Returns:
            The slots that wait now. When a slot's episode ends, it appears once with its final observation and a flag;
            answered, it begins the next episode and appears again as `first` with reward 0 when it has to act.

        Raises:
            EnvError: the simulator raised, or returned a number that is not finite; the text names env, seed and step.
        """

    def close(self) -> None:
        """Free the simulator's resources; a second call does nothing."""


RenderMode = Literal["human", "rgb_array"]
"""Gymnasium's render modes: a window, or frames as arrays."""


@runtime_checkable
class Renders(Protocol):
    """A vector that renders its first environment, in the mode given when it was made."""

    @property
    def frames_per_s(self) -> float:
        """Steps per second at the speed meant for watching."""

    def frame(self) -> NDArray[np.uint8] | None:
        """[height, width, 3] as the simulator draws it, independent of the observation; None: it shows a window."""


@runtime_checkable
class Rests(Protocol):
    """A vector that need not simulate all its environments: the games of an evaluation do not end together."""

    def rest(self, env: NDArray[np.int64]) -> None:
        """Leave environments as they are until the next reset: they answer with no reward, no end, and their last
        observation. A vector of environments that cannot rest ignores it.

        Args:
            env: numbers of environments that have just ended an episode.
        """
