"""Interface of algorithms to the roles: a schema, actions, a loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, get_origin

import numpy as np
import pydantic
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rlctl.spec import algorithms as specs
from rlctl.spec.schema import Network
from rlctl_agents.models.moments import AllReduce
from rlctl_agents.types.experience import Field, Schema
from rlctl_agents.types.spaces import Box, Spaces, choices, leaf_array, leaves

Tensors = dict[str, Tensor]  # dotted name -> tensor
HEAVY_BYTES = 4096
"""Bytes of a field in one column, above which it is gathered for each minibatch, not once per pass."""
Config = TypeVar("Config", bound=specs.Algorithm)
Settings = TypeVar("Settings", bound=pydantic.BaseModel)


class AlgorithmError(ValueError):
    """Algorithm that does not fit its config, network or spaces: a user's mistake, explained in one sentence."""


class ActInputs(NamedTuple):
    """Inputs of a decision for K slots. New fields get a default, so that the signature of `act` stays."""

    obs: Tensors  # leaf name -> [K, ...]
    first: Tensor  # [K] bool, first decision of an episode: the state given for it is ignored
    state: Tensors  # as `initial_state`, from each slot's previous decision
    noise: Tensor  # [K, noise_width] float32, strictly between 0 and 1
    legal: Tensor | None = None  # [K, n] bool where the spaces have masks, n the options of all choices
    greedy: bool = False  # the best action instead of a sampled one; the noise is not used
    progress: int = 0  # agent steps that these weights were learned from, as published with them
    last_action: Tensors | None = (
        None  # leaf name -> [K, ...] the slot's previous choice, 0 where `first`; if in `needs_last`
    )
    last_reward: Tensor | None = None  # [K] float32 raw reward of that choice, 0 where `first`; if in `needs_last`
    stream: Tensor | None = None  # [K] int64 id of each slot's stream, unique in the run; None: not a run's actor


class Act(NamedTuple):
    """Decisions of one policy for K slots."""

    action: Tensors  # leaf name -> [K, ...] as the schema says; recorded as it is, a Box is clipped by the environment
    record: Tensors  # further row fields of the schema -> [K, ...]: log_prob
    state: Tensors  # segment fields of the schema -> [K, ...]: the memory after this decision; {} without one


class Delivery(NamedTuple):
    """Accounting of one batch, in host memory."""

    versions: NDArray[np.int64]  # [valid rows] of the weights that chose each action
    rows: int  # agent steps in it that were in no batch before
    taken: int  # rows of the ledger consumed for it, those after an episode's end included


class Batch(NamedTuple):
    """B segments of T rows side by side, from which one version is learned."""

    fields: Tensors  # [T, B, ...] per row, [T+1, B, ...] per row+1, [B, ...] per segment, as the schema says
    version: Tensor  # [T, B] int64, version of the weights that chose each action
    segment_fields: frozenset[str] = frozenset()  # names of the fields per segment
    columns: Tensor | None = None  # [B] int64, of a minibatch: its columns in the whole batch
    delivery: Delivery | None = None  # None: every row is new, and counted from the tensors
    all_valid: bool = False  # known to have valid rows only, without the row after the last

    @property
    def books(self) -> Delivery:
        """Accounting as the batch's source recorded it; without it computed from the tensors, with all rows as new."""
        if self.delivery is not None:
            return self.delivery
        valid, version = self.fields["valid"].cpu().numpy(), self.version.cpu().numpy()
        return Delivery(version[valid], int(valid.sum()), version.size)

    def narrow(self, first: int, count: int) -> Batch:
        """Columns [first, first + count) as views."""
        fields = {name: one.narrow(self._axis(name), first, count) for name, one in self.fields.items()}
        columns = None if self.columns is None else self.columns.narrow(0, first, count)
        return Batch(fields, self.version.narrow(1, first, count), self.segment_fields, columns, None, self.all_valid)

    def select(self, columns: Tensor) -> Batch:
        """A minibatch of whole columns, copied.

        Args:
            columns: [B'] int64.
        """
        at = columns.to(self.version.device)
        fields = {name: one.index_select(self._axis(name), at) for name, one in self.fields.items()}
        version = self.version.index_select(1, at)
        return Batch(fields, version, self.segment_fields, columns, None, self.all_valid)

    def split(self, sizes: list[int]) -> list[Batch]:
        """Split into consecutive batches of `sizes` columns, as views."""
        version = self.version.split_with_sizes(sizes, 1)
        columns = [None] * len(sizes) if self.columns is None else self.columns.split_with_sizes(sizes)
        cut = {name: one.split_with_sizes(sizes, self._axis(name)) for name, one in self.fields.items()}
        return [
            Batch(
                {name: parts[at] for name, parts in cut.items()},
                version[at], self.segment_fields, columns[at], None, self.all_valid,
            )
            for at in range(len(sizes))
        ]  # fmt: skip

    def _axis(self, name: str) -> int:
        return 0 if name in self.segment_fields else 1


