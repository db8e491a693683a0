"""Nothing is built: a push changes the spec alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlctl_ci.builders.child import Reader, read
from rlctl_ci.core.build_attempt import Job
from rlctl_ci.store.records import Artifact


@dataclass(frozen=True, slots=True)
class NoBuilder:
    """`ArtifactBuilder` of nothing: the commit is only read.

    Args:
        read: reads the commit.
    """

    read: Reader = read

    def make(self, job: Job, source: Path) -> None:
        self.read(job, source, "spec")

    def push(self, job: Job, made: Any) -> Sequence[Artifact]:
        return []
