"""Schemas of segments, compared."""

from __future__ import annotations

from rlctl_agents.types.experience import Field, Schema, schema_difference

OBS, ACTION = Field("obs", "float32", (4,), "row+1"), Field("action", "int64", (), "row")
SCHEMA = Schema(5, (OBS, ACTION))


def test_different_ideas_of_a_segment_are_named() -> None:
    assert schema_difference(SCHEMA, SCHEMA) == ""
    assert schema_difference(SCHEMA, Schema(9, SCHEMA.fields)) == "segments of 5 steps instead of 9"
    more = Schema(5, (*SCHEMA.fields, Field("q", "float32", (), "row")))
    difference = schema_difference(more, SCHEMA)
    assert '"name":"q"' in difference
    assert difference.endswith("instead of []")
    assert schema_difference(Schema(5, (ACTION, OBS)), SCHEMA) == "segments with their fields in another order"
