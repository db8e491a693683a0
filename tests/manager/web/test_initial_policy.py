"""The policy that a run begins with, as its manager takes it: whole, or not at all."""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from rlctl.spec.layout import Layout
from rlctl_agents.manager.web.initial_policy import InitialPolicy
from rlctl_agents.runtime.http_server import Request

FILES = {"policy.json": b"{}", "policy.safetensors": b"0123456789", "run.json": b"[]"}
WHOLE = {name: hashlib.sha256(data).hexdigest() for name, data in FILES.items()}


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout(tmp_path / "run")
    made.make()
    return made


def post(taker: InitialPolicy, body: Any) -> tuple[int, Any]:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = taker.answer(Request("POST", "/init", {}, text))
    return answer.status, json.loads(answer.body)


def piece(name: str, data: bytes, offset: int = 0) -> dict[str, Any]:
    return {"name": name, "offset": offset, "data": base64.b64encode(data).decode()}


def test_pieces_become_a_folder_once_they_are_whole_and_it_stays(layout: Layout) -> None:
    taker = InitialPolicy(layout)
    for name, data in FILES.items():
        for offset in range(0, len(data), 4):
            assert post(taker, piece(name, data[offset : offset + 4], offset))[0] == 200
        assert not layout.init.exists()
    post(taker, piece("policy.json", b"{ "))
    assert post(taker, {"whole": WHOLE}) == (
        400,
        {"error": {"message": "ValueError: policy.json is not as it was sent"}},
    )
    post(taker, piece("policy.json", b"{}"))
    assert post(taker, {"whole": WHOLE}) == (200, {"there": True})
    assert {path.name: path.read_bytes() for path in layout.init.iterdir()} == FILES
    assert post(taker, piece("policy.json", b"x")) == (200, {"there": True})
    assert (layout.init / "policy.json").read_bytes() == b"{}"


def test_what_a_killed_command_has_left_is_not_part_of_it(layout: Layout) -> None:
    taker = InitialPolicy(layout)
    for name, data in FILES.items():
        post(taker, piece(name, data + b"longer before"))
        post(taker, piece(name, data))
    fewer = {name: digest for name, digest in WHOLE.items() if name != "run.json"}
    assert post(taker, {"whole": fewer})[0] == 200
    assert {path.name for path in layout.init.iterdir()} == set(fewer)


@pytest.mark.parametrize(
    "body",
    [
        b"not json", b"[]", b"7", {}, {"whole": {}}, {"whole": {"policy.json": "0" * 64}}, {"whole": ["policy.json"]},
        piece("../run/lock", b"x"), piece("model.sig", b"x"), piece("policy.json", b"x", -1),
        piece("policy.json", b"x", 2**40), {"name": "policy.json", "offset": "0", "data": ""},
        {"name": "policy.json", "offset": 0, "data": "*"}, {"name": "policy.json", "offset": 0},
    ],
)  # fmt: skip
def test_anything_else_is_refused_and_writes_nothing_outside(layout: Layout, body: Any) -> None:
    before = {path for path in layout.root.rglob("*") if "init" not in path.name}
    status, answer = post(InitialPolicy(layout), body)
    assert status in (400, 503)
    assert answer["error"]["message"]
    assert not layout.init.exists()
    assert {path for path in layout.root.rglob("*") if "init" not in path.name} == before


def test_a_full_volume_is_told_apart_from_one_that_may_come_back(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, status in ((errno.ENOSPC, 507), (errno.EROFS, 507), (errno.EIO, 503)):
        failing = OSError(number, os.strerror(number))
        monkeypatch.setattr(Path, "mkdir", Mock(side_effect=failing))
        assert post(InitialPolicy(layout), piece("policy.json", b"{}"))[0] == status
