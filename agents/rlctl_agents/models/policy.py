"""The actor-critic network: torso, memory, one head for the action distribution and one for the value."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from rlctl.spec.schema import Network
from rlctl_agents.models.dense import Linear, linear
from rlctl_agents.models.distributions import ActionDistribution
from rlctl_agents.models.inputs import ModelError
from rlctl_agents.models.moments import ObservationMoments, ReturnMoments
from rlctl_agents.models.precision import Bf16
from rlctl_agents.models.torso import Torso, hold_still, make_torso, orthogonal
from rlctl_agents.types.spaces import Spaces


class Recurrent(nn.Module, ABC):
    """Recurrent layer that resets its state wherever an episode begins.

    A cell rather than a layer of torch: a reset may fall between any two rows of any stream. The inputs' part is one
    product over all rows; only the recurrent part is computed row by row.
    """

    gates: ClassVar[int]
    state: ClassVar[tuple[str, ...]]
    """Fields of the state, each [streams, width]; the first is the output."""
    open: ClassVar[int]
    """Index of the gate whose bias starts at 1, so that the state is kept at first."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.from_input = Linear(inputs, self.gates * width)
        self.from_hidden = Linear(width, self.gates * width, bias=False)
        for layer in (self.from_input, self.from_hidden):
            for gate in layer.weight.chunk(self.gates):
                nn.init.orthogonal_(gate.data, 1.0)
        nn.init.zeros_(self.from_input.bias)
        nn.init.ones_(self.from_input.bias.data.view(self.gates, width)[self.open])
        self.features = width

    def initial_state(self, streams: int) -> dict[str, Tensor]:
        """Initial state: zeros for the fields of `state`, each [streams, width]."""
        return {name: torch.zeros(streams, self.features) for name in self.state}

    def forward(self, x: Tensor, first: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Unroll over T rows of B streams.

        Args:
            x: [T, B, inputs].
            first: [T, B] bool; the state before such a row is zero.
            state: before row 0, each [B, width].

        Returns:
            Outputs [T, B, width], and the state after the last row.
        """
        now = tuple(state[name] for name in self.state)
        outputs = []
        keep_T = torch.logical_not(first).to(x.dtype).unsqueeze(-1)
        for gates, keep in zip(self.from_input(x).unbind(), keep_T.unbind(), strict=True):
            now = self.cell(gates, *(part * keep for part in now))
            outputs.append(now[0])
        return torch.stack(outputs), dict(zip(self.state, now, strict=True))

    @abstractmethod
    def cell(self, gates: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """One row: the inputs' part of the gates, [B, gates * width], and the state before -> the state after."""


class Lstm(Recurrent):
    """One LSTM layer.

    Source: Hochreiter and Schmidhuber 1997, forget gates of Gers et al. 2000, their bias of Jozefowicz et al. 2015.
    """

    gates, open = 4, 1
    state = ("core.h", "core.c")

    def cell(self, gates: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        h, c = state
        i, f, g, o = (gates + linear(h, self.from_hidden.weight)).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c


class Gru(Recurrent):
    """One GRU layer, with the reset gate after the recurrent product, as in torch.

    Source: Cho et al. 2014, arXiv:1406.1078.
    """

    gates, open = 3, 1
    state = ("core.h",)

    def cell(self, gates: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        (h,) = state
        r, z, n = gates.chunk(3, -1)
        of_r, of_z, of_n = linear(h, self.from_hidden.weight).chunk(3, -1)
        new = (n + (r + of_r).sigmoid() * of_n).tanh()
        return (torch.lerp(new, h, (z + of_z).sigmoid()),)


CORES: dict[str, type[Recurrent]] = {"lstm": Lstm, "gru": Gru}
"""Recurrent layers by `model.core`."""


class ActorCritic(nn.Module):
    """Network of policy and value, which share torso and memory, unless `model.share` says otherwise.

    It is in eval mode and stays there, acting or learning: see `hold_still`.

    Args:
        network: precision `auto` is fp32 here: the caller decides with `precision.choose`.
        seed: of the initial weights; the random state of the process stays as it is.

    Raises:
        ModelError: network and spaces do not fit.
    """

    def __init__(self, spaces: Spaces, network: Network, *, seed: int) -> None:
        super().__init__()
        self.distribution = ActionDistribution(spaces.action, network.gaussian)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.torso = make_torso(spaces.obs, network)
            features = int(self.torso.features)  # type: ignore[arg-type]
            self.core = CORES[network.core](features, network.width) if network.core != "none" else None
            self.value_torso = None if self._shared(network) else make_torso(spaces.obs, network)
            features = self.core.features if self.core else features
            self.policy = orthogonal(Linear(features, self.distribution.outputs), network.gains.policy)
            self.value = Linear(features, 1)
            orthogonal(self.value, network.gains.value)
        self.log_std = nn.Parameter(torch.zeros(self.distribution.free)) if self.distribution.free else None
        # a user's own network may embed codes: it sees bytes as they are
        normalise, ours = network.normalize.observations in ("auto", True), ":" not in network.torso
        observed = ObservationMoments(spaces.obs, codes=ours) if normalise else None
        self.observed = observed if observed is not None and observed.names else None
        self.returns = ReturnMoments() if network.normalize.returns in ("auto", True) else None
        self._bf16 = Bf16() if network.precision == "bf16" else None
        hold_still(self)

    @property
    def plain(self) -> bool:
        """True for a built-in mlp torso without memory."""
        return self.core is None and isinstance(self.torso, Torso) and not self.torso.image_names

    def initial_state(self, streams: int) -> dict[str, Tensor]:
        """Initial state of the memory, each field [streams, width]; {} without memory."""
        return self.core.initial_state(streams) if self.core else {}

    def step(self, obs: dict[str, Tensor], first: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """One row of K slots, policy only: parameters [K, P] of the action distribution, and the state afterwards."""
        features = self._through(self.torso, obs if self.observed is None else self.observed(obs))
        if self.core is not None:
            rows, state = self.core(features.unsqueeze(0), first.unsqueeze(0), state)
            features = rows[0]
        return self._params(features), state

    def unroll(self, obs: dict[str, Tensor], first: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """All rows of B streams: [T, B, ...] each, `state` before row 0 -> parameters [T, B, P] and values [T, B]."""
        params, value = self.unroll_seen(self.seen(obs), first, state)
        return params, value if self.returns is None else self.returns.raw(value)

    def seen(self, obs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Normalise observations, [T, B, ...] each, where they are real numbers."""
        if self.observed is None:
            return obs
        flat = self.observed({name: leaf.flatten(0, 1) for name, leaf in obs.items()})
        return {name: flat[name].view(leaf.shape) for name, leaf in obs.items()}

    def unroll_seen(self, obs: dict[str, Tensor], first: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Unroll observations from `seen`: as `unroll`, but with values in units of the head."""
        rows = first.shape
        flat = {name: leaf.flatten(0, 1) for name, leaf in obs.items()}
        features = self._through(self.torso, flat)
        if self.core is not None:
            features = self.core(features.view(*rows, -1), first, state)[0].flatten(0, 1)
        value = (self.value_alone(flat) if self.value_torso is not None else self.value(features)).view(rows)
        return self._params(features).view(*rows, -1), value

    def value_alone(self, obs: dict[str, Tensor]) -> Tensor:
        """Values [N, 1] of observations from `seen`, [N, ...] each, by the value's own torso; in units of the head."""
        assert self.value_torso is not None, "policy and value share one"
        value: Tensor = self.value(self._through(self.value_torso, obs))
        return value

    def _shared(self, network: Network) -> bool:
        if network.share is False and self.core is not None:
            raise ModelError(
                f"model.share: false needs `core: none`, policy and value have one memory; got {network.core}"
            )
        return not self.plain if network.share == "auto" else network.share

    def _through(self, torso: nn.Module, obs: dict[str, Tensor]) -> Tensor:
        features: Tensor = torso(obs) if self._bf16 is None else self._bf16(torso, obs)
        return features

    def _params(self, features: Tensor) -> Tensor:
        outputs: Tensor = self.policy(features)
        if self.log_std is None:
            return outputs
        return torch.cat([outputs, self.log_std.expand(*outputs.shape[:-1], -1)], -1)
