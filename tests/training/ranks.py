"""Processes of test_together.py: learners that step together on recorded segments. `python -m` runs one."""

from __future__ import annotations

import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

import numpy as np
import torch
from msgspec import Struct

from rlctl.spec import algorithms as specs
from rlctl.spec.schema import Network
from rlctl_agents.algorithms.appo import Appo
from rlctl_agents.algorithms.base import AllReduce, Batch
from rlctl_agents.algorithms.clipped import ClippedAlgorithm
from rlctl_agents.algorithms.impala import Impala
from rlctl_agents.algorithms.ppo import Ppo
from rlctl_agents.experience.batching import column_axes
from rlctl_agents.manager.membership.learner_groups import Groups
from rlctl_agents.manager.membership.leases import Holder
from rlctl_agents.training.collective import Collective
from rlctl_agents.training.group_store import GroupStore
from rlctl_agents.training.trainer import Trainer
from rlctl_agents.types.control import Enlist, GroupPlace, Note, StoreReply
from rlctl_agents.types.experience import ModelRef
from rlctl_agents.types.spaces import Box, Discrete, Spaces
from rlctl_agents.wire.rpc.client import RpcClient
from rlctl_agents.wire.rpc.server import Handler, RpcServer
from rlctl_agents.wire.sockets import Wire
from tests.manager.world import boot
from tests.support.batches import batch, memory
from tests.support.chain import schema_of, settings

SPACES, NETWORK = Spaces(Box((2,), "float32"), Discrete(3)), Network(hidden=[16], core="lstm", width=8)
CONFIG = settings(max_grad_norm=0.05)  # of gradients that are larger: what is clipped is the norm of all
VALUE = settings(max_grad_norm=0.05, batch_size=60, value_batches=2, value_minibatch_size=120, buffer_batches=1)
# an epoch is one minibatch, so that no order of columns matters; what is recorded is far from the policy at the start
CLIPPED = {
    "ppo": specs.Ppo(
        unroll_length=5, batch_size=60, minibatch_size=60, epochs=4, lr=0.01, target_kl=0.03, max_grad_norm=0.05
    ),
    "appo": specs.Appo(
        unroll_length=5, batch_size=60, minibatch_size=120, reuse=8, buffer_batches=2, target_every_updates=3, lr=0.01,
        target_kl=0.003, max_grad_norm=0.05,
    ),
}  # fmt: skip
CLIPPED |= {  # in fp32, with the gradient in closed form; Adam's epsilon keeps rounding from becoming a step
    f"{name}_mlp": config.model_copy(update={"optimizer_eps": 0.01, "lr": 0.05}) for name, config in CLIPPED.items()
}
SCHEMA = schema_of(CONFIG, NETWORK, SPACES)
STREAMS, STEPS = 12, 10
CPU = torch.device("cpu")


def in_fp64(algorithm: Impala | ClippedAlgorithm) -> None:
    """Its networks."""
    algorithm.additive = True  # its loss is that of the segments, in other numbers
    for net in (algorithm.net, algorithm.modules.get("target", algorithm.net)):
        net.double()
        for layer in net.modules():
            if isinstance(layer, torch.nn.Linear):  # the torso makes fp32 of what it sees
                layer.register_forward_pre_hook(lambda _, inputs: tuple(one.double() for one in inputs))


def doubled(batch: Batch) -> Batch:
    """Observations and rewards in fp64 too."""
    fields = {name: one.double() if one.is_floating_point() else one for name, one in batch.fields.items()}
    return batch._replace(fields=fields)


class Double(Impala):
    def loss(self, batch: Batch):  # type: ignore[no-untyped-def]
        return super().loss(doubled(batch))


class DoublePpo(Ppo):
    def prepare(self, batch: Batch | None, all_reduce: AllReduce) -> Batch | None:
        return super().prepare(batch and doubled(batch), all_reduce)


class DoubleAppo(Appo):
    def prepare(self, batch: Batch | None, all_reduce: AllReduce) -> Batch | None:
        return super().prepare(batch and doubled(batch), all_reduce)


def fresh(seed: int = 1, micro_batch_rows: int | None = None, *, name: str = "impala") -> Trainer:
    kinds = {"impala": Double, "value": Double, "ppo": DoublePpo, "appo": DoubleAppo, "ppo_mlp": Ppo, "appo_mlp": Appo}
    config = VALUE if name == "value" else CLIPPED.get(name, CONFIG)
    network = Network(hidden=[16]) if name == "value" or name.endswith("_mlp") else NETWORK
    algorithm = kinds[name](config, network, SPACES, seed=seed)
    if not name.endswith("_mlp"):
        in_fp64(algorithm)
    return Trainer(algorithm, policy="main", lineage=3, device=CPU, micro_batch_rows=micro_batch_rows)


def recorded(step: int, learning: Trainer, first: int = 0, count: int = STREAMS) -> Batch:
    """Columns first..first+count of the batch of one step: the same for every caller."""
    rng, whole = np.random.default_rng(step), memory(SCHEMA, STREAMS)
    rows, shape = SCHEMA.unroll_length, (SCHEMA.unroll_length, STREAMS)
    whole.fields["obs"][:] = rng.normal(size=(rows + 1, STREAMS, 2))
    whole.fields["action"][:] = rng.integers(0, 3, shape)
    whole.fields["reward"][:] = rng.normal(size=shape)
    whole.fields["log_prob"][:] = np.log(rng.uniform(0.2, 0.5, shape))
    whole.fields["first"][:] = rng.uniform(size=(rows + 1, STREAMS)) < 0.1
    whole.fields["terminated"][:] = rng.uniform(size=shape) < 0.1
    whole.fields["valid"][:] = rng.uniform(size=shape) < np.linspace(0.3, 1.0, STREAMS)  # not as many in each part
    whole.version[:] = step
    part = memory(SCHEMA, count)
    for name, axis in column_axes(SCHEMA).items():
        at = (slice(None),) * axis + (slice(first, first + count),)
        part.fields[name][:] = whole.fields[name][at]
    part.version[:] = step
    part.used = count
    return batch(part)


