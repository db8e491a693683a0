"""The base of every spec class, and what a change of a field does to a live run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler
from pydantic_core import CoreSchema

Role = Literal["manager", "modelpool", "replay", "learner", "inference", "actor", "evaluator"]
ROLES: tuple[Role, ...] = get_args(Role)
"""Roles in start order: a role may need those before it."""


class Model(BaseModel):
    """Frozen, closed (an unknown key is an error), and described by the docstrings below its fields."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False, serialize_by_alias=True
    )


@dataclass(frozen=True, slots=True)
class Applies:
    """Effect of a change of a field on a live run, and the roles that read the field.

    Every leaf of the spec carries one. A role's run file holds exactly the fields that name the role, so its hash, and
    with it a restart, depends on nothing else. A mark on a field that holds a model covers all of that model.
    """

    when: Literal["live", "restart", "new_run"]
    roles: tuple[Role, ...]
    in_run_file: bool = True
    """False: the field shapes the pods of the roles, which do not read it themselves; unused on one machine."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler(core)
        if "$ref" in schema:
            schema = {"allOf": [schema]}
        return {**schema, "x-applies": self.when, "x-read-by": list(self.roles)}


def live(*roles: Role) -> Applies:
    """The change reaches the running processes; nothing restarts. Without roles, the backend acts on it."""
    return Applies("live", roles)


def restart(*roles: Role, in_run_file: bool = True) -> Applies:
    """The roles named are restarted; the learner goes on from its newest generation."""
    return Applies("restart", roles, in_run_file)


def new_run(*roles: Role) -> Applies:
    """The change is refused on a live run: its experience or weights would no longer fit."""
    return Applies("new_run", roles)


@dataclass(frozen=True, slots=True)
class Mutable:
    """Marks a hyperparameter that population based training may change while a member lives."""


MUTABLE = Mutable()
