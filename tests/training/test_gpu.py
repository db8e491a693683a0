"""The learner's way over a GPU against what a CPU makes of the same: staging, compiled losses, updates, a group.

Every test runs on a CPU too, as far as a CPU has it; `pytest -m gpu` is the half that needs a GPU.
"""

from __future__ import annotations

import logging
import shutil
import threading
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.torch_version import TorchVersion

from rlctl.spec import algorithms as specs
from rlctl.spec.schema import Network
from rlctl_agents.algorithms.apex_dqn import ApexDqn
from rlctl_agents.algorithms.base import Algorithm
from rlctl_agents.algorithms.dqn import Dqn
from rlctl_agents.algorithms.impala import Impala
from rlctl_agents.algorithms.ppo import Ppo
from rlctl_agents.algorithms.r2d2 import R2d2
from rlctl_agents.algorithms.sac import Sac
from rlctl_agents.algorithms.td3 import Td3
from rlctl_agents.experience.batching import BatchMemory
from rlctl_agents.experience.replay.memory import shard_settings
from rlctl_agents.experience.replay.messages import drawn_schema
from rlctl_agents.experience.replay.source import ReplaySource
from rlctl_agents.experience.staging import Staging
from rlctl_agents.training.collective import Collective
from rlctl_agents.training.trainer import Trainer
from rlctl_agents.types.control import GroupPlace
from rlctl_agents.types.experience import ModelRef, Schema
from rlctl_agents.types.spaces import Box, Discrete, Spaces
from tests.experience.replay.shards import Run
from tests.support.chain import schema_of, settings

CPU = torch.device("cpu")
CONFIG, STREAMS = settings(max_grad_norm=0.5), 4
VECTOR, PIXELS = Box((2,), "float32"), Box((4, 84, 84), "uint8", 0, 255)
NETWORKS = {
    "mlp": (VECTOR, Network(hidden=[8])),
    "lstm": (VECTOR, Network(hidden=[8], core="lstm", width=6)),
    "gru": (VECTOR, Network(hidden=[8], core="gru", width=6)),
    "pixels": (PIXELS, Network(width=16, precision="fp32")),
    "pixels in bf16": (PIXELS, Network(width=16, precision="bf16")),
}
ON_A_CPU = {"inductor": "aot_eager", "cudagraphs": "eager"}
"""Backends that take the same graph as those for GPUs, and make no kernels."""
VIEWS_COPIES = TorchVersion(torch.__version__) >= TorchVersion("2.13")
"""Inductor views a copy of words as bytes: pytorch/pytorch#185515. Seen failing with 2.11, compiling with 2.13."""
EVERY_NETWORK = pytest.mark.parametrize("name", NETWORKS)
# what a compiler or a driver warns about is no fault of ours
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    if request.param == "cpu":
        return CPU
    if not torch.cuda.is_available():
        pytest.skip(
            f"NOT TESTED on a GPU: no CUDA device for torch {torch.__version__}. On a machine with an NVIDIA GPU and"
            " its driver, install a torch that is built with CUDA, then `pytest -m gpu`"
        )
    # ten bits of a product are fine in a training, and too few to compare two machines by
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    return torch.device("cuda", 0)


def schema(name: str) -> Schema:
    space, network = NETWORKS[name]
    return schema_of(CONFIG, network, Spaces(space, Discrete(3)))


def learning_on(device: torch.device, name: str) -> Trainer:
    """As on a GPU: a CPU copies its batches, and learns from them whole."""
    space, network = NETWORKS[name]
    algorithm = Impala(CONFIG, network, Spaces(space, Discrete(3)), seed=1)
    return Trainer(algorithm, policy="main", lineage=1, device=device, micro_batch_rows=10**6)


def filled(columns: BatchMemory, seed: int = 0) -> BatchMemory:
    rng, steps = np.random.default_rng(seed), columns.version.shape[0]
    obs, shape = columns.fields["obs"], (steps, STREAMS)
    obs[:] = rng.integers(0, 256, obs.shape) if obs.dtype == np.uint8 else rng.normal(size=obs.shape)
    columns.fields["action"][:] = rng.integers(0, 3, shape)
    columns.fields["reward"][:] = rng.normal(size=shape)
    columns.fields["log_prob"][:] = np.log(1 / 3)
    columns.fields["first"][:] = rng.uniform(size=(steps + 1, STREAMS)) < 0.2
    columns.fields["valid"][:] = rng.uniform(size=shape) < 0.9
    columns.used = STREAMS
    return columns


def learn(learning: Trainer, name: str, updates: int = 3) -> list[dict[str, float]]:
    """From other numbers in the same memory each time, staged by another thread as the intake does."""
    staging = Staging(learning._device, copies=True)
    columns, values = staging.allocate(schema(name), STREAMS), []
    for seed in range(updates):
        thread = threading.Thread(target=staging.begin, args=(filled(columns, seed),))
        thread.start()
        thread.join()
        values.append(learning.update(staging.batch(columns)).stats)
    return values


