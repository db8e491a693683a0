"""Q-networks: action values of finitely many actions, one number for each option of each choice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from rlctl.spec.schema import Network
from rlctl_agents.models.actions import require_choices
from rlctl_agents.models.dense import Linear, linear
from rlctl_agents.models.inputs import ModelError
from rlctl_agents.models.moments import ObservationMoments
from rlctl_agents.models.policy import CORES, Recurrent
from rlctl_agents.models.precision import Bf16
from rlctl_agents.models.torso import Torso, hold_still, make_torso, orthogonal
from rlctl_agents.types.spaces import Box, Discrete, MultiDiscrete, Space, Spaces, leaves


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch inside the block, for initial weights; the random state of the process stays as it is."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


class NormalizedTorso(nn.Module):
    """Torso with normalised observations; base of Q-networks and of SAC's and TD3's policies. A subclass adds heads,
    and may add a memory.

    It is in eval mode and stays there, acting or learning: see `hold_still`.

    Args:
        seed: of the initial weights.

    Raises:
        ModelError: network and spaces do not fit.
    """

    remembers: ClassVar[bool] = False

    def __init__(self, spaces: Spaces, network: Network, *, seed: int) -> None:
        super().__init__()
        if not self.remembers and network.core != "none":
            raise ModelError(f"model.core: an algorithm that draws single rows has no memory, got {network.core}")
        with seeded(seed):
            self.torso = make_torso(spaces.obs, network)
        self.width = int(self.torso.features)  # type: ignore[arg-type]
        self._layers = [] if network.precision == "bf16" else plain_layers(spaces.obs, self.torso)
        self._activate = torch.tanh if network.activation == "tanh" else torch.relu
        normalise, ours = network.normalize.observations in ("auto", True), ":" not in network.torso
        observed = ObservationMoments(spaces.obs, codes=ours) if normalise else None
        self.observed = observed if observed is not None and observed.names else None
        self._bf16 = Bf16() if network.precision == "bf16" else None
        hold_still(self)

    def seen(self, obs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Normalise observations, [N, ...] each, where they are real numbers."""
        return obs if self.observed is None else self.observed(obs)

    def features(self, seen: dict[str, Tensor]) -> Tensor:
        """Observations from `seen`, [N, ...] each -> [N, features]."""
        if self._layers:  # calls of modules cost as much as small layers
            (x,) = seen.values()
            for layer in self._layers:
                x = self._activate(linear(x, layer.weight, layer.bias))
            return x
        features: Tensor = self.torso(seen) if self._bf16 is None else self._bf16(self.torso, seen)
        return features


def plain_layers(space: Space, torso: nn.Module) -> list[nn.Linear]:
    """The layers of a torso that is an mlp of one vector and nothing else; [] for any other."""
    plain = isinstance(space, Box) and space.dtype == "float32" and len(space.shape) == 1
    if not plain or not isinstance(torso, Torso) or torso.mlp is None or torso.mlp.norms:
        return []
    return [layer for layer in torso.mlp.layers if isinstance(layer, nn.Linear)]


class QNetwork(NormalizedTorso):
    """Torso and a head for the options of all choices; with `dueling` it gives advantages, and another head the value.

    The value of an action is the sum of its choices' values, so that the best option of each is the best action. With
    `dueling` it is V + sum over the choices of (A - mean of A over their options): Wang et al. 2016, arXiv:1511.06581,
    equation 9, for one choice.
    """

    def __init__(self, spaces: Spaces, network: Network, *, dueling: bool, seed: int) -> None:
        sizes = require_choices(spaces.action)
        super().__init__(spaces, network, seed=seed)
        with seeded(seed + 1):
            width = self._head_inputs(network, sum(sizes))
            self.policy = orthogonal(Linear(width, sum(sizes)), network.gains.policy)
            self.value = orthogonal(Linear(width, 1), network.gains.value) if dueling else None
        self._sizes = sizes

    def forward(self, seen: dict[str, Tensor]) -> Tensor:
        """Observations from `seen`, [N, ...] each -> [N, options]."""
        return self.values(self.features(seen))

    def values(self, features: Tensor) -> Tensor:
        """Inputs of the heads, [N, width] -> [N, options]."""
        outputs: Tensor = self.policy(features)
        if self.value is None:
            return outputs
        value: Tensor = self.value(features)
        return self._centred(outputs) + value / len(self._sizes)

    def _centred(self, outputs: Tensor) -> Tensor:
        """Subtract from each option, [N, options], the mean of its choice."""
        if len(set(self._sizes)) == 1:
            table = outputs.view(outputs.shape[0], len(self._sizes), self._sizes[0])
            return (table - table.mean(2, keepdim=True)).flatten(1)
        return torch.cat([one - one.mean(1, keepdim=True) for one in torch.split(outputs, list(self._sizes), 1)], 1)

    def _head_inputs(self, network: Network, options: int) -> int:
        """Width of the heads' inputs; a subclass may make layers before the heads here."""
        return self.width


