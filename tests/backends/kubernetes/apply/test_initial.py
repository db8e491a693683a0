"""The policy that a new run begins with, on its way to the manager of a cluster's run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlctl.backends.base import Applied
from rlctl.backends.kubernetes.api.interface import Key
from rlctl.backends.kubernetes.apply import initial
from rlctl.errors import PartlyApplied, WorkloadFailed
from rlctl.spec.layout import Layout
from rlctl_agents.manager.web.initial_policy import InitialPolicy
from rlctl_agents.manager.web.stored_files import StoredFiles
from rlctl_agents.runtime.http_server import Request
from tests.backends.kubernetes.fakes.lab import Lab, spec_of
from tests.backends.kubernetes.fakes.selectors import forbidden

INIT = {"init": {"run": "pong@best"}}


class Volume:
    """A manager that answers as ours does, over a folder."""

    def __init__(self, folder: Path) -> None:
        self.layout = Layout(folder / "volume")
        self.layout.make()
        self.policy, self.files = InitialPolicy(self.layout), StoredFiles(self.layout)
        self.posts = 0
        self.refuse: Callable[[int], tuple[int, Any] | None] = lambda post: None

    def __call__(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        if path.startswith("/files"):
            answer = self.files.answer({"folder": "init"})
        elif path == "/init":
            self.posts += 1
            if (refused := self.refuse(self.posts)) is not None:
                return refused
            answer = self.policy.answer(Request(method, path, {}, json.dumps(body).encode()))
        else:
            return 200, {"phase": "running"}
        return answer.status, json.loads(answer.body)


@pytest.fixture
def volume(lab: Lab, tmp_path: Path) -> Volume:
    lab.api.manager = made = Volume(tmp_path)
    return made


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    folder = tmp_path / "policy"
    folder.mkdir()
    (folder / "policy.json").write_text("{}")
    (folder / "run.json").write_text("{}")
    (folder / "policy.safetensors").write_bytes(bytes(range(256)) * 3000)
    (folder / "model.sig").write_text("stays here")
    return folder


def up(lab: Lab, get: Callable[[], Path]) -> list[Applied]:
    spec = spec_of(**INIT)
    plan, rendered = lab.plan(spec)
    return list(lab.backend().apply(plan, rendered, spec.model_dump(mode="json"), initial=get))


def never() -> Path:
    raise AssertionError("it is there")


def test_a_policy_is_brought_in_pieces_and_once(lab: Lab, volume: Volume, policy: Path) -> None:
    applied = up(lab, lambda: policy)
    assert Applied("init", "created", "768,004 bytes brought to the manager") in applied
    there = {path.name: path.read_bytes() for path in volume.layout.init.iterdir()}
    assert there == {name: (policy / name).read_bytes() for name in ("policy.json", "policy.safetensors", "run.json")}
    assert volume.posts == 6, "three pieces, two files, and that they are whole"
    lab.settle()
    assert {one.what for one in up(lab, never)} == {"unchanged"}


def test_an_up_that_was_killed_before_it_is_gone_on_with(lab: Lab, volume: Volume, policy: Path) -> None:
    volume.refuse = lambda post: (507, {"error": {"message": "the volume takes nothing: No space left"}})
    with pytest.raises(PartlyApplied, match=r"did not reach it: .*No space left"):
        up(lab, lambda: policy)
    assert volume.posts == 1, "a full volume is told at once"
    assert not volume.layout.init.exists()
    volume.refuse = lambda post: None
    assert any(one.object == "init" for one in up(lab, lambda: policy))
    assert volume.layout.init.is_dir()


def test_the_manager_is_waited_for_until_it_answers(
    lab: Lab, volume: Volume, policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[int] = []

    def manager(method: str, path: str, body: Any) -> tuple[int, Any]:
        answers.append(1)
        if len(answers) < 4:
            raise OSError("nobody listens")
        return volume(method, path, body)

    lab.api.manager = manager
    up(lab, lambda: policy)
    assert volume.layout.init.is_dir()
    assert len(answers) > 4


def test_a_manager_that_is_started_again_between_two_pieces_is_waited_for(
    lab: Lab, volume: Volume, policy: Path
) -> None:
    def away(post: int) -> None:
        if 3 <= post <= 7:
            raise OSError("it is started again")

    volume.refuse = away
    up(lab, lambda: policy)
    there = {path.name: path.read_bytes() for path in volume.layout.init.iterdir()}
    assert there["policy.safetensors"] == (policy / "policy.safetensors").read_bytes()
    assert volume.posts == 6 + 5, "the pieces that have arrived are not sent again"


def test_a_manager_that_stays_away_between_two_pieces_ends_the_upload_after_a_minute(
    lab: Lab, volume: Volume, policy: Path
) -> None:
    away_s: list[float] = []

    def away(post: int) -> None:
        if post >= 3:
            away_s.append(lab.api.clock())
            raise OSError("it is gone")

    volume.refuse = away
    with pytest.raises(PartlyApplied, match="the policy that the run begins with did not reach it"):
        up(lab, lambda: policy)
    assert away_s[-1] - away_s[0] == pytest.approx(60.0, abs=5.0)


def test_without_the_right_to_reach_the_manager_it_is_told_at_once(
    lab: Lab, volume: Volume, policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forward(pod: str, port: int) -> Any:
        raise forbidden(Key("Pod", pod), "create")

    monkeypatch.setattr(lab.api, "forward", forward)
    with pytest.raises(PartlyApplied, match=r"cannot be brought to it: .*forbidden") as told:
        up(lab, lambda: policy)
    assert "pods/portforward" in told.value.hint


def test_a_right_that_is_withdrawn_between_two_pieces_is_told_at_once(
    lab: Lab, volume: Volume, policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward, began = lab.api.forward, lab.api.clock()

    def withdrawn(pod: str, port: int) -> Any:
        if volume.posts >= 2:
            raise forbidden(Key("Pod", pod), "create")
        return forward(pod, port)

    monkeypatch.setattr(lab.api, "forward", withdrawn)
    with pytest.raises(PartlyApplied, match=r"did not reach it: .*forbidden"):
        up(lab, lambda: policy)
    assert volume.posts == 2
    assert lab.api.clock() - began < 30.0


def test_a_manager_that_never_answers_ends_the_wait(
    lab: Lab, volume: Volume, policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def manager(method: str, path: str, body: Any) -> tuple[int, Any]:
        raise OSError("nobody listens")

    lab.api.manager = manager
    monkeypatch.setattr(initial, "PATIENCE_S", 20.0)
    with pytest.raises(PartlyApplied, match=r"the manager of run pong, .* has not answered for 20 s"):
        up(lab, lambda: policy)
    broken = replace(lab.backend().processes("pong")[0], role="manager", permanent=True, reason="no such image")
    monkeypatch.setattr("rlctl.backends.kubernetes.access.listing.processes", lambda api, state: [broken])
    with pytest.raises(WorkloadFailed, match=r"the manager, .* cannot run: no such image"):
        up(lab, lambda: policy)
