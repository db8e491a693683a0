"""Checks, without torch, that an algorithm with a replay can choose the actions of a space."""

from __future__ import annotations

from rlctl_agents.models.inputs import ModelError, unit
from rlctl_agents.types.spaces import Box, Discrete, MultiDiscrete, Space, choices, leaves


def require_bounds(space: Space) -> None:
    """Check that an action consists of bounded real numbers, as TD3 and SAC choose them.

    Raises:
        ModelError: it has a leaf of another kind; every such leaf is named.
    """
    faults = [_unbounded(name, leaf) for name, leaf in leaves(space, "action")]
    if told := [fault for fault in faults if fault]:
        raise ModelError("; ".join(told))


def _unbounded(name: str, leaf: object) -> str:
    """Fault of a leaf of an action, in words; "" for a Box of real numbers with bounds."""
    if not isinstance(leaf, Box):
        return (
            f"td3, or sac beside a Box, chooses real numbers, and {name} is a {type(leaf).__name__}: use sac or dqn "
            "for options alone, ppo for both together"
        )
    if not leaf.dtype.startswith("float"):
        return f"a Box action must hold real numbers, and {name} holds {leaf.dtype}: use MultiDiscrete, and dqn or ppo"
    if not all(unit(low, high) for low, high in leaf.bounds()):
        return (
            f"sac and td3 need two different finite bounds for every number of an action, and {name} lacks some: wrap "
            "the environment so that its actions have bounds, or use ppo"
        )
    return ""


def require_bounds_or_choices(space: Space) -> None:
    """Check that SAC can choose an action: bounded real numbers alone, or options alone.

    Raises:
        ModelError: it cannot; the text gives the reason.
    """
    if any(isinstance(leaf, Box) for _, leaf in leaves(space, "action")):
        require_bounds(space)
    else:
        require_choices(space)


def require_choices(space: Space) -> tuple[int, ...]:
    """Number of options of each choice of an action.

    Raises:
        ModelError: the action has a leaf without options; every such leaf is named.
    """
    others = [
        f"{name}, a {type(leaf).__name__}"
        for name, leaf in leaves(space, "action")
        if not isinstance(leaf, (Discrete, MultiDiscrete))
    ]
    if others:
        raise ModelError(
            f"Q-learning, and sac without a Box, chooses among finitely many options, and there is "
            f"{' and '.join(others)}: use sac or td3 for real numbers, MultiDiscrete of twos for bits, ppo for both "
            "together"
        )
    return choices(space)
