"""Nothing is built: a push changes the spec alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlctl_ci.builders.source import spec_at
from rlctl_ci.store.records import Artifact
from rlctl_ci.work import Job


class Nothing:
    """A `Maker`."""

    def make(self, job: Job, source: Path) -> None:
        spec_at(job.project, source)

    def push(self, job: Job, made: Any) -> Sequence[Artifact]:
        return []