class Loss(NamedTuple):
    """Loss of a batch; the caller divides `total` by the valid rows of all learners before `backward`."""

    total: Tensor  # scalar, sum over the valid rows, differentiable
    rows: Tensor  # scalar float32, number of valid rows
    metrics: Tensors  # name -> scalar without gradient, means over the valid rows
    priorities: Tensor | None = None  # [B] without gradient, new priority of each column; None: not prioritized


class Algorithm(ABC):
    """One policy: it acts in actors and evaluators, and learns in the learner. One instance serves one device.

    Args:
        config: the algorithm's section of the spec. A class outside this package gets `specs.External` and reads its
            own hyperparameters with `hyperparameters`.
        network: the `model` section of the spec.
        spaces: observation and action space of one seat.
        seed: of the initial weights; equal seeds give equal weights.

    Raises:
        AlgorithmError: config, network and spaces do not fit.
    """

    on_policy: ClassVar[bool]
    """True if the learner learns from each row once, and actors wait rather than drop segments."""
    source: ClassVar[str] = "on_policy"
    """Source of its batches: a kind that `experience.sources` knows, or `package.module:factory` of the
    algorithm's own, which is called with `experience.sources.Needs` in the learner and returns a `BatchSource`."""
    needs_last: ClassVar[frozenset[str]] = frozenset()
    """Parts of each slot's previous decision that `act` gets and has to record: some of {"action", "reward"}."""

    net: nn.Module
    """The published part: the modelpool serves its state dict. The roles put it into eval mode once it is made, both
    for acting and for learning, so that learner and actors compute the same: leave it in that mode."""
    noise_width: int
    """Number of uniforms in (0, 1) that one decision consumes."""
    max_grad_norm: float
    """Norm to which the learner clips the gradient of the mean loss; math.inf switches clipping off."""

    additive: bool = False
    """True if the loss of a batch is the sum of the losses of its segments, so that a large batch may be learned in
    micro-batches. A subclass that changes the loss sets it anew, after the base class's `__init__`."""
    batch_metrics: Mapping[str, float] = {}
    """Means over the valid rows of all learners' batches in the last `prepare`: reported with the metrics of the loss,
    and equal on all learners."""
    steps_per_batch: int = 1
    """Optimizer steps per batch: the number of minibatches that `minibatches` yields, the same on every learner."""

    scheduled: Mapping[str, float] = MappingProxyType({})
    """Values of the hyperparameters that may have a schedule, by name, as of the last `set_progress`; reported."""

    @property
    def modules(self) -> dict[str, nn.Module]:
        """All modules that are trained, saved and moved to the device, by name; `net` is the published one."""
        return {"net": self.net}

    @classmethod
    @abstractmethod
    def schema(cls, config: specs.Algorithm, network: Network, spaces: Spaces) -> Schema:
        """Schema of the segments; does not build the network."""

    @abstractmethod
    def __init__(self, config: specs.Algorithm, network: Network, spaces: Spaces, *, seed: int) -> None: ...

    @abstractmethod
    def initial_state(self, slots: int) -> Tensors:
        """Memory of `slots` slots before their first decision, on the CPU: {} or `core.h`, ... [slots, ...]."""

    @abstractmethod
    def act(self, inputs: ActInputs) -> Act:
        """Choose an action for each of K slots; without gradient, and with no random numbers but the noise."""

    @abstractmethod
    def loss(self, batch: Batch) -> Loss:
        """The loss of one batch."""

    @abstractmethod
    def make_optimizer(self) -> torch.optim.Optimizer:
        """A fresh optimizer over the trained parameters of `modules`, after these have been moved to their device."""

    def set_progress(self, consumed_steps: int, optimizer: torch.optim.Optimizer) -> None:  # noqa: B027
        """Apply schedules before the batch that follows `consumed_steps` agent steps, and fill `scheduled`."""

    def set_hyperparameters(self, values: Mapping[str, float]) -> None:
        """Change hyperparameters of a running learner. Those that the loss reads are tensors, changed in place: a
        compiled loss stays compiled.

        Raises:
            AlgorithmError: one of them cannot be changed, or its value is not valid; nothing is changed then.
        """
        if values:
            raise AlgorithmError(f"{type(self).__name__} cannot change {', '.join(sorted(values))} while it runs")

    def prepare(self, batch: Batch | None, all_reduce: AllReduce) -> Batch | None:
        """Add fields that all minibatches of a batch share: advantages, targets, old values. Called once per batch,
        without gradient. A new field is [T or T+1, B, ...].

        Args:
            batch: None if this learner has none; it takes part in the sums all the same.
            all_reduce: sum over all learners; must be called equally often on every learner.
        """
        return batch

    def minibatches(self, batch: Batch, rng: torch.Generator) -> Iterable[Batch]:
        """Cut a prepared batch into `steps_per_batch` minibatches of whole columns (`Batch.select`), one per optimizer
        step; a minibatch without columns adds nothing to the step of the others.

        Args:
            rng: on the CPU; saved and restored with the learner.
        """
        return (batch,)

    def after_step(self, means: Mapping[str, float]) -> None:  # noqa: B027
        """Hook after each optimizer step, as for target networks; called on a learner without rows too.

        Args:
            means: metrics of the step over all learners.
        """

    def ends_early(self, means: Mapping[str, float]) -> bool:
        """True if the remaining minibatches of this batch are to be skipped; called after `after_step`.

        Args:
            means: metrics of the last step over all learners, so that all of them agree.
        """
        return False

    def update_statistics(  # noqa: B027
        self, batch: Batch | None, means: Mapping[str, float], all_reduce: AllReduce
    ) -> None:
        """Update running moments, which are buffers of `net`, after the last step of a batch: until then learner and
        actors agree on them. Without gradient.

        Args:
            batch: prepared; None if this learner has none; it takes part in the sums all the same.
            means: metrics of the loss over the steps and all learners, and `batch_metrics`.
            all_reduce: sum over all learners; must be called equally often on every learner.
        """

    def begun(self) -> None:  # noqa: B027
        """Adapt restored or initial weights to this run's hyperparameters; called once, after a generation or `init`
        was loaded."""

    def after_update(self, updates: int) -> None:  # noqa: B027
        """Hook after each batch, as for copies of target networks; without gradient.

        Args:
            updates: batches learned from so far, over all boots, this one included.
        """


