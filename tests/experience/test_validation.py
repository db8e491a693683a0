"""Values that no actor in good order sends."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rlctl.spec.schema import Network
from rlctl_agents.algorithms.base import standard_fields
from rlctl_agents.experience.validation import LOG_PROB_TOLERANCE, ValueCheck
from rlctl_agents.types.experience import Arrays, Field, Schema
from rlctl_agents.types.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Spaces, Tuple
from tests.support.chain import schema_of, settings

T, B = 5, 3
EVERYTHING = Spaces(
    Dict({"camera": Box((2, 2), "uint8"), "level": Discrete(4), "position": Box((3,), "float32")}),
    Tuple((Discrete(2), MultiDiscrete((3, 5)), MultiBinary(4), Box((2,), "float32"))),
)
LONE = Spaces(Box((4,), "float32"), Discrete(2))


def schema_for(spaces: Spaces, network: Network | None = None) -> Schema:
    return schema_of(settings(), network or Network(), spaces)


def honest(schema: Schema, streams: int = B) -> tuple[np.ndarray[Any, Any], Arrays]:
    """A block without a fault: one episode ends in row 1 of stream 0."""
    fields: dict[str, np.ndarray[Any, Any]] = {
        one.name: np.zeros(schema.block_shape(one, streams), one.dtype) for one in schema.fields
    }
    fields["valid"][:] = True
    fields["terminated"][1, 0], fields["valid"][2, 0], fields["first"][3, 0] = True, False, True
    fields["log_prob"][:] = -0.7
    if "legal" in fields:
        fields["legal"][..., 0] = True
    return np.full((schema.unroll_length, streams), 6, np.int64), dict(fields)


def fault(spaces: Spaces, change: Callable[[Any], object], schema: Schema | None = None) -> str:
    """Fault that is found once one thing was changed."""
    schema = schema or schema_for(spaces)
    version, fields = honest(schema)
    change(fields)
    return ValueCheck(spaces, schema)(version, 6, fields)


def setting(name: str, value: float, at: tuple[int, ...] = (2, 1)) -> Callable[[Any], None]:
    def change(fields: Any) -> None:
        fields[name][at] = value

    return change


@pytest.mark.parametrize("spaces", [EVERYTHING, LONE, Spaces(LONE.obs, LONE.action, legal=True)])
def test_an_honest_block_has_no_fault(spaces: Spaces) -> None:
    assert fault(spaces, lambda fields: None) == ""


@pytest.mark.parametrize("value", [-1, 2, 2**62, -(2**63)])
def test_a_discrete_action_outside_its_space_is_named(value: int) -> None:
    said = fault(LONE, setting("action", value))
    assert said == f"action holds {value} in 1 of 15 places; it must be from 0 to 1"


@pytest.mark.parametrize(
    ("name", "value", "at"),
    [
        ("action.0", 2, (4, 2)),
        ("action.1", 3, (0, 0, 0)),
        ("action.1", 5, (0, 0, 1)),
        ("action.1", -1, (0, 0, 1)),
        ("action.2", 2, (1, 1, 3)),
        ("action.2", -1, (1, 1, 3)),
        ("action.3", np.nan, (1, 1, 1)),
        ("obs.level", 4, (5, 0)),
        ("obs.level", -1, (5, 0)),
        ("obs.position", np.nan, (5, 2, 0)),
        ("obs.position", np.inf, (0, 0, 0)),
        ("obs.position", -np.inf, (0, 0, 0)),
        ("reward", np.nan, (0, 0)),
        ("log_prob", np.nan, (0, 0)),
    ],
)
def test_a_fault_in_any_part_of_a_dict_or_tuple_is_found(name: str, value: float, at: tuple[int, ...]) -> None:
    assert fault(EVERYTHING, setting(name, value, at)).startswith(f"{name} holds ")


def test_entry_by_entry_of_a_multidiscrete_the_largest_value_is_right() -> None:
    def change(fields: Any) -> None:
        fields["action.1"][:] = (2, 4)

    assert fault(EVERYTHING, change) == ""


def test_numbers_so_large_that_their_sum_would_be_infinite_are_finite() -> None:
    assert fault(LONE, setting("obs", 3e38, (slice(None),))) == ""


@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_a_recurrent_state_that_is_not_finite_is_found(core: Any) -> None:
    schema = schema_for(LONE, Network(core=core, width=8))
    assert fault(LONE, setting("core.h", np.inf, (0, 0)), schema) == "core.h holds inf in 1 of 24 places"


def test_frames_that_travel_once_are_looked_at_as_they_travel() -> None:
    spaces = Spaces(Box((4, 2), "float32", stack=4), Discrete(2))
    assert fault(spaces, setting("obs", np.nan, (8, 0, 1))) == "obs holds nan in 1 of 54 places"


@pytest.mark.parametrize("value", [0.5, 0.001, np.inf])
def test_a_log_probability_of_a_discrete_action_above_0_is_found(value: float) -> None:
    assert fault(LONE, setting("log_prob", value)).startswith("log_prob holds ")


@pytest.mark.parametrize("value", [0.0, 1e-6, LOG_PROB_TOLERANCE / 2, -1.7e38])
def test_a_log_probability_may_be_rounded_to_a_little_above_0(value: float) -> None:
    assert fault(LONE, setting("log_prob", value)) == ""


def test_a_log_probability_of_minus_infinity_is_found() -> None:
    assert fault(LONE, setting("log_prob", -np.inf)) == "log_prob holds -inf in 1 of 15 places"


def test_a_density_may_be_above_1() -> None:
    spaces = Spaces(LONE.obs, Tuple((Discrete(2), Box((1,), "float32"))))
    assert fault(spaces, setting("log_prob", 7.0)) == ""


def test_an_action_that_is_not_legal_is_found_unless_nothing_is_or_the_row_is_not_valid() -> None:
    spaces = Spaces(LONE.obs, Discrete(3), legal=True)
    assert "not legal" in fault(spaces, setting("action", 2))
    assert fault(spaces, setting("action", 2, (2, 0))) == "", "what follows an end acts on nothing"

    def nothing_legal(fields: Any) -> None:
        fields["legal"][2, 1] = False
        fields["action"][2, 1] = 2

    assert fault(spaces, nothing_legal) == ""


def test_each_choice_of_an_action_is_held_against_its_part_of_the_masks() -> None:
    spaces = Spaces(LONE.obs, Dict({"b": Discrete(3), "a": MultiDiscrete((2, 3))}), legal=True)

    def taken(name: str, *at: int) -> Callable[[Any], None]:
        def change(fields: Any) -> None:
            fields["legal"][:] = np.array([1, 0, 0, 1, 0, 0, 0, 1], np.bool_)
            fields["action.a"][..., 1], fields["action.b"][:] = 1, 2
            if name:
                fields[name][(2, 1, *at)] = 1 - fields[name][(2, 1, *at)] % 2

        return change

    assert fault(spaces, taken("")) == ""
    for name, at in (("action.a", (0,)), ("action.a", (1,)), ("action.b", ())):
        assert fault(spaces, taken(name, *at)).startswith(f"{name} holds ")


@pytest.mark.parametrize(
    ("name", "value", "at"),
    [
        ("valid", True, (2, 0)),
        ("valid", False, (3, 2)),
        ("first", False, (3, 0)),
        ("first", True, (2, 2)),
        ("terminated", True, (2, 0)),
        ("truncated", True, (2, 0)),
        ("terminated", True, (0, 1)),
    ],
)
def test_flags_that_contradict_each_other_are_found(name: str, value: bool, at: tuple[int, int]) -> None:
    assert fault(LONE, setting(name, value, at))


@pytest.mark.parametrize("value", [7, -1])
def test_rows_of_weights_that_do_not_exist_yet_or_never_did_are_found(value: int) -> None:
    schema = schema_for(LONE)
    version, fields = honest(schema)
    check = ValueCheck(LONE, schema)
    version[1, 1] = value
    assert check(version, 6, fields).startswith(f"version holds {value} ")


@pytest.mark.parametrize("space", [Box((0,), "float32"), Box((3,), "int32")])
def test_fields_without_numbers_or_without_limits_are_left_alone(space: Space) -> None:
    schema = Schema(T, (*standard_fields(Spaces(space, Discrete(2))), Field("log_prob", "float32", (), "row")))
    assert fault(Spaces(space, Discrete(2)), lambda fields: None, schema) == ""


def test_a_check_allocates_little_beside_the_block() -> None:
    schema = schema_for(LONE)
    version, fields = honest(schema, 4096)
    check = ValueCheck(LONE, schema)
    tracemalloc.start()
    try:
        assert check(version, 6, fields) == ""
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * version.size, "flags, a byte for each row"
    assert peak < 0.1 * (version.nbytes + sum(values.nbytes for values in fields.values()))
