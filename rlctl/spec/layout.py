"""Where everything of a run lies: the only module that knows folder names."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


def state_home() -> Path:
    """`$XDG_STATE_HOME/rlctl`, where runs and the index of runs live unless the spec says otherwise."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "rlctl"


@dataclass(frozen=True, slots=True)
class Layout:
    """The folders of one run: `<storage>/runs/<name>-<uid8>/`."""

    root: Path

    @classmethod
    def of(cls, storage: Path, run: str, uid: str) -> Layout:
        return cls(storage / "runs" / f"{run}-{uid[:8]}")

    @property
    def run(self) -> Path:
        """What was applied: documents, run files, the state of the run."""
        return self.root / "run"

    @property
    def models(self) -> Path:
        return self.root / "models"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def results(self) -> Path:
        """Status, events, evaluations and TensorBoard files; what `status` and `logs` answer from after the end."""
        return self.root / "results"

    def make(self) -> None:
        """Create all of them, readable by their owner only."""
        for folder in (self.run, self.models, self.checkpoints, self.logs, self.results):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
