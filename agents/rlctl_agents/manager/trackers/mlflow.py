"""MLflow: one run for all managers of a run, found again by its uid."""

from __future__ import annotations

import logging
import os
import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # nothing is sent to others than the run's own server

# a server that is down is reported within minutes, and retried by us: MLflow's own are 8 tries of 120 s, and pauses
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

from rlctl.spec.schema import Mlflow
from rlctl_agents.manager.trackers.base import ManagerEnd, Point, TrackedRun, flat

UID = "rlctl.uid"
"""Tag by which a run is found again."""
CHANGED = "changed."
"""Prefix of the tag of a spec value that has changed: MLflow's parameters never change."""
STATUS = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}
BATCH = 100
"""Parameters or tags in one request to MLflow, at most."""


class MlflowRun:
    """Open run at MLflow.

    Args:
        section: section of the spec.
        run: run that is tracked.
    """

    def __init__(self, section: Mlflow, run: TrackedRun) -> None:
        for name in ("mlflow", "alembic"):  # they log every table of a new database
            logging.getLogger(name).setLevel(logging.WARNING)
        uri = section.uri or f"sqlite:///{run.storage / 'mlflow.db'}"
        self._client = MlflowClient(uri)
        found = self._client.get_experiment_by_name(section.experiment)
        experiment = self._client.create_experiment(section.experiment, _artifacts(uri)) if found is None else found
        self._experiment = experiment if isinstance(experiment, str) else experiment.experiment_id
        before = self._client.search_runs([self._experiment], f"tags.`{UID}` = '{run.uid}'", max_results=1)
        if before:
            self._id: str = before[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
        else:
            created = self._client.create_run(self._experiment, run_name=run.name, tags={UID: run.uid})
            self._id = created.info.run_id
        group = {} if section.group is None else {"group": section.group}
        self._tag({**group, **section.tags})
        self.configure(run.config)
        self.where = f"run {self._id} of experiment {section.experiment}, {uri}"

    def configure(self, config: Mapping[str, Any]) -> None:
        """Log another resolved spec: new values as parameters, changed ones as tags."""
        flattened = {_key(name): value for name, value in flat(config).items()}
        wanted, known = flattened, self._client.get_run(self._id).data
        new = [Param(key, value) for key, value in wanted.items() if key not in known.params]
        for at in range(0, len(new), BATCH):
            self._client.log_batch(self._id, params=new[at : at + BATCH])
        self._tag(
            {
                f"{CHANGED}{key}": value
                for key, value in wanted.items()
                if key in known.params and known.tags.get(f"{CHANGED}{key}", known.params[key]) != value
            }
        )

    def add(self, point: Point) -> None:
        """Add a point to each curve."""
        at = int(point.unix * 1000)
        metrics = [Metric(_key(name), value, at, point.steps) for name, value in point.values.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def end(self, outcome: ManagerEnd) -> None:
        """Report the outcome of this manager."""
        if outcome != "replaced":
            self._client.set_terminated(self._id, STATUS[outcome])

    def _tag(self, tags: Mapping[str, str]) -> None:
        some = [RunTag(key, value) for key, value in tags.items()]
        for at in range(0, len(some), BATCH):
            self._client.log_batch(self._id, tags=some[at : at + BATCH])


def open_run(section: Mlflow, run: TrackedRun) -> MlflowRun:
    """Create or resume the run at MLflow."""
    return MlflowRun(section, run)


def _artifacts(uri: str) -> str | None:
    """Folder of an experiment's files, beside the SQLite database; None: as its server decides."""
    parts = urlsplit(uri)
    return str(Path(unquote(parts.path)[1:]).with_name("mlartifacts")) if parts.scheme == "sqlite" else None


def _key(name: str) -> str:
    """Name of a curve or a value as MLflow takes it: letters, digits and `_-. /:`, a path without empty parts and dots
    alone."""
    name = re.sub(r"[^\w\-./ :]", "_", name, flags=re.ASCII)
    return name if posixpath.normpath(name) == name else re.sub(r"[./]{2,}|/$", "_", name)
