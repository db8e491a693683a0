"""Algorithms, found by name: a module of this package, or `package.module:Class` of the user's own."""

from __future__ import annotations

import importlib.util
import inspect

from rlctl.spec import algorithms as specs
from rlctl.spec.schema import Spec
from rlctl_agents.algorithms.base import Algorithm, AlgorithmError
from rlctl_agents.types import by_name
from rlctl_agents.types.experience import Schema, check_schema
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


def class_of(config: specs.Algorithm) -> type[Algorithm]:
    """The class of an algorithm with these settings: `class` of the section, else that of its name.

    Raises:
        AlgorithmError: as `find`; or its batches come from elsewhere than those of the name.
    """
    built = find(config.name)
    if not isinstance(config, specs.BuiltIn) or config.class_ is None:
        return built
    found = find(config.class_)
    if found.source != built.source:
        raise AlgorithmError(
            f"algorithm {config.class_}: gets its batches from {found.source}, and {config.name} from {built.source}; "
            f"derive it from {built.__module__}.{built.__name__}, or give it a name of its own, name: {config.class_}"
        )
    return found


def schema_of(spec: Spec, spaces: Spaces, policy: str) -> Schema:
    """Experience schema of a policy's segments.

    Args:
        spec: the whole spec, or a role's part of it.

    Raises:
        AlgorithmError: there is no such algorithm, it does not fit the spaces, or such segments cannot be sent.
    """
    chosen = spec.policy(policy)
    schema = class_of(chosen.algorithm).schema(chosen.algorithm, chosen.model, spaces)
    try:
        check_schema(schema)
    except ValueError as error:
        raise AlgorithmError(str(error)) from error
    return schema