class Tunable(nn.Module):
    """Hyperparameters as float32 scalars by name, on the device of the loss that reads them; in no state dict.

    Changed in place, so that a loss compiled for them stays compiled. One of `Algorithm.modules`; a subclass annotates
    the names.
    """

    def __init__(self, **values: float) -> None:
        super().__init__()
        for name, value in values.items():
            self.register_buffer(name, torch.tensor(value, dtype=torch.float32), persistent=False)

    @torch.no_grad()
    def change(self, values: Mapping[str, float]) -> None:
        """Set the values that have a scalar here; ignore others. The key of `lambda_` is `lambda`, as in the spec."""
        for name, scalar in self.named_buffers():
            if (key := name.removesuffix("_")) in values:
                scalar.fill_(values[key])


def joined(batches: Sequence[Batch]) -> Batch:
    """Batches of the same schema joined along the columns, copied."""
    first = batches[0]
    fields = {
        name: torch.cat([one.fields[name] for one in batches], 0 if name in first.segment_fields else 1)
        for name in first.fields
    }
    return Batch(fields, torch.cat([one.version for one in batches], 1), first.segment_fields)


def shuffled(batch: Batch, epochs: int, count: int, rng: torch.Generator) -> Iterator[Batch]:
    """Minibatches of whole columns in random order: `epochs` passes over the batch, `count` minibatches each.

    Their sizes differ by one column at most; with fewer columns than minibatches, some have none. Small fields are
    permuted once per pass, and minibatches are views of them; larger ones (`HEAVY_BYTES`) are gathered per minibatch,
    as a copy of all images would be large.
    """
    columns = batch.version.shape[1]
    heavy = {name: one for name, one in batch.fields.items() if one.nbytes > HEAVY_BYTES * columns}
    images = batch._replace(fields=heavy)
    small = batch._replace(fields={name: one for name, one in batch.fields.items() if name not in heavy})
    for _ in range(epochs):
        order = torch.randperm(columns, generator=rng)
        parts = order.tensor_split(count)
        minibatches = small.select(order).split([len(part) for part in parts])
        for part, minibatch in zip(parts, minibatches, strict=True):
            fields = minibatch.fields | images.select(part).fields if heavy else minibatch.fields
            yield minibatch._replace(fields=fields)


