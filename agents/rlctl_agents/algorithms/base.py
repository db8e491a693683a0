"""What a role needs of an algorithm: a schema, actions, a loss. The roles never look inside."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, NamedTuple, TypeVar

import pydantic
import torch
from torch import Tensor, nn

from rlctl.spec import algorithms as specs
from rlctl.spec.schema import Network
from rlctl_agents.types.experience import Field, Schema
from rlctl_agents.types.spaces import Box, Discrete, Spaces, leaf_array, leaves

Tensors = dict[str, Tensor]  # dotted name -> tensor
Config = TypeVar("Config", bound=specs.Algorithm)


class AlgorithmError(ValueError):
    """The algorithm and what it is given do not fit: the user's own fault, said in one sentence."""


class Act(NamedTuple):
    """What one policy decided for K slots."""

    action: Tensors  # leaf name -> [K, ...] as the schema says; recorded as it is, a Box is clipped by the environment
    record: Tensors  # further row fields of the schema -> [K, ...]: log_prob
    state: Tensors  # segment fields of the schema -> [K, ...]: the memory after this decision; {} without one


class Batch(NamedTuple):
    """What one optimizer step learns from: B segments of T rows side by side."""

    fields: Tensors  # [T, B, ...] per row, [T+1, B, ...] per row+1, [B, ...] per segment, as the schema says
    version: Tensor  # [T, B] int64, optimizer steps of the weights that chose each action


class Loss(NamedTuple):
    """The caller divides `total` by the valid rows of all learners before it goes backward."""

    total: Tensor  # scalar, sum over the valid rows, differentiable
    rows: Tensor  # scalar float32, number of valid rows
    metrics: Tensors  # name -> scalar without gradient, means over the valid rows


class Algorithm(ABC):
    """One policy: it acts in actors and evaluators, and learns in the learner. One instance serves one device.

    Args:
        config: the algorithm's section of the spec. A class outside this package gets `specs.External` and reads its
            own hyperparameters with `hyperparameters`.
        network: the `model` section of the spec.
        spaces: what one seat sees and does.
        seed: of the initial weights; equal seeds give equal weights.

    Raises:
        AlgorithmError: config, network and spaces do not fit.
    """

    on_policy: ClassVar[bool]
    """The learner throws away experience once learned from, and actors wait rather than drop."""

    net: nn.Module
    """Everything that the modelpool carries: the roles move it to a device and read its state dict. They put it into
    eval mode once it is made, to act and to learn, so that learner and actors compute the same: leave it so."""
    noise_width: int
    """Uniform numbers in (0, 1) that one decision consumes."""
    max_grad_norm: float
    """The learner clips the norm of the gradient of the mean loss to this; math.inf switches it off."""

    additive: bool = False
    """The loss of a batch is the sum of those of its segments, so that a large batch may be learned from in pieces.
    A class that changes the loss of another says it anew, once that one is made."""

    @classmethod
    @abstractmethod
    def schema(cls, config: specs.Algorithm, network: Network, spaces: Spaces) -> Schema:
        """What the segments hold. Called where there is a simulator; needs no network to be built."""

    @abstractmethod
    def __init__(self, config: specs.Algorithm, network: Network, spaces: Spaces, *, seed: int) -> None: ...

    @abstractmethod
    def initial_state(self, slots: int) -> Tensors:
        """Memory of `slots` slots before their first decision, on the CPU: {} or `core.h`, ... [slots, ...]."""

    @abstractmethod
    def act(
        self, obs: Tensors, first: Tensor, state: Tensors, noise: Tensor, legal: Tensor | None, *, greedy: bool
    ) -> Act:
        """Choose an action for each of K slots; no gradient, and no random number but the noise.

        Args:
            obs: leaf name -> [K, ...].
            first: [K] bool, first decision of an episode: the state given for it is ignored.
            state: as `initial_state`, from each slot's previous decision.
            noise: [K, noise_width] float32, strictly between 0 and 1.
            legal: [K, n] bool where the spaces have masks, else None.
            greedy: take the most likely action; the noise is not looked at.
        """

    @abstractmethod
    def loss(self, batch: Batch) -> Loss:
        """The loss of one batch."""

    @abstractmethod
    def make_optimizer(self) -> torch.optim.Optimizer:
        """A fresh optimizer over `net`, after `net` has been moved to its device."""

    def set_progress(self, consumed_rows: int, optimizer: torch.optim.Optimizer) -> None:  # noqa: B027
        """Apply schedules before the update that follows `consumed_rows` rows."""


def standard_fields(spaces: Spaces) -> tuple[Field, ...]:
    """The fields that every schema begins with.

    Raises:
        AlgorithmError: the spaces have masks of legal actions, but their action is not one Discrete.
    """
    obs = [
        Field(name, *leaf_array(leaf), "row+1", frames=leaf.stack if isinstance(leaf, Box) else 0)
        for name, leaf in leaves(spaces.obs, "obs")
    ]
    action = [Field(name, *leaf_array(leaf), "row") for name, leaf in leaves(spaces.action, "action")]
    legal: list[Field] = []
    if spaces.legal:
        if not isinstance(spaces.action, Discrete):
            raise AlgorithmError("masks of legal actions need one Discrete action space")
        legal = [Field("legal", "bool", (spaces.action.n,), "row+1")]
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

    The fields that every algorithm has (`segment_steps`, `discount`, ...) are read by the roles too, so they keep the
    place and the defaults that the spec gives them; `params` holds the others.

    Raises:
        AlgorithmError: `params` do not fit `kind`; every fault is named.

    Example:
        `{name: mine:Impala, segment_steps: 5, params: {lam: 0.9}}` read as `specs.Impala` has both values.
    """
    if isinstance(config, kind):
        return config
    if not isinstance(config, specs.External):
        raise AlgorithmError(f"algorithm {config.name} has {type(config).__name__} settings, not {kind.__name__}")
    shared = {name: getattr(config, name) for name in specs.Algorithm.model_fields}
    misplaced = sorted(shared.keys() & config.params.keys())
    if misplaced:
        raise AlgorithmError(
            "; ".join(f"algorithm.params.{name}: every algorithm has it, say algorithm.{name}" for name in misplaced)
        )
    if not kind.model_fields["name"].is_required():
        del shared["name"]  # kind knows its own
    try:
        return kind.model_validate({**shared, **config.params})
    except pydantic.ValidationError as error:
        faults = [f"algorithm.params.{_path(fault['loc'])}: {fault['msg']}" for fault in error.errors()]
        raise AlgorithmError("; ".join(faults)) from None


def _path(location: tuple[int | str, ...]) -> str:
    return ".".join(map(str, location))


def below(fields: Mapping[str, Tensor], prefix: str) -> Tensors:
    """The entries of `fields` that are the leaf `prefix` or lie below it."""
    return {name: value for name, value in fields.items() if name == prefix or name.startswith(prefix + ".")}