def require_close(found: Trainer, expected: Trainer, name: str) -> None:
    weights, tolerance = expected._algorithm.net.state_dict(), 1e-2 if "bf16" in name else 1e-4
    for key, value in found._algorithm.net.state_dict().items():
        torch.testing.assert_close(value.cpu(), weights[key], rtol=0.0, atol=tolerance)


@EVERY_NETWORK
def test_updates_are_those_of_a_cpu(name: str, device: torch.device) -> None:
    found, expected = learning_on(device, name), learning_on(CPU, name)
    before = expected.weights()
    for got, wanted in zip(learn(found, name), learn(expected, name), strict=True):
        assert got == pytest.approx(wanted, rel=5e-2 if "bf16" in name else 1e-3, abs=1e-3)
    assert expected.weights() != before
    require_close(found, expected, name)


def test_what_is_staged_is_what_is_learned_from_however_late_the_copy_is(device: torch.device) -> None:
    staging = Staging(device, copies=True)
    columns = staging.allocate(schema("pixels"), STREAMS)
    if device.type == "cuda":
        assert all(torch.from_numpy(values).is_pinned() for values in columns.fields.values())
    addresses = set()
    for seed in range(3):
        filled(columns, seed)
        if device.type == "cuda":
            with torch.cuda.stream(staging._stream):
                torch.cuda._sleep(200_000_000)  # a tenth of a second of the stream that copies
        staging.begin(columns)
        batch = staging.batch(columns)
        for name, values in columns.fields.items():
            np.testing.assert_array_equal(batch.fields[name].cpu().numpy(), values)
        assert {one.device for one in batch.fields.values()} == {device}
        addresses.add(batch.fields["obs"].data_ptr())
    assert len(addresses) == 1, "CUDA graphs read from one place"


def test_a_copy_waits_for_work_that_still_reads_the_batch_before_it(device: torch.device) -> None:
    staging = Staging(device, copies=True)
    columns = staging.allocate(schema("pixels"), STREAMS)
    filled(columns, 0)
    staging.begin(columns)
    batch, expected = staging.batch(columns), columns.fields["obs"].copy()
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda._sleep(200_000_000)  # a tenth of a second of the stream that learns
    kept = batch.fields["obs"].clone()  # queued alone, as what IMPALA and APPO keep of a batch
    staging.release(columns)
    filled(columns, 1)
    staging.begin(columns)
    np.testing.assert_array_equal(kept.cpu().numpy(), expected)


def test_draws_of_a_replay_are_learned_from_as_they_were_drawn_while_the_next_one_is_copied(
    device: torch.device,
) -> None:
    runs = [Run(2), Run(2)]
    for run in runs:
        for place in run.places:
            place.feed(400, 1.0)
        run.meet()
    there, here = Staging(device, copies=True), Staging(CPU)
    sources = [ReplaySource(run.drawer, one, 16) for run, one in zip(runs, (there, here), strict=True)]
    if device.type == "cuda":
        memories = list(sources[0]._free)
        assert all(torch.from_numpy(one).is_pinned() for memory in memories for one in memory.fields.values())
    addresses = []
    for _ in range(6):
        if device.type == "cuda":
            with torch.cuda.stream(there._stream):
                torch.cuda._sleep(200_000_000)  # a tenth of a second of the stream that copies
        assert all(one.step() for one in sources)
        found, expected = (one.take(0.0) for one in sources)
        assert found is not None
        assert expected is not None
        assert {one.device.type for one in found.fields.values()} == {device.type}
        for name, values in expected.fields.items():
            np.testing.assert_array_equal(found.fields[name].cpu().numpy(), values.numpy())
        addresses.append(found.fields["weight"].data_ptr())
        for one, batch in zip(sources, (found, expected), strict=True):
            one.update_priorities(batch, batch.fields["weight"])
            one.give_back(batch)
    assert len(set(addresses)) > 1, "one is learned from while another is filled"
    assert len(set(addresses)) < 6, "and all of them keep their place"


