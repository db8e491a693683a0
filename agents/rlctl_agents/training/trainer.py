"""Trainer of one policy: updates from batches. Independent of wire, clock and manager."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlctl_agents.algorithms.base import Algorithm, AlgorithmError, Batch, Delivery, Loss
from rlctl_agents.models.moments import AllReduce
from rlctl_agents.models.weights import pack
from rlctl_agents.training import gradients
from rlctl_agents.training.collective import Collective
from rlctl_agents.training.compiled import BACKENDS, compiled
from rlctl_agents.training.learner_state import LearnerState, capture, restore
from rlctl_agents.training.micro_batches import cached_rows, micro_batches
from rlctl_agents.types.experience import ModelRef

NONFINITE_IN_A_ROW = 10
"""Consecutive optimizer steps without a finite gradient after which the learner gives up."""

CLIP_EPS = 1e-6
"""Added to the norm of the gradient that is clipped, as `torch.nn.utils.clip_grad_norm_` does."""
NOTHING = Delivery(np.zeros(0, np.int64), 0, 0)
"""Accounting of a learner without a batch."""

log = logging.getLogger(__name__)


class Diverged(Exception):
    """Training whose losses or gradients are no longer finite."""


@dataclass
class Updated:
    """Outcome of one batch."""

    finite: bool  # every step had a finite gradient
    lag_versions: NDArray[np.int64]  # [rows] valid rows: versions since the weights that chose the action
    steps: int = 1  # optimizer steps that were made
    skipped: int = 0  # optimizer steps without a finite gradient, left out
    rows: int = 0  # agent steps of this learner's batch that were in no batch before
    learned: int = 0  # agent steps that all learners' optimizer steps were made from, each as often as it was in one
    stats: dict[str, float] = field(default_factory=dict)  # metrics of the loss, grad_norm: means over the steps
    scheduled: dict[str, float] = field(default_factory=dict)  # scheduled hyperparameters of the update, and lr
    priorities: Tensor | None = None  # [B] of this learner's columns, for the next draw


class Reached(NamedTuple):
    """Weights, and the agent steps that they were learned from, over all learners and boots."""

    ref: ModelRef
    consumed: int  # each counted once
    learned: int  # each as often as an optimizer step was made from it


class Trainer:
    """Weights, optimizer and counters of one policy on one device.

    Args:
        algorithm: fresh; its modules are moved to the device.
        policy, lineage: of the versions made here.
        device: device of the modules and the batches.
        micro_batch_rows: most rows of a micro-batch; None: chosen for the device. The update is the same.
        lock_step: a version follows each batch, even one without a finite gradient: the actors wait for it.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        *,
        policy: str,
        lineage: int,
        device: torch.device,
        lock_step: bool = False,
        micro_batch_rows: int | None = None,
    ) -> None:
        self._algorithm = algorithm
        self._device = device
        self._lock_step = lock_step
        modules = algorithm.modules
        for module in modules.values():
            module.to(device)
        self._others = {name: module for name, module in modules.items() if module is not algorithm.net}
        self._parameters = [one for module in modules.values() for one in module.parameters()]
        self._optimizer = algorithm.make_optimizer()
        self._policy = policy
        self._nonfinite_in_a_row = 0
        self._loss: Callable[[Batch], Loss] = algorithm.loss
        self._gradient = gradients.alone(self._loss)
        self._all_reduce: AllReduce = _alone
        self._micro_batch_rows = micro_batch_rows
        self.lineage = lineage
        self.version = 0  # batches learned from, over all boots
        self.optimizer_steps = 0  # over all boots
        self.consumed_steps = 0  # agent steps over all boots: the rows after an episode's end are none
        self.learned_steps = 0  # agent steps over all boots, each as often as an optimizer step was made from it
        self.taken_rows = 0  # consumed ones with the rows after an episode's end, as the ledger counts
        self.nonfinite = 0  # since this boot

    @property
    def ref(self) -> ModelRef:
        """Reference of the current weights."""
        return ModelRef(self._policy, self.lineage, self.version)

    @property
    def reached(self) -> Reached:
        """Reference of the current weights, and the agent steps that they were learned from."""
        return Reached(self.ref, self.consumed_steps, self.learned_steps)

    def compile(self, example: Batch, backends: Sequence[str] = BACKENDS) -> None:
        """Compile the loss for batches of this shape with the first of these backends that can; logs which, and why the
        others cannot. It stays as written for learners that step together, and with code of the user's own.

        Args:
            example: its numbers do not matter.
            backends: of `torch.compile`.
        """
        if not gradients.ours(self._algorithm):
            log.info("the loss is not compiled: it holds code of your own")
            return
        with torch.random.fork_rng(devices=[]):
            whole = self._prepared(example)
            assert whole is not None, "of a batch"
            first = next(iter(self._algorithm.minibatches(whole, torch.default_generator)))
        part = self._micro_batches(first)[0]
        for backend in backends:
            try:
                self._loss = compiled(self._algorithm, part, backend)
            except Exception as error:  # a compiler may raise anything; any other fault shows without it, too
                log.warning("%s cannot compile the loss: %s: %.300s", backend, type(error).__name__, error)
                continue
            log.info("the loss is compiled by %s", backend)
            self._gradient = gradients.alone(self._loss)
            return

    def join(self, collective: Collective | None) -> None:
        """Step together with the members of this group from now on; None: alone.

        Raises:
            GroupBroken: one of them is gone already.
        """
        made = gradients.alone(self._loss)
        self._gradient = made if collective is None else gradients.together(self._algorithm, collective)
        self._all_reduce = _alone if collective is None else collective.all_reduce

    def set_hyperparameters(self, values: Mapping[str, float]) -> None:
        """Change hyperparameters from the next batch on.

        Raises:
            AlgorithmError: of the algorithm; nothing is changed then.
        """
        self._algorithm.set_hyperparameters(values)

    def update(self, batch: Batch | None) -> Updated:
        """Learn from one batch: an optimizer step for each of its minibatches, on the mean loss over the valid rows of
        all learners that step together. Makes the next version.

        A step whose loss or gradient is not finite is skipped; a batch without any other makes no version, except in
        lock-step.

        Args:
            batch: on the device; None: this learner contributes nothing, because no actor sends it segments.

        Raises:
            Diverged: the tenth such step in a row.
            GroupBroken: another learner is gone. Optimizer steps that were made stay; the batch counts as not learned
                from.
        """
        algorithm = self._algorithm
        books = NOTHING if batch is None else batch.books
        lag, learned = self.version - books.versions, self.learned_steps
        algorithm.set_progress(self.consumed_steps, self._optimizer)
        whole = self._prepared(batch)
        parts = [None] * algorithm.steps_per_batch if whole is None else algorithm.minibatches(whole, _rng())
        rows, taken = books.rows, books.taken  # summed over all learners with the first step
        done = _Steps()
        for part in parts:
            done.add(self._step(part, rows, taken), part)
            rows = taken = 0
            algorithm.after_step(done.last)
            if algorithm.ends_early(done.last):
                break
        else:
            done.require(algorithm)
        means = {**done.means(), **algorithm.batch_metrics}
        if done.learned:
            with torch.no_grad():
                algorithm.update_statistics(whole, means, self._all_reduce)
        self.consumed_steps += done.rows
        self.taken_rows += done.taken
        if done.finite or self._lock_step:
            self.version += 1
            with torch.no_grad():
                algorithm.after_update(self.version)
        scheduled = {**algorithm.scheduled, "lr": float(self._optimizer.param_groups[0]["lr"])}
        return Updated(
            done.skipped == 0, lag, done.made, done.skipped, books.rows, self.learned_steps - learned,
            means, scheduled, done.priorities(whole),
        )  # fmt: skip

    def _prepared(self, batch: Batch | None) -> Batch | None:
        with torch.no_grad():
            return self._algorithm.prepare(batch and batch._replace(delivery=None), self._all_reduce)

    def _micro_batches(self, minibatch: Batch) -> list[Batch]:
        most = self._micro_batch_rows or (cached_rows(minibatch) if self._device.type == "cpu" else sys.maxsize)
        return micro_batches(self._algorithm, minibatch, most)

    def _step(self, minibatch: Batch | None, rows: int, taken: int) -> _Step:
        """One optimizer step; sums rows and taken over all learners."""
        empty = minibatch is None or minibatch.version.numel() == 0
        parts = [] if minibatch is None or empty else self._micro_batches(minibatch)
        self._optimizer.zero_grad(set_to_none=True)
        mean = self._gradient(parts, rows, taken)
        grads = [one.grad for one in self._parameters if one.grad is not None]
        *numbers, learned = _numbers([*mean.values.values(), _norm(grads), mean.learned])
        seen = dict(zip([*mean.values, "grad_norm"], numbers, strict=True))
        finite = math.isfinite(seen["total"]) and math.isfinite(seen["grad_norm"])
        if not finite:
            self.nonfinite += 1
            self._nonfinite_in_a_row += 1
            if self._nonfinite_in_a_row == NONFINITE_IN_A_ROW:
                raise Diverged(
                    f"{NONFINITE_IN_A_ROW} optimizer steps in a row had no finite gradient (loss {seen['total']}, "
                    f"gradient norm {seen['grad_norm']}, version {self.version}): lower algorithm.lr, or scale what "
                    "the environment gives"
                )
        elif learned:  # else no rank has a row: momentum alone must not move the weights
            clip = self._algorithm.max_grad_norm / (seen["grad_norm"] + CLIP_EPS)
            if clip < 1:
                torch._foreach_mul_(grads, clip)
            self._optimizer.step()
            self.optimizer_steps += 1
            self.learned_steps += int(learned)
            self._nonfinite_in_a_row = 0
        return _Step(seen, finite, mean.priorities, mean.rows, mean.taken, learned > 0)

    def copied(self) -> Callable[[], bytes]:
        """Copy the network as it is now, on its device; the returned function packs the copy, in any thread."""
        state = {name: value.clone() for name, value in self._algorithm.net.state_dict().items()}
        return partial(pack, state, self.consumed_steps)

    def weights(self) -> bytes:
        """The packed network, as the modelpool serves it."""
        return pack(self._algorithm.net.state_dict(), self.consumed_steps)

    def weights_bytes(self) -> int:
        """Bytes of the network's tensors; packed weights have some more, for the names."""
        return sum(value.nbytes for value in self._algorithm.net.state_dict().values())

    def capture(self) -> LearnerState:
        """Snapshot of everything that the next boot needs."""
        counters = {
            "version": self.version, "consumed_steps": self.consumed_steps, "taken_rows": self.taken_rows,
            "optimizer_steps": self.optimizer_steps, "learned_steps": self.learned_steps,
        }  # fmt: skip
        return capture(self._algorithm.net, self._optimizer, counters, self._others)

    def take_over(self, data: bytes) -> str:
        """Restore the state of another learner. Lineage and random numbers stay this learner's own.

        Returns:
            As `restore`.

        Raises:
            StateError: not the state of this network.
        """
        with torch.random.fork_rng(devices=[self._device] if self._device.type == "cuda" else []):
            return self.restore(data)

    def restore(self, data: bytes) -> str:
        """Restore a captured state; the lineage stays that of this boot.

        Returns:
            Parts that could not be restored, in words; "" if all were.

        Raises:
            StateError: not the state of this network.
        """
        counters, problem = restore(data, self._algorithm.net, self._optimizer, self._others)
        self.version = int(counters["version"])
        self.consumed_steps = int(counters["consumed_steps"])
        self.taken_rows = int(counters.get("taken_rows", self.consumed_steps))  # release 0.1 did not count them
        self.learned_steps = int(counters.get("learned_steps", self.consumed_steps))  # nor these: from each once
        self.optimizer_steps = int(counters.get("optimizer_steps", self.version))  # nor these: one made a version
        return problem