def by_itself(batch: Batch, algorithm: ClippedAlgorithm) -> Batch:
    """As if the policy as it is now had chosen the actions."""
    fields, steps = batch.fields, SCHEMA.unroll_length
    with torch.no_grad():
        params, _ = algorithm.net.unroll({"obs": fields["obs"]}, fields["first"], {})
        score = algorithm.net.distribution.score(params[:steps], {"action": fields["action"]}, None)
    return batch._replace(fields={**fields, "log_prob": score.log_prob})


def first_ratio(algorithm: ClippedAlgorithm, batch: Batch, all_reduce: AllReduce) -> float:
    """Root of the mean square of ratio - 1 in the first minibatch: the KL's estimate is half of that square."""
    with torch.no_grad():
        whole = algorithm.prepare(batch, all_reduce)
        assert whole is not None
        minibatch = next(iter(algorithm.minibatches(whole, torch.Generator().manual_seed(0))))
    return float((2 * algorithm.loss(minibatch).metrics["kl"].double().clamp(min=0)).sqrt())


def weights(learning: Trainer) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    state = learning.capture()
    return {name: value for name, value in state.arrays.items() if not name.startswith("random/")}


def parts(world: int) -> list[tuple[int, int]]:
    """First column and columns of each rank: not the same where it does not come out even."""
    counts = [STREAMS // world + (rank < STREAMS % world) for rank in range(world)]
    return [(sum(counts[:rank]), count) for rank, count in enumerate(counts)]


def run_rank(rank: int, world: int, address: str, folder: Path, name: str, micro_batch_rows: int | None) -> None:
    """One rank: seeded by the last one; after ten steps one more, for which rank 0 has no batch.

    Args:
        name: of the algorithm; of PPO and APPO rank 0 has no first batch either.
    """
    line = RpcClient(Wire(), address, boot(rank))
    place = enlisted(line, rank, world)
    assert (place.rank, place.world, place.seed) == (rank, world, world - 1)
    store = GroupStore(lambda note: line.call(note, StoreReply, deadline_s=20)[0], boot(rank), place.number, wait_s=60)
    collective = Collective(place, store, CPU, one_machine=True)
    learning = fresh(seed=1 if rank == world - 1 else 100 + rank, micro_batch_rows=micro_batch_rows, name=name)
    data = collective.broadcast(learning.capture().pack() if rank == world - 1 else None, world - 1)
    if rank != world - 1:
        learning.take_over(data)
    learning.join(collective)
    first, count = parts(world)[rank]
    values, steps, ratios = {}, [], []
    for step in range(STEPS):
        if name == "ppo_mlp":
            mine = by_itself(recorded(step, learning, first, count), learning._algorithm)  # type: ignore[arg-type]
            ratios.append(first_ratio(learning._algorithm, mine, learning._all_reduce))  # type: ignore[arg-type]
        starved = name in CLIPPED and step == 0 and rank == 0
        assert collective.agree(ready=not starved, held=False, starved=starved).update
        updated = learning.update(None if starved else recorded(step, learning, first, count))
        values = updated.stats
        steps.append(updated.steps)
    found = {
        **weights(learning),
        "rows": np.array(learning.consumed_steps),
        "taken": np.array(learning.taken_rows),
        "learned": np.array(learning.learned_steps),
        "loss": np.array(values["total"]),
        "steps": np.array(steps),
        "ratios": np.array(ratios),
    }
    agreed = collective.agree(ready=rank > 0, held=False, starved=rank == 0)
    assert agreed.update
    learning.update(None if rank == 0 else recorded(STEPS, learning, first, count))
    found |= {f"starved/{name}": value for name, value in weights(learning).items()}
    np.savez(folder / f"{rank}.npz", **found)
    collective.close()


def enlisted(line: RpcClient, rank: int, world: int) -> GroupPlace:
    """A place in the first group; the last rank has weights."""
    while True:
        ask = Enlist(boot(rank), 0 if rank == world - 1 else -1, rank == world - 1, ModelRef("main", 3, 0))
        place = line.call(ask, GroupPlace, deadline_s=20)[0]
        if place.number:
            return place


def serve(children: list[int], world: int, address: str) -> int:
    """Serve groups as the manager does, until all children have ended; how many failed."""
    groups = Groups(time.monotonic, lambda *_, **__: None)
    live = [Holder("learner", rank, boot(rank), 0.0, 0.0) for rank in range(world)]
    answers: dict[type[Struct], Handler] = {
        Enlist: lambda ask, _: (groups.enlist(ask, live, world), []),
        Note: lambda note, _: (groups.note(note), []),
    }
    server, failed = RpcServer(Wire(), address, "f" * 16, answers), 0
    while children:
        server.serve(0.05)
        for child in [*children]:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                children.remove(child)
                failed += os.waitstatus_to_exitcode(status) != 0
    server.close()
    return failed


def main(world: int, folder: Path, name: str = "impala", micro_batch_rows: int | None = None) -> int:
    """All ranks, as processes that share what was imported, and a manager's answers; the exit code: how many failed."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="rlctl-", dir="/tmp") as short:
        address, children = f"ipc://{short}/manager", []
        for rank in range(world):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    run_rank(rank, world, address, folder, name, micro_batch_rows)
                    code = 0
                except Exception:
                    traceback.print_exc()
                finally:
                    os._exit(code)
            children.append(child)
        return serve(children, world, address)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:4], *map(int, sys.argv[4:])))
