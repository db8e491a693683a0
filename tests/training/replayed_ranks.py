"""Processes of test_replayed_together.py: two learners that step together on rows that each has drawn."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

import numpy as np
import torch
from torch import distributed

from rlctl_agents.training.collective import Collective
from rlctl_agents.training.trainer import Trainer
from rlctl_agents.types.control import GroupPlace
from tests.algorithms import test_q_learning, test_twin_critics

CPU = torch.device("cpu")
WORLD, STEPS, STARVED = 2, 4, 2


def run_rank(rank: int, name: str, folder: Path) -> None:
    """Learn beside another, once without rows, and write what came of it."""
    making = test_q_learning if name.endswith("dqn") else test_twin_critics
    options = name == "sac of options"
    one, memory = making.made("sac", test_q_learning.MASKED) if options else making.made(name, making.PLAIN)
    torch.manual_seed(rank)
    memory.random = np.random.default_rng(rank)
    place = GroupPlace(1, rank, WORLD, key="of this test")
    store = distributed.FileStore(str(folder / "store"), WORLD)
    collective = Collective(place, store, CPU, one_machine=True)  # type: ignore[arg-type]
    trainer = Trainer(one, policy="main", lineage=1, device=CPU)
    trainer.join(collective)
    values = {}
    for step in range(STEPS):
        updated = trainer.update(None if rank == 0 and step == STARVED else making.drawn(memory, 16))
        values = updated.stats
    found = {
        f"{key}/{part}": value.numpy()
        for key, module in one.modules.items()
        for part, value in module.state_dict().items()
    }
    np.savez(folder / f"{rank}.npz", td_error=values["td_error"], learned=trainer.learned_steps, **found)
    collective.close()


def main(name: str, folder: Path) -> int:
    """Both ranks, as processes that share what was imported; the exit code: how many failed."""
    torch.set_num_threads(1)
    children = []
    for rank in range(WORLD):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                run_rank(rank, name, folder)
                code = 0
            except Exception:
                traceback.print_exc()
            finally:
                os._exit(code)
        children.append(child)
    return sum(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
