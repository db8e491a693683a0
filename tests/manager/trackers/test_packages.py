"""Calls to each package, by modules that stand for them; `make trackers` asks the packages themselves."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from rlctl.spec.schema import Mlflow, Wandb
from rlctl_agents.manager.trackers.base import Point, TrackedRun, Tracker

UID = "ab" * 16


def opened(name: str, module: ModuleType, section: object, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Tracker:
    """A tracker on a module that stands for its package, of the second manager of a run."""
    monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, f"rlctl_agents.manager.trackers.{name}", raising=False)
    run = TrackedRun("pole", UID, 2, folder / "results", folder, {"env": {"id": "a"}, "seed": 3})
    tracker: Tracker = importlib.import_module(f"rlctl_agents.manager.trackers.{name}").open_run(section, run)
    monkeypatch.delitem(sys.modules, f"rlctl_agents.manager.trackers.{name}")
    return tracker


@pytest.mark.parametrize("variable", ["WANDB_MODE", "WANDB_PROJECT"])
def test_weights_and_biases_is_told_what_the_spec_says_and_the_id_of_the_run(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "online")  # what the spec says is given, so that no variable counts
    wandb: Any = MagicMock(spec=ModuleType)
    wandb.Settings, wandb.init = dict, MagicMock()
    tracker = opened("wandb", wandb, Wandb(group="poles", tags=["a"]), tmp_path, monkeypatch)
    told = wandb.init.call_args.kwargs
    assert (told["mode"], told["project"], told["group"], told["id"]) == ("offline", "rlctl", "poles", UID)
    assert (told["name"], told["dir"], told["tags"]) == ("pole", tmp_path / "results", ["a"])
    assert told["config"] == {"env": {"id": "a"}, "seed": 3}
    run = wandb.init.return_value
    for steps in (2000, 1500):
        tracker.add(Point(steps, 1.7e9, {"return/train": 1.0}))
    tracker.end("failed")
    rows = [(one.args[0]["agent_steps"], one.kwargs["step"]) for one in run.log.call_args_list]
    assert rows == [(2000, 20_000_000), (1500, 20_000_001)], "an older point does not lower the step of W&B's own"
    run.define_metric.assert_any_call("*", step_metric="agent_steps")
    run.summary.__setitem__.assert_called_with("state", "failed")
    run.finish.assert_called_once_with(exit_code=1)


def mlflow(client: Any) -> tuple[ModuleType, ModuleType]:
    """Modules `mlflow` and `mlflow.entities`."""
    module, entities = ModuleType("mlflow"), ModuleType("mlflow.entities")
    vars(module)["MlflowClient"] = lambda uri: SimpleNamespace(uri=uri, **client)
    for name in ("Metric", "Param", "RunTag"):
        vars(entities)[name] = lambda *values: values
    return module, entities


@pytest.mark.parametrize("known", [False, True])
def test_mlflow_goes_on_with_the_run_of_that_uid_and_parameters_that_changed_become_tags(
    known: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    run = SimpleNamespace(info=SimpleNamespace(run_id="r1"))
    data = SimpleNamespace(params={"seed": "2"} if known else {}, tags={})

    def log_batch(run_id: str, **what: Any) -> None:
        told.append((run_id, what))

    def create_run(experiment: str, run_name: str, tags: dict[str, str]) -> Any:
        told.append(("created", tags))
        return run

    def search_runs(experiments: list[str], text: str, max_results: int) -> list[Any]:
        assert UID in text
        return [run] if known else []

    client = {
        "get_experiment_by_name": lambda name: None,
        "create_experiment": lambda name, place: "7",
        "search_runs": search_runs,
        "update_run": lambda run_id, status: told.append(("status", status)),
        "create_run": create_run,
        "get_run": lambda run_id: SimpleNamespace(data=data),
        "log_batch": log_batch,
        "set_terminated": lambda run_id, status: told.append(("end", status)),
    }
    module, entities = mlflow(client)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    tracker = opened("mlflow", module, Mlflow(group="poles"), tmp_path, monkeypatch)
    assert ("r1", {"tags": [("group", "poles")]}) in told
    if known:
        assert told[0] == ("status", "RUNNING")
        assert ("r1", {"params": [("env.id", "a")]}) in told
        assert ("r1", {"tags": [("changed.seed", "3")]}) in told
    else:
        assert told[0] == ("created", {"rlctl.uid": UID})
        assert ("r1", {"params": [("env.id", "a"), ("seed", "3")]}) in told
    assert tracker.where == f"run r1 of experiment rlctl, sqlite:///{tmp_path}/mlflow.db"
    tracker.add(Point(100, 1.5, {"info/a..b/train": 0.5, "info/../train": 0.25, "kl(pi,mu)": 2.0}))
    values = {"info/a..b/train": 0.5, "info_train": 0.25, "kl_pi_mu_": 2.0}
    metrics = [(name, value, 1500, 100) for name, value in values.items()]
    assert told[-1] == ("r1", {"metrics": metrics}), "a name that MLflow refuses would cost the whole point"
    tracker.end("replaced")
    assert told[-1][0] == "r1", "whoever has taken over says how the run ends"
    tracker.end("stopped")
    assert told[-1] == ("end", "KILLED")
