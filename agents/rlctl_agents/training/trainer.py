"""One policy between updates: a batch in, other weights out. Knows no wire, no clock and no manager."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlctl_agents.algorithms.base import Algorithm, Batch, Loss
from rlctl_agents.experience.batching import Columns, column_axes
from rlctl_agents.models.weights import pack
from rlctl_agents.training import gradients
from rlctl_agents.training.collective import Collective
from rlctl_agents.training.compiled import BACKENDS, compiled
from rlctl_agents.training.learner_state import LearnerState, capture, restore
from rlctl_agents.training.pieces import PIECE_ROWS, pieces
from rlctl_agents.training.staging import Staging
from rlctl_agents.types.experience import ModelRef, Schema

NONFINITE_IN_A_ROW = 10
"""So many updates without a finite gradient, one after the other, and the learner gives up."""

log = logging.getLogger(__name__)


class Diverged(Exception):
    """Losses or gradients are not finite any more."""


@dataclass
class Updated:
    """What one batch did."""

    finite: bool
    lag_versions: NDArray[np.int64]  # [rows] valid rows: versions since the weights that chose the action
    values: dict[str, float] = field(default_factory=dict)  # metrics of the loss, grad_norm, lr


class Learning:
    """Weights, optimizer and counters of one policy on one device.

    Args:
        algorithm: fresh; its network is moved to the device.
        policy, lineage: of the versions made here.
        device: where the network lives. The CPU learns from the batch's own memory, a GPU from a copy.
        staging: of batches; None: as the device needs it.
        piece_rows: most rows that are learned from at once; None: as the device likes it. The update is the same.
        lock_step: a version follows each batch, even one without a finite gradient: everybody waits for it.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        *,
        policy: str,
        lineage: int,
        device: torch.device,
        lock_step: bool = False,
        staging: Staging | None = None,
        piece_rows: int | None = None,
    ) -> None:
        self._algorithm = algorithm
        self._device = device
        self._lock_step = lock_step
        algorithm.net.to(device)
        self._parameters = list(algorithm.net.parameters())
        self._optimizer = algorithm.make_optimizer()
        self._policy = policy
        self._nonfinite_in_a_row = 0
        self._loss: Callable[[Batch], Loss] = algorithm.loss
        self._gradient = gradients.alone(self._loss)
        self._staging = staging or Staging(device)
        self._piece_rows = piece_rows or (PIECE_ROWS if device.type == "cpu" else sys.maxsize)
        self._axes: dict[str, int] = {}  # field -> its axis of streams
        self.lineage = lineage
        self.version = 0
        self.consumed_rows = 0  # agent steps over all boots: the rows after an episode's end are none
        self.taken_rows = 0  # the same with the rows after an episode's end, as the ledger counts
        self.nonfinite = 0  # since this boot

    @property
    def ref(self) -> ModelRef:
        """The weights as they are now."""
        return ModelRef(self._policy, self.lineage, self.version)

    def allocate(self, schema: Schema, streams: int) -> Columns:
        """Memory for a batch that `update` can use."""
        self._axes = column_axes(schema)
        return self._staging.allocate(schema, streams)

    def stage(self, columns: Columns) -> None:
        """A batch is full: it may begin its way to the device. From any thread."""
        self._staging.begin(columns)

    def compile(self, columns: Columns, backends: Sequence[str] = BACKENDS) -> None:
        """Compile the loss for batches of this shape, by the first of these backends that can; logs which, and why the
        others cannot. It stays as it is written for those who step together, and where code of the user's own is in it.

        Args:
            columns: as allocated, filled or not.
            backends: of `torch.compile`.
        """
        if not gradients.ours(self._algorithm):
            log.info("the loss is not compiled: it holds code of your own")
            return
        example = self._parts(columns)[0]
        for backend in backends:
            try:
                self._loss = compiled(self._algorithm, example, backend)
            except Exception as error:  # whatever a compiler may raise; what is at fault otherwise shows without it
                log.warning("%s cannot compile the loss: %s: %.300s", backend, type(error).__name__, error)
                continue
            log.info("the loss is compiled by %s", backend)
            self._gradient = gradients.alone(self._loss)
            return

    def join(self, collective: Collective | None) -> None:
        """From now on step together with these others, or alone.

        Raises:
            Broken: one of them is gone already.
        """
        made = gradients.alone(self._loss)
        self._gradient = made if collective is None else gradients.together(self._algorithm, collective)

    def update(self, columns: Columns | None) -> Updated:
        """One optimizer step on the mean loss over the valid rows of all learners that step together.

        A batch whose loss or gradient is not finite changes no weight.

        Args:
            columns: the batch of this one; None: it adds nothing, because nobody sends it segments.

        Raises:
            Diverged: the tenth such batch in a row.
            Broken: another learner is gone; nothing has changed.
        """
        parts = [] if columns is None else self._parts(columns)
        versions = np.zeros(0, np.int64) if columns is None else columns.version[columns.fields["valid"]]
        self._algorithm.set_progress(self.consumed_rows, self._optimizer)
        self._optimizer.zero_grad(set_to_none=True)
        mean = self._gradient(parts, versions.size, 0 if columns is None else columns.version.size)
        grad_norm = torch.nn.utils.clip_grad_norm_(self._parameters, self._algorithm.max_grad_norm)
        seen = dict(zip([*mean.values, "grad_norm"], _numbers([*mean.values.values(), grad_norm]), strict=True))
        finite = math.isfinite(seen["total"]) and math.isfinite(seen["grad_norm"])
        lag = self.version - versions
        self.consumed_rows += mean.rows
        self.taken_rows += mean.taken
        if finite:
            self._optimizer.step()
            self._nonfinite_in_a_row = 0
        else:
            self.nonfinite += 1
            self._nonfinite_in_a_row += 1
            if self._nonfinite_in_a_row == NONFINITE_IN_A_ROW:
                raise Diverged(
                    f"{NONFINITE_IN_A_ROW} updates in a row had no finite gradient (loss {seen['total']}, gradient "
                    f"norm {seen['grad_norm']}, version {self.version}): lower algorithm.lr, or scale what the "
                    "environment gives"
                )
        if finite or self._lock_step:
            self.version += 1
        seen["lr"] = float(self._optimizer.param_groups[0]["lr"])
        return Updated(finite, lag, seen)

    def copied(self) -> Callable[[], bytes]:
        """A copy of the network as it is now, where it is; the call that packs it may be made by any thread."""
        return partial(pack, {name: value.clone() for name, value in self._algorithm.net.state_dict().items()})

    def weights(self) -> bytes:
        """The network as the modelpool carries it."""
        return pack(self._algorithm.net.state_dict())

    def weights_bytes(self) -> int:
        """Of its numbers; packed, some more for their names."""
        return sum(value.nbytes for value in self._algorithm.net.state_dict().values())

    def capture(self) -> LearnerState:
        """A copy of everything that the next boot needs."""
        counters = {"version": self.version, "consumed_rows": self.consumed_rows, "taken_rows": self.taken_rows}
        return capture(self._algorithm.net, self._optimizer, counters)

    def take_over(self, data: bytes) -> None:
        """Go on from the state of another learner, as if it were this one. Lineage and random numbers stay its own.

        Raises:
            StateError: not the state of this network.
        """
        with torch.random.fork_rng(devices=[self._device] if self._device.type == "cuda" else []):
            self.restore(data)

    def restore(self, data: bytes) -> str:
        """Go on from a captured state; the lineage stays that of this boot.

        Returns:
            What could not be taken over, in words; "" when everything was.

        Raises:
            StateError: not the state of this network.
        """
        counters, problem = restore(data, self._algorithm.net, self._optimizer)
        self.version = int(counters["version"])
        self.consumed_rows = int(counters["consumed_rows"])
        self.taken_rows = int(counters.get("taken_rows", self.consumed_rows))  # release 0.1 did not count them
        return problem

    def _parts(self, columns: Columns) -> list[Batch]:
        return pieces(self._algorithm, self._staging.batch(columns), self._axes, self._piece_rows)


def _numbers(values: list[Tensor]) -> list[float]:
    """Scalars as floats, with one wait for the device."""
    return torch.stack([value.detach().float().reshape(()) for value in values]).tolist()
