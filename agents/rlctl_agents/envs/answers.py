"""Return values of `reset` and `step` of a Gymnasium environment, and faults of those written for the old Gym."""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

WANTED = {
    "reset": "2 (obs, info): return obs, {} where the old Gym had obs",
    "step": (
        "5 (obs, reward, terminated, truncated, info): where the old Gym had done, "
        "return terminated for an end of the episode and truncated for one that was cut short"
    ),
}


def values_fault(verb: str, answer: Any) -> str | None:
    """Fault in the number or kind of the values that `reset` or `step` returned.

    Returns:
        The fault in words; None when there is none.
    """
    if not isinstance(answer, (tuple, list)):
        got = f"a {type(answer).__name__}"  # its entries or keys must not be counted as values
    elif len(answer) != (5 if verb == "step" else 2):
        got = f"{len(answer)} value{'' if len(answer) == 1 else 's'}"
    elif verb == "reset" and not isinstance(answer[1], Mapping | None):
        got = f"2 values of which the second is no dict but a {type(answer[1]).__name__}"  # a pair that is all obs
    else:
        return None
    return f"{verb} returned {got}; Gymnasium wants {WANTED[verb]}"


def truth(value: Any) -> bool:
    """Convert a flag of one step, a bool or one number that is 0 or 1.

    Raises:
        ValueError: it is neither; NaN and text are true to Python.
    """
    if isinstance(value, bool | np.bool_):
        return bool(value)
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "biuf" or array.item() not in (0, 1):
        raise ValueError(value)
    return bool(array.item())


def reward_number(value: Any) -> float:
    """Convert a reward of one step.

    Raises:
        TypeError, ValueError, OverflowError: it is not a number, or none that a float holds; text is refused, though
            Python could read it.
    """
    if isinstance(value, str | bytes):
        raise TypeError(value)
    return float(value)  # numpy by itself stores None as NaN


def scalars_fault(answer: Any) -> str:
    """Fault of one step's reward, or else of its flags terminated and truncated, that could not be stored."""
    _, reward, terminated, truncated, _ = answer
    with suppress(TypeError, ValueError, OverflowError):
        reward_number(reward)
        got = f"terminated {reprlib.repr(terminated)} and truncated {reprlib.repr(truncated)}"
        return f"step returned {got}; Gymnasium wants one truth each: return True or False"
    return f"step returned reward {reprlib.repr(reward)}; Gymnasium wants one number: return a float"


def raised(verb: str, env: Any, error: BaseException) -> str:
    """Message for an exception of `reset`, `step` or `render`.

    Args:
        verb: name of the method.
        env: the environment that was called, with all its wrappers.
        error: the exception that it raised.
    """
    inner = env.unwrapped
    wrapped = inner is not env
    if verb == "reset" and isinstance(error, TypeError) and not _takes(inner.reset, wrapped):
        return (
            "reset takes no seed and options; Gymnasium calls reset(seed=..., options=...): "
            "write def reset(self, *, seed=None, options=None), call super().reset(seed=seed) and return obs, {}"
        )
    if wrapped and "unpack" in str(error):
        # a wrapper such as TimeLimit failed to unpack, and its error names neither value nor method; the process ends
        # with it, so that one more step does no harm
        with suppress(Exception):
            answer = inner.reset() if verb == "reset" else inner.step(inner.action_space.sample())
            found = values_fault(verb, answer)
            if found is not None:
                return found
    return f"{verb} raised {type(error).__name__}: {error}"


def _takes(reset: Any, wrapped: bool) -> bool:
    """True if `reset` takes the arguments of rlctl, or those of a wrapper, which passes all on."""
    given = {"seed": 0, "options": None} if wrapped else {"seed": 0}
    try:
        inspect.signature(reset).bind(**given)
    except TypeError:
        return False
    except ValueError:  # written in C, without a signature
        return True
    return True
