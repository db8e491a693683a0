"""PPO, APPO, DQN and SAC beside other trainers: as `bench`, with tasks in which rows are learned from several times."""

from __future__ import annotations

from benchmarks.peers.bench import ALGORITHMS, compare, plot, table
from benchmarks.shared.session import Session

__all__ = ["TITLE", "measure", "plot", "table"]

TITLE = "PPO, APPO, DQN and SAC beside other trainers"


def measure(session: Session) -> None:
    """Measure every cell."""
    compare(session, ALGORITHMS)
