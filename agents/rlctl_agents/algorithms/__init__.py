"""Algorithms, found by name: a module of this package, or `package.module:Class` of the user's own."""

from __future__ import annotations

import importlib.util
import inspect

from rlctl.spec.schema import Spec
from rlctl_agents.algorithms.base import Algorithm, AlgorithmError
from rlctl_agents.types import by_name
from rlctl_agents.types.experience import Schema
from rlctl_agents.types.spaces import Spaces


def find(name: str) -> type[Algorithm]:
    """The class of an algorithm: `impala` is the class `Impala` of the module `rlctl_agents.algorithms.impala`.

    Raises:
        AlgorithmError: there is no such module or class, its import fails, or it is no complete `Algorithm`.
    """
    path = name if ":" in name else f"{__name__}.{name}:{''.join(word.capitalize() for word in name.split('_'))}"
    if ":" not in name and importlib.util.find_spec(f"{__name__}.{name}") is None:
        raise AlgorithmError(f"algorithm {name} is not built in; one of your own is package.module:Class")
    try:
        found = by_name.load(path)
    except by_name.LoadError as error:
        raise AlgorithmError(f"algorithm {error}") from error
    if not (inspect.isclass(found) and issubclass(found, Algorithm)):
        raise AlgorithmError(f"algorithm {path}: must be a class derived from {Algorithm.__module__}.Algorithm")
    if inspect.isabstract(found):
        raise AlgorithmError(f"algorithm {path}: does not define {', '.join(sorted(found.__abstractmethods__))}")
    return found


def schema_of(spec: Spec, spaces: Spaces, policy: str) -> Schema:
    """Experience schema of a policy's segments.

    Args:
        spec: the whole spec, or a role's part of it.

    Raises:
        AlgorithmError: there is no such algorithm, or it does not fit the spaces.
    """
    chosen = spec.policy(policy)
    return find(chosen.algorithm.name).schema(chosen.algorithm, chosen.model, spaces)