OTHERS: dict[str, tuple[type[Algorithm], specs.Algorithm]] = {
    "ppo": (Ppo, specs.Ppo(batch_size=32, unroll_length=8, minibatch_size=16, epochs=2)),
    "dqn": (Dqn, specs.Dqn(batch_size=16, minibatch_size=8, n_step=3)),
    "apex_dqn": (ApexDqn, specs.ApexDqn(batch_size=16, minibatch_size=8)),
    "r2d2": (
        R2d2, specs.R2d2(unroll_length=4, burn_in=4, sequence_length=8, batch_size=64, minibatch_size=32),
    ),
    "sac": (Sac, specs.Sac(batch_size=16, minibatch_size=4)),
    "sac, options": (Sac, specs.Sac(batch_size=16, minibatch_size=4)),
    "td3": (Td3, specs.Td3(batch_size=16, minibatch_size=4)),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_updates_of_other_algorithms_are_those_of_a_cpu(name: str, device: torch.device) -> None:
    kind, config = OTHERS[name]
    numbers = Box((2,), "float32", -1.0, 1.0)
    spaces = Spaces(VECTOR, numbers if name in ("sac", "td3") else Discrete(3))
    network = Network.model_validate({**getattr(config, "network", {}), "hidden": [8], "width": 8})
    rows = kind.schema(config, network, spaces)
    drawn = isinstance(config, specs.Replayed)
    taken = drawn_schema(rows, shard_settings(config)) if drawn else rows
    made: list[tuple[Trainer, list[dict[str, float]], list[torch.Tensor]]] = []
    for place, copies in ((device, True), (CPU, False)):
        torch.manual_seed(0)  # noise and minibatches are drawn on the CPU of both
        algorithm = kind(config, network, spaces, seed=1)
        trainer = Trainer(algorithm, policy="main", lineage=1, device=place)
        staging = Staging(place, copies=copies)
        memory = staging.allocate(taken, config.batch_size // config.unit_rows if drawn else STREAMS)
        seen, priorities = [], []
        for seed in range(3):
            staging.begin(random_rows(memory, seed))
            updated = trainer.update(staging.batch(memory))
            seen.append(updated.stats)
            priorities += [] if updated.priorities is None else [updated.priorities.cpu()]
        made.append((trainer, seen, priorities))
    (found, got, told), (expected, wanted, wanted_told) = made
    assert len(told) == len(wanted_told) == (3 if name in ("apex_dqn", "r2d2") else 0)
    for one, other in zip(told, wanted_told, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    for ours, theirs in zip(got, wanted, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-3)
    for part, module in expected._algorithm.modules.items():
        here = found._algorithm.modules[part].state_dict()
        for key, value in module.state_dict().items():
            torch.testing.assert_close(here[key].cpu(), value, rtol=0.0, atol=1e-4)


def random_rows(memory: BatchMemory, seed: int) -> BatchMemory:
    """Rows as any algorithm may be given, of no meaning."""
    rng = np.random.default_rng(seed)
    for name, values in memory.fields.items():
        if values.dtype == bool:
            values[:] = rng.uniform(size=values.shape) < (0.9 if name == "valid" else 0.1)
        elif values.dtype.kind == "f":
            values[:] = rng.uniform(-1, 0, values.shape)
        else:
            values[:] = rng.integers(1 if name == "steps" else 0, 3, values.shape)
    for name in ("weight", "steps"):
        if name in memory.fields:
            memory.fields["valid"][:] = True
            memory.fields["weight"][:] = 1.0
    memory.used = memory.version.shape[1]
    return memory


@pytest.mark.slow
@pytest.mark.parametrize("backend", ON_A_CPU)
@pytest.mark.parametrize("name", ["mlp", "lstm", "gru", "pixels"])
def test_a_compiled_update_is_the_update(
    name: str, backend: str, device: torch.device, caplog: pytest.LogCaptureFixture
) -> None:
    compilers = [shutil.which(one) for one in ("cc", "gcc", "clang")]
    if device == CPU:
        backend = ON_A_CPU[backend]
    elif backend == "inductor" and not (find_spec("triton") and any(compilers)):
        pytest.skip("inductor NOT TESTED: it needs Triton and a C compiler (pip install triton; apt-get install gcc)")
    elif backend == "inductor" and name == "pixels" and not VIEWS_COPIES:
        pytest.skip(
            f"inductor NOT TESTED on images, where a learner takes cudagraphs: torch {torch.__version__} < 2.13"
        )
    caplog.set_level(logging.INFO)
    found, expected = learning_on(device, name), learning_on(CPU, name)
    staging = Staging(device, copies=True)
    found.compile(staging.batch(staging.allocate(schema(name), STREAMS)), [backend])
    assert f"the loss is compiled by {backend}" in caplog.text
    for got, wanted in zip(learn(found, name, 5), learn(expected, name, 5), strict=True):
        assert got == pytest.approx(wanted, rel=1e-3, abs=1e-3)
    require_close(found, expected, name)


@pytest.mark.processes
def test_a_group_of_one_makes_the_updates_of_a_learner_alone(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TORCH_NCCL_BLOCKING_WAIT"):
        monkeypatch.setenv(variable, "lo" if "IFNAME" in variable else "1")  # what a group sets is gone afterwards
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    found, expected = learning_on(device, "mlp"), learning_on(CPU, "mlp")
    collective = Collective(GroupPlace(1, 0, 1, 0, ModelRef("main", 1, 0)), HashStore(), device, one_machine=True)
    try:
        found.take_over(collective.broadcast(found.capture().pack(), 0))
        found.join(collective)
        assert collective.agree(ready=True, held=False, starved=False).update
        for got, wanted in zip(learn(found, "mlp"), learn(expected, "mlp"), strict=True):
            assert got == pytest.approx(wanted, rel=1e-3, abs=1e-3)
    finally:
        collective.close()
    require_close(found, expected, "mlp")
