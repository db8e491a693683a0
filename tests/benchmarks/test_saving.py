"""The benchmark of saved replays: a shard that is saved, a run that is looked at after its power was lost, a table."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import pytest

from benchmarks.replay import buffers, power, saved, saving
from benchmarks.shared import store
from benchmarks.shared.store import Row
from rlctl_agents.checkpoint.state import pack_state


@pytest.mark.parametrize("case", buffers.CASES)
def test_a_shard_is_saved_while_it_is_drawn_from_and_read_again(case: str, tmp_path: Path) -> None:
    found = saved.main(case, 1024, 0.001, tmp_path)
    assert found.keys() >= saving.COLUMNS.keys()
    assert found["bytes"] > 1024 * (7056 if case == "frames" else 32)
    assert len(list(tmp_path.iterdir())) == 1


def generation(folder: Path, number: int, rows: int, *, without: str = "") -> dict[str, Any]:
    """A committed one."""
    files, sha256 = {}, {}
    for part in ("learner", "replay0", "replay1"):
        data = pack_state({}, {"filled": rows})
        file = f"main-{number:06d}-{part}-0123456789ab.safetensors"
        (folder / file).write_bytes(data)
        files[part], sha256[part] = file, hashlib.sha256(data).hexdigest()
    files.pop(without, None)
    told = {"number": number, "steps": 100 * number, "parts": files, "sha256": sha256, "absent": {}}
    (folder / f"generation-{number:06d}.json").write_text(json.dumps({"format": 1, "generation": told}))
    return told


def test_a_run_has_to_come_back_with_the_newest_parts_that_can_be_read(tmp_path: Path) -> None:
    generation(tmp_path, 3, 30)
    newest = generation(tmp_path, 5, 50, without="replay1")
    wanted = power._wanted(tmp_path)
    assert (wanted.newest, wanted.learner["number"], wanted.shards) == (5, 5, {0: (5, 50), 1: (3, 30)})
    (tmp_path / newest["parts"]["learner"]).write_bytes(b"")
    (tmp_path / newest["parts"]["replay0"]).unlink()
    wanted = power._wanted(tmp_path)
    assert (wanted.newest, wanted.learner["number"], wanted.shards) == (5, 3, {0: (3, 30), 1: (3, 30)})


def test_what_a_loss_has_interrupted_is_told(tmp_path: Path) -> None:
    generation(tmp_path, 3, 30)
    assert power._half_written(tmp_path) == ""
    for name in ("main-000004-replay1.safetensors.tmp.host.7", "main-000004-learner-0123456789ab.safetensors",
                 "main-000004-policy-0123456789ab.json"):  # fmt: skip
        (tmp_path / name).touch()
    assert power._half_written(tmp_path) == "replay1 half, learner uncommitted"


def test_damage_is_noticed(tmp_path: Path) -> None:
    for seed in range(8):
        generation(tmp_path, 3, 30)
        generation(tmp_path, 5, 50)
        part = power._damage(tmp_path, random.Random(seed)).split()[0]
        wanted = power._wanted(tmp_path)
        numbers = {"learner": wanted.learner["number"], **{f"replay{at}": wanted.shards[at][0] for at in range(2)}}
        assert numbers == {name: 3 if name == part else 5 for name in numbers}


def test_whatever_does_not_come_back_as_it_should_is_a_violation(tmp_path: Path) -> None:
    generation(tmp_path, 3, 30)
    wanted, before = power._wanted(tmp_path), power.Before(3, 320, "")
    resumed, restored = {"number": 3, "steps": 300}, {0: (3, 30), 1: (3, 30)}

    def violations(*, before: Any = before, resumed: Any = resumed, restored: Any = restored) -> int:
        return len(power._violations(before, wanted, resumed, restored, damaged=False))

    assert violations() == 0
    assert violations(before=before._replace(committed=4)) == 1
    assert violations(resumed={"number": 2, "steps": 300}) == 1
    assert violations(resumed={"number": 3, "steps": 200}) == 1
    assert violations(restored={0: (3, 30)}) == 1
    assert violations(restored={0: (3, 30), 1: (3, 29)}) == 1


def test_the_table_has_what_it_costs_and_how_losses_ended(tmp_path: Path) -> None:
    rows: list[Row] = [
        {"case": case, "rows": "1000000", "bytes": "7.1e7", **dict.fromkeys(saving.COLUMNS, "0.5")}
        for case in saving.CASES
    ]
    trained = {"case": "training", "what": "frames", "checkpoint": "full", "rows": "100000", "updates_per_s": "20"}
    trained |= {"bytes": "710000000", "saved_after_s": "4", "lost_s_of_a_generation": "0.6", "lost_s_error": "0.1"}
    rows += [trained | {"lost_share": "0.01"}, {**trained, "checkpoint": "none", "failed": "TimeoutError: no"}]
    loss = {name: store.as_text(1) for name in power.SHOWN} | {"case": "power"}
    rows += [{**loss, "held": "1", "violations": ""}, {**loss, "held": "0", "violations": "a generation is gone"}]
    text = "\n".join(saving.table(rows))
    assert "**A shard of 1,000,000 rows, frames.**" in text
    assert "| 100,000, frames | full | 20 | 710,000,000 | 4 | 0.6 ± 0.1 | 1.0% |" in text
    assert "TimeoutError: no" in text
    assert "2 losses of power, CartPole with Ape-X DQN: 1 came back as they should" in text
    assert "a generation is gone" in text
    saving.plot(rows, tmp_path / "plot.svg")
    assert (tmp_path / "plot.svg").exists()