class _Step(NamedTuple):
    means: dict[str, float]  # over the valid rows of all learners
    finite: bool
    priorities: Tensor | None
    rows: int  # agent steps of the batch, over all learners; 0 but for the first step
    taken: int  # the same with rows after an episode's end
    learned: bool  # made from at least one row of any learner


class _Steps:
    """Optimizer steps of one batch."""

    def __init__(self) -> None:
        self._steps: list[tuple[_Step, Batch | None]] = []

    def add(self, step: _Step, minibatch: Batch | None) -> None:
        self._steps.append((step, minibatch))

    @property
    def last(self) -> dict[str, float]:
        return self._steps[-1][0].means

    @property
    def finite(self) -> bool:
        """True if the batch makes a version: one without any row as well, for which actors may wait."""
        return any(step.finite for step, _ in self._steps)

    @property
    def made(self) -> int:
        return sum(step.finite and step.learned for step, _ in self._steps)

    @property
    def rows(self) -> int:
        return sum(step.rows for step, _ in self._steps)

    @property
    def taken(self) -> int:
        return sum(step.taken for step, _ in self._steps)

    @property
    def learned(self) -> bool:
        """True if a step was made from at least one row; the same on all learners."""
        return any(step.finite and step.learned for step, _ in self._steps)

    @property
    def skipped(self) -> int:
        return sum(not step.finite for step, _ in self._steps)

    def require(self, algorithm: Algorithm) -> None:
        """Check the number of steps: other learners make as many as the algorithm says, and wait for each."""
        if len(self._steps) != algorithm.steps_per_batch:
            raise AlgorithmError(
                f"{type(algorithm).__name__}.minibatches gave {len(self._steps)} minibatches, its steps_per_batch is "
                f"{algorithm.steps_per_batch}"
            )

    def means(self) -> dict[str, float]:
        if len(self._steps) == 1:
            return self.last
        seen: dict[str, list[float]] = {}
        for step in [step for step, _ in self._steps if step.learned] or [step for step, _ in self._steps]:
            for name, value in step.means.items():
                seen.setdefault(name, []).append(value)
        return {name: _mean(values) for name, values in seen.items()}

    def priorities(self, whole: Batch | None) -> Tensor | None:
        """Newest priority of each column of the whole batch, [B]; NaN for a column that was in no minibatch."""
        if whole is None or all(step.priorities is None for step, _ in self._steps):
            return None
        found = torch.full((whole.version.shape[1],), math.nan, device=whole.version.device)
        for step, minibatch in self._steps:
            if step.priorities is not None and minibatch is not None:
                at = slice(None) if minibatch.columns is None else minibatch.columns.to(found.device)
                found[at] = step.priorities.detach().to(found)
        return found


def _alone(tensor: Tensor) -> Tensor:
    return tensor


def _rng() -> torch.Generator:
    """Torch's generator: saved and restored with the learner, and seeded for each learner."""
    return torch.default_generator


@torch.no_grad()
def _norm(grads: list[Tensor]) -> Tensor:
    """Euclidean norm of all gradients together."""
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads))) if grads else torch.zeros(())


@torch.no_grad()
def _numbers(values: list[Tensor]) -> list[float]:
    """Scalars as floats, with one wait for the device."""
    return torch.stack([value.reshape(()) if value.ndim else value for value in values]).tolist()


def _mean(values: Sequence[float]) -> float:
    """Mean of numbers that need not be finite: `fsum` raises for inf and -inf together."""
    return (math.fsum(values) if math.isfinite(sum(values)) else sum(values)) / len(values)