def standard_fields(spaces: Spaces) -> tuple[Field, ...]:
    """The fields that every schema begins with.

    Raises:
        AlgorithmError: the spaces have masks of legal actions, but nothing in their action can be masked.
    """
    obs = [
        Field(name, *leaf_array(leaf), "row+1", frames=leaf.stack if isinstance(leaf, Box) else 0)
        for name, leaf in leaves(spaces.obs, "obs")
    ]
    action = [Field(name, *leaf_array(leaf), "row") for name, leaf in leaves(spaces.action, "action")]
    legal: list[Field] = []
    if spaces.legal:
        if not (sizes := choices(spaces.action)):
            raise AlgorithmError("masks of legal actions need a Discrete or a MultiDiscrete in the action")
        legal = [Field("legal", "bool", (sum(sizes),), "row+1")]
    return (
        *obs,
        Field("first", "bool", (), "row+1"),
        *action,
        Field("reward", "float32", (), "row"),
        Field("terminated", "bool", (), "row"),
        Field("truncated", "bool", (), "row"),
        Field("valid", "bool", (), "row"),
        *legal,
    )


def hyperparameters(config: specs.Algorithm, kind: type[Config]) -> Config:
    """The hyperparameters as `kind`: as they are, or from `params` of an algorithm outside this package.

    The fields that every algorithm has (`unroll_length`, `gamma`, ...) are read by the roles too, so they keep the
    place and the defaults that the spec gives them; `params` holds the others.

    Raises:
        AlgorithmError: `params` do not fit `kind`; every fault is named.

    Example:
        `{name: mine:Impala, unroll_length: 5, params: {lambda: 0.9}}` read as `specs.Impala` has both values.
    """
    if isinstance(config, kind):
        return config
    if not isinstance(config, specs.External):
        raise AlgorithmError(
            f"algorithm {config.name} has {type(config).__name__} settings, not {kind.__name__}; what a class of your"
            " own adds is read by own_settings"
        )
    shared = {name: getattr(config, name) for name in specs.Algorithm.model_fields}
    misplaced = sorted(shared.keys() & config.params.keys())
    if misplaced:
        raise AlgorithmError(
            "; ".join(f"algorithm.params.{name}: every algorithm has it, say algorithm.{name}" for name in misplaced)
        )
    for name in shared.keys() - config.model_fields_set:  # an actor lacks the fields that the learner alone reads
        if get_origin(kind.model_fields[name].annotation) is Literal:
            del shared[name]  # kind allows only its own value
    if not kind.model_fields["name"].is_required():
        del shared["name"]  # kind has its own as the default
    return _validated({**shared, **config.params}, kind)


def own_settings(config: specs.Algorithm, kind: type[Settings]) -> Settings:
    """`params` of a section as `kind`: the settings that a class of the user's adds to those of a built-in one.

    Raises:
        AlgorithmError: `params` do not fit `kind`; every fault is named.

    Example:
        `{name: sac, class: "mine:Sac", params: {factor: 0.9}}`, read as a model with that field, has the value.
    """
    return _validated(getattr(config, "params", {}), kind)


def _validated(values: Mapping[str, Any], kind: type[Settings]) -> Settings:
    try:
        return kind.model_validate(values)
    except pydantic.ValidationError as error:
        faults = [f"algorithm.params.{_path(fault['loc'])}: {fault['msg']}" for fault in error.errors()]
        raise AlgorithmError("; ".join(faults)) from None


def _path(location: tuple[int | str, ...]) -> str:
    return ".".join(map(str, location))


def below(fields: Mapping[str, Tensor], prefix: str) -> Tensors:
    """The entries of `fields` that are the leaf `prefix` or lie below it."""
    return {name: value for name, value in fields.items() if name == prefix or name.startswith(prefix + ".")}