class RecurrentQNetwork(QNetwork):
    """Q-network with an LSTM or a GRU between torso and heads, whose inputs include the last action and reward.

    Raises:
        ModelError: `model.core` is none.
    """

    remembers = True
    core: Recurrent

    def _head_inputs(self, network: Network, options: int) -> int:
        if network.core not in CORES:
            raise ModelError(f"model.core: a recurrent Q-network has an lstm or a gru, got {network.core}")
        self.core = CORES[network.core](self.width + options + 1, network.width)
        return self.core.features

    def unroll(self, seen: dict[str, Tensor], last: Tensor, first: Tensor, state: dict[str, Tensor]) -> Unrolled:
        """Values of T rows of B streams.

        Args:
            seen: observations from `seen`, [T, B, ...] each.
            last: [T, B, options + 1] last action, as one-hot codes, and last reward.
            first: [T, B] bool; the state before such a row is zero.
            state: before row 0, each [B, width].
        """
        outputs, after = self.remember(seen, last, first, state)
        return Unrolled(self.values(outputs.flatten(0, 1)).view(*first.shape, -1), after)

    def remember(
        self, seen: dict[str, Tensor], last: Tensor, first: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Inputs of the heads, [T, B, width], and the state after the last row; arguments as in `unroll`."""
        features = self.features({name: leaf.flatten(0, 1) for name, leaf in seen.items()})
        return self.core(torch.cat([features.view(*first.shape, -1), last], -1), first, state)  # type: ignore[no-any-return]


class Unrolled(NamedTuple):
    q: Tensor  # [T, B, options]
    state: dict[str, Tensor]  # after the last row, each [B, width]


class Choices(nn.Module):
    """Actions of Discrete and MultiDiscrete spaces as one index for each choice, and sums of their values.

    Where no option of a choice is legal, all of them are. A module only so that it follows the network to its device.
    """

    sizes: Tensor  # [D] options of each choice
    begin: Tensor  # [D] its first column
    column: Tensor  # [D, most] columns of its options, padded with the first one's
    real: Tensor  # [D, most] False for the padding

    def __init__(self, space: Space) -> None:
        super().__init__()
        self._leaves = list(leaves(space, "action"))
        sizes = require_choices(space)
        self.count, self.options = len(sizes), sum(sizes)
        self._even = len(set(sizes)) == 1
        of = torch.tensor(sizes)
        begin, at = of.cumsum(0) - of, torch.arange(max(sizes))
        real = at < of[:, None]
        for name, value in (
            ("sizes", of), ("begin", begin), ("real", real), ("column", begin[:, None] + torch.where(real, at, 0)),
        ):  # fmt: skip
            self.register_buffer(name, value, persistent=False)

    def best(self, q: Tensor, legal: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The best action of each row.

        Args:
            q, legal: [N, options].

        Returns:
            [N, D] best option of each choice, [N] value of the action.
        """
        if self.count == 1 and legal is None:
            top = q.max(1, keepdim=True)
            return top.indices, top.values.squeeze(1)
        table = q[:, self.column]
        if legal is not None or not self._even:
            table = table.masked_fill(~self._allowed(legal), -torch.inf)
        top = table.max(-1)
        return top.indices, top.values.sum(1)

    def of(self, q: Tensor, chosen: Tensor) -> Tensor:
        """Values [N] of actions [N, D]."""
        if self.count == 1:
            return q.gather(1, chosen).squeeze(1)
        return q.gather(1, chosen + self.begin).sum(1)

    def random(self, uniform: Tensor, legal: Tensor | None = None) -> Tensor:
        """Uniformly drawn legal options [N, D], from uniforms [N, D]."""
        if legal is None:
            return torch.minimum((uniform * self.sizes).long(), self.sizes - 1)
        ranks = self._allowed(legal).cumsum(-1)
        count = ranks[..., -1]
        rank = torch.minimum((uniform * count).long(), count - 1)
        return (ranks <= rank.unsqueeze(-1)).sum(-1)

    def _allowed(self, legal: Tensor | None) -> Tensor:
        """Legal options as [N or 1, D, most] bool."""
        if legal is None:
            return self.real.unsqueeze(0)
        allowed = legal[:, self.column] & self.real
        return allowed | (self.real & ~allowed.any(-1, keepdim=True))

    def split(self, chosen: Tensor) -> dict[str, Tensor]:
        """Actions [N, D] in the form of the space."""
        if len(self._leaves) == 1 and isinstance(self._leaves[0][1], MultiDiscrete):
            return {self._leaves[0][0]: chosen}
        parts, found = iter(chosen.unbind(1)), {}
        for name, leaf in self._leaves:
            one = isinstance(leaf, Discrete)
            found[name] = next(parts) if one else torch.stack([next(parts) for _ in leaf.n], 1)  # type: ignore[union-attr]
        return found

    def columns(self, action: dict[str, Tensor]) -> Tensor:
        """Columns [N, D] of the options chosen by actions in the form of the space."""
        parts = [action[name].unsqueeze(-1).flatten(1) for name, _ in self._leaves]
        return (parts[0] if len(parts) == 1 else torch.cat(parts, 1)) + self.begin

    def codes(self, action: dict[str, Tensor]) -> Tensor:
        """One-hot codes of actions in the form of the space: [N, options] float32, 1 at the chosen options, else 0."""
        columns = self.columns(action)
        options = torch.arange(self.options, device=columns.device)
        return (columns.unsqueeze(2) == options).any(1).to(torch.float32)
