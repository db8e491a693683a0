"""The spec: its schema, and the way from files to a checked object. Nothing here imports torch, numpy or zmq."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlctl.spec.editors import json_schema
    from rlctl.spec.loading import Loaded, load
    from rlctl.spec.machine import Machine
    from rlctl.spec.schema import Spec

__all__ = ["Loaded", "Machine", "Spec", "json_schema", "load"]

_HOMES = {"Loaded": "loading", "load": "loading", "Machine": "machine", "Spec": "schema", "json_schema": "editors"}


def __getattr__(name: str) -> Any:
    """Import at first use: a reader of `rlctl.spec.layout` alone does not wait for pydantic."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
