"""Trackers as they are installed: two managers of one run write, and what arrived is read back.

`make trackers` runs it in an environment of its own, which has the packages of images.core with both trackers and no
others. Nothing here reaches a network.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlctl.spec.schema import Trackers
from rlctl_agents.manager.trackers import curves as module
from rlctl_agents.manager.trackers.base import TrackedRun
from rlctl_agents.manager.trackers.curves import WENT_BACK, Curves, opened_trackers
from rlctl_agents.manager.trackers.tensorboard import CurveWriter

UID, KEY = "ab" * 16, "f" * 40
CONFIG = {"run": "pole", "env": {"id": "CartPole-v1"}, "algorithm": {"lr": 0.0003}, "model": {"hidden": [64, 64]}}
LATER = CONFIG | {"algorithm": {"lr": 0.001}}
ASKED = Trackers.model_validate(
    {"wandb": {"tags": ["ppo"]}, "mlflow": {"tags": {"team": "robots"}}},
).grouped("poles")
POINTS = {
    "return/train": [(1000, 20.0), (2000, 30.0), (2500, 35.0), (3000, 40.0)],
    "return/evaluation": [(1500, 195.5)],
    "info/is_success/train": [(1000, 0.5)],
    "loss/policy": [(1000, -0.25)],
}
"""Curve -> what all managers have written: agent steps and value."""


def live(root: Path, term: int) -> Curves:
    """A manager begins; the spec of the first one is changed while it runs."""
    before = CONFIG if term == 1 else LATER
    results = root / "runs" / "pole-abababab" / "results"
    results.mkdir(parents=True, exist_ok=True)
    run = TrackedRun("pole", UID, term, results, root, before)
    tensorboard = CurveWriter(results / "tensorboard", term)
    config = iter([before])
    return Curves(tensorboard, opened_trackers(ASKED, run), config=lambda: next(config, LATER), hurry=lambda: False)


def write(root: Path) -> list[str]:
    """Two managers, of which the first one is told to leave; what they say of trackers."""
    said = []
    with live(root, 1) as curves:
        curves.add(1000, {"return/train": 20.0, "info/is_success/train": 0.5, "loss/policy": -0.25})
        curves.add(2000, {"return/train": 30.0})
        curves.add(1500, {"return/evaluation": 195.5})
        said += curves.turn()
    said += [*curves.turn(), *(one["text"] for one in curves.problems), *curves.losses]
    with live(root, 2) as curves:
        curves.void_from(2000)
        curves.add(2500, {"return/train": 35.0})
        curves.add(3000, {"return/train": 40.0})
        curves.outcome = "finished"
    return [*said, *curves.turn(), *(one["text"] for one in curves.problems), *curves.losses]


def check_mlflow(root: Path) -> None:
    """One run, of both managers."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{root / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("rlctl")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("pole", "FINISHED")
    wanted = {"run": "pole", "env.id": "CartPole-v1", "algorithm.lr": "0.0003", "model.hidden": "[64, 64]"}
    assert run.data.params == wanted, run.data.params
    tags = {key: value for key, value in run.data.tags.items() if not key.startswith("mlflow.")}
    wanted = {"rlctl.uid": UID, "group": "poles", "team": "robots", "changed.algorithm.lr": "0.001"}
    assert tags == wanted, tags
    for name, points in POINTS.items():
        history = client.get_metric_history(run.info.run_id, name)
        assert sorted((one.step, one.value) for one in history) == points, name
    assert [one.step for one in client.get_metric_history(run.info.run_id, WENT_BACK)] == [2000]


def records(file: Path) -> Iterator[Any]:
    """Records of a .wandb file: LevelDB's log format behind a head of seven bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, whole = file.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        checksum, size, kind = struct.unpack("<IHB", data[at : at + 7])
        body = data[at + 7 : at + 7 + size]
        assert checksum == zlib.crc32(bytes([kind]) + body)
        at, whole = at + 7 + size, whole + body
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(whole)
            whole = b""


def check_wandb(root: Path) -> None:
    """An offline folder of each manager, of the same run."""
    files = sorted((root / "runs" / "pole-abababab" / "results" / "wandb").glob(f"offline-run-*-{UID}/run-{UID}.wandb"))
    assert len(files) == 2, files
    found: dict[str, list[tuple[int, float]]] = {}
    steps, exits, states, configs = list[int](), list[int](), list[str](), list[dict[str, Any]]()
    for file in files:
        config: dict[str, Any] = {}
        for record in records(file):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                run = record.run
                assert (run.run_id, run.project, run.display_name) == (UID, "rlctl", "pole")
                assert (run.run_group, [*run.tags]) == ("poles", ["ppo"])
                config |= {one.key: json.loads(one.value_json) for one in run.config.update}
            elif kind == "config":
                config |= {one.key or one.nested_key[0]: json.loads(one.value_json) for one in record.config.update}
            elif kind == "history":
                row = {"/".join(one.nested_key) or one.key: json.loads(one.value_json) for one in record.history.item}
                steps.append(record.history.step.num)
                for name in POINTS.keys() & row.keys():
                    found.setdefault(name, []).append((row["agent_steps"], row[name]))
            elif kind == "summary":
                states += [json.loads(one.value_json) for one in record.summary.update if one.key == "state"]
            elif kind == "exit":
                exits.append(record.exit.exit_code)
        configs.append(config)
    assert found == POINTS, found
    assert steps == sorted(set(steps)), "W&B drops points whose step is not above the one before"
    assert exits == [255, 0], exits
    assert states == ["running", "stopped", "running", "finished"], states
    assert configs[0]["env"] == {"id": "CartPole-v1"}, configs
    assert configs[0]["algorithm"] == {"lr": 0.001}, configs


def check_tensorboard(root: Path) -> None:
    """The same curves under the same names."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    found: dict[str, list[tuple[int, float]]] = {}
    for file in sorted((root / "runs" / "pole-abababab" / "results" / "tensorboard").iterdir()):
        for event in EventFileLoader(str(file)).Load():
            for one in event.summary.value:
                found.setdefault(one.tag, []).append((event.step, one.tensor.float_val[0]))
    assert found == POINTS, found


def main() -> int:
    """Write, and read back; 1 where something did not arrive."""
    os.environ["WANDB_API_KEY"] = KEY
    module.CLOSE_S = 300.0  # the first import, and a new database, take long on a busy machine
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        said = write(root)
        print("\n".join(said))
        assert sum(text.startswith("tracker ") and UID[:8] in text for text in said) >= 1, said
        assert not [text for text in said if "lost" in text or KEY in text], said
        check_tensorboard(root)
        check_mlflow(root)
        check_wandb(root)
        told = [path for path in root.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
        assert not told, told
    print("trackers: what was written was read back")
    return 0


if __name__ == "__main__":
    sys.exit(main())
