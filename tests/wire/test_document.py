"""The worked example of docs/wire.md is what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from rlctl_agents.types.experience import Field, Schema
from rlctl_agents.wire.classes import MANAGER, MODELPOOL
from rlctl_agents.wire.codec import BlockCodec
from rlctl_agents.wire.experience.protocol import (
    BlockMessage,
    Grant,
    SenderHello,
    encode,
    schema_digest,
    to_receiver,
    to_sender,
)

TEXT = (Path(__file__).parents[2] / "docs" / "wire.md").read_text()
SCHEMA = Schema(2, (Field("obs", "float32", (1,), "row+1"), Field("action", "int64", (), "row")))


def example(kind: str) -> bytes:
    found = re.search(rf"```{kind}\n([0-9a-f\n]+)```", TEXT)
    assert found
    return bytes.fromhex(found[1].replace("\n", ""))


def test_hello_and_grant_of_the_example_are_read_as_it_says() -> None:
    assert to_receiver(example("hello")) == SenderHello(
        2, "r1", "a7", "", 1, schema_digest(SCHEMA), 0, 0, 2, 0, 0, 2, 2
    )
    assert to_sender(example("grant")) == Grant(2, "c3", 1, 2, 0, 0)


def test_the_block_of_the_example_is_read_as_it_says_and_written_the_same() -> None:
    block = to_receiver(example("block"))
    assert isinstance(block, BlockMessage)
    assert encode(block) == example("block")
    version, fields = BlockCodec(SCHEMA).unpack(1, block.arrays, [])
    assert version.tolist() == [[5], [5]]
    assert fields["obs"].tolist() == [[[0.0]], [[0.5]], [[1.0]]]
    assert fields["action"].tolist() == [[1], [0]]
    assert np.frombuffer(block.stream, "<i8").tolist() == [3_000_000]


def test_who_may_ask_what_is_documented_as_it_is() -> None:
    rows = re.findall(r"^\| (manager|modelpool) \| ([\w, ]+) \| \w+ \|[^|]*\| ([\w, ]+) \|$", TEXT, re.MULTILINE)
    said = {(role, kind): frozenset(classes.split(", ")) for role, kinds, classes in rows for kind in kinds.split(", ")}
    tables = {"manager": MANAGER, "modelpool": MODELPOOL}
    assert said == {(role, kind.__name__): classes for role, table in tables.items() for kind, classes in table.items()}


def test_every_reason_for_a_rejection_is_documented() -> None:
    sources = Path(__file__).parents[2] / "agents" / "rlctl_agents" / "wire"
    names = "codec.py", "experience/protocol.py", "experience/receiver.py"
    code = "".join((sources / name).read_text() for name in names)
    reasons = set(re.findall(r'Rejected\(\s*"(\w+)"', code)) | {"quarantined"}
    assert len(reasons) > 15
    assert {reason for reason in reasons if f"`{reason}`" not in TEXT} == set()
