"""Lookup of environments by their name in the spec; every fault in words."""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType
from typing import Any

from rlctl_agents.envs.base import EnvRefused
from rlctl_agents.types.by_name import LoadError, load

EXTRAS = {
    "gymnasium": "agents", "ale_py": "atari", "cv2": "atari", "Box2D": "box2d", "mujoco": "mujoco",
    "imageio": "mujoco", "minatar": "minatar",
}  # fmt: skip
"""A package that a simulator needs -> the extra of rlctl that brings it."""


def family(name: str) -> ModuleType:
    """The module of a family of environments.

    Raises:
        EnvRefused: its simulator is not installed.
    """
    try:
        return importlib.import_module(f"rlctl_agents.envs.{name}")
    except ImportError as error:
        raise missing(f"envs of the family {name}", error) from error


def missing(what: str, error: BaseException) -> EnvRefused:
    """Error for a `what` that failed for lack of a package, perhaps several exceptions below `error`."""
    cause: BaseException | None = error
    while cause is not None and not (isinstance(cause, ImportError) and cause.name):
        cause = cause.__cause__ or cause.__context__
    package = cause.name.split(".")[0] if isinstance(cause, ImportError) and cause.name else ""
    if package in EXTRAS:
        return EnvRefused(f'{what} needs the package {package}: pip install "rlctl[{EXTRAS[package]}]"')
    if package and isinstance(cause, ModuleNotFoundError):
        return EnvRefused(f"{what} needs the package {package}, which is not installed")
    return EnvRefused(f"{what}: {type(error).__name__}: {error}")


def attribute(id: str) -> Any | None:
    """Object that `module:attribute` names; None for a Gymnasium id, such as `module:Id-v0`.

    Raises:
        EnvRefused: no such module or attribute, not callable, or the module's import fails.
    """
    module_name, colon, name = id.partition(":")
    if not colon or not name.isidentifier():
        return None
    try:
        found = load(id)
    except LoadError as fault:
        cause = fault.__cause__
        if isinstance(cause, ModuleNotFoundError) and (cause.name or "").split(".")[0] in EXTRAS:
            raise missing(f"{id}: {module_name}", cause) from cause
        raise EnvRefused(str(fault)) from fault
    if not callable(found):
        raise EnvRefused(f"{id} is a {type(found).__name__}; it must be a class or a function that makes environments")
    return found


def takes_envs(factory: Any) -> bool:
    """True if the factory makes a vector of environments with the protocol `Env`."""
    try:
        return "envs" in inspect.signature(factory).parameters
    except (TypeError, ValueError):  # written in C, without a signature
        return False
