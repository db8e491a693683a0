"""Folders of a run, and the names of files that several packages share."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rlctl.errors import UsageError

API_VERSION = "rlctl/v1"
"""Version of the status and of every other JSON document that a command prints."""
RUN_FILE_FORMAT = 1
"""Version of the format of run files."""
LIVE = "live.json"
"""Document with the values that may change while the manager runs."""
EVALUATIONS = "evaluations.jsonl"
EVENTS = "events.jsonl"
"""Files of `results`, which are appended to."""


def state_home() -> Path:
    """`$XDG_STATE_HOME/rlctl`, where runs and the index of runs live unless the spec says otherwise.

    A relative path is ignored, as the XDG specification says.

    Raises:
        UsageError: this user has no home folder either.
    """
    said = os.environ.get("XDG_STATE_HOME", "")
    home = os.path.expanduser("~")
    if not os.path.isabs(said) and not os.path.isabs(home):
        raise UsageError("no folder for the runs of this user is known", hint="set HOME or XDG_STATE_HOME to one")
    return (Path(said) if os.path.isabs(said) else Path(home) / ".local" / "state") / "rlctl"


@dataclass(frozen=True, slots=True)
class Layout:
    """The folders of one run: `<storage>/runs/<name>-<uid8>/`."""

    root: Path

    @classmethod
    def of(cls, storage: Path, run: str, uid: str) -> Layout:
        return cls(storage / "runs" / f"{run}-{uid[:8]}")

    @property
    def run(self) -> Path:
        """Folder of what was applied: documents, run files, the state of the run."""
        return self.root / "run"

    @property
    def models(self) -> Path:
        return self.root / "models"

    @property
    def init(self) -> Path:
        """The policy that the run began with: whole once its `policy.json` is there. Only where the spec has `init`."""
        return self.root / "init"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def results(self) -> Path:
        """Status, events, evaluations and TensorBoard files; what `status` answers from after the end."""
        return self.root / "results"

    @property
    def episodes(self) -> Path:
        """Episodes as data, for `rlctl repro`, and films of evaluations; made by the manager with the first."""
        return self.results / "episodes"

    @property
    def status_file(self) -> Path:
        """The last status that the manager stored."""
        return self.results / "status.json"

    @property
    def finished_file(self) -> Path:
        """End of the run, written by its manager."""
        return self.run / "finished.json"

    @property
    def failure_file(self) -> Path:
        """Why the run has failed, written by the watch of its processes on this machine."""
        return self.run / "failure.json"

    def make(self) -> None:
        """Create the folders of the run, readable by their owner only."""
        for folder in (self.run, self.models, self.checkpoints, self.logs, self.results):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)


class RunPlace(Protocol):
    """Folders of a run, or those that a new run would have."""

    @property
    def uid(self) -> str:
        """Uid of the run: recorded at its first `up`, or minted just now."""

    @property
    def layout(self) -> Layout:
        """Folders of the run."""

    @property
    def sockets(self) -> Path:
        """Private folder for sockets, named by the first eight digits of the uid."""
