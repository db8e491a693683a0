"""The actor-critic network: torso, memory, one head for the action distribution and one for the value."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rlctl.spec.schema import Network
from rlctl_agents.models.core import Lstm
from rlctl_agents.models.distributions import ActionDistribution, ActionSpaceError
from rlctl_agents.models.inputs import ModelError
from rlctl_agents.models.moments import ObservationMoments, ReturnMoments
from rlctl_agents.models.precision import Bf16
from rlctl_agents.models.torso import Torso, hold_still, make_torso, orthogonal
from rlctl_agents.types.spaces import Spaces

POLICY_GAIN = 0.01
"""Of the last policy layer: the first policy is nearly uniform, whatever the observation."""


class ActorCritic(nn.Module):
    """Policy and value. They share torso and memory, except that a plain mlp is cheap enough to have twice.

    It is in eval mode and stays there, acting or learning: see `hold_still`.

    Args:
        network: precision `auto` is fp32 here: who makes the network decides (`precision.choose`).
        seed: of the initial weights; the random state of the process stays as it is.
        normalize_returns: the head of the value computes in units of `returns`.

    Raises:
        ModelError: network and spaces do not fit.
    """

    def __init__(self, spaces: Spaces, network: Network, *, seed: int, normalize_returns: bool = False) -> None:
        super().__init__()
        try:
            self.distribution = ActionDistribution(spaces.action)
        except ActionSpaceError as error:
            raise ModelError(str(error)) from error
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.torso = make_torso(spaces.obs, network)
            features = int(self.torso.features)  # type: ignore[arg-type]
            self.core = Lstm(features, network.width) if network.core == "lstm" else None
            plain = self.core is None and isinstance(self.torso, Torso) and not self.torso.image_names
            self.value_torso = make_torso(spaces.obs, network) if plain else None
            features = self.core.features if self.core else features
            self.policy = orthogonal(nn.Linear(features, self.distribution.outputs), POLICY_GAIN)
            self.value = nn.Linear(features, 1)
            orthogonal(self.value, 1.0)
        self.log_std = nn.Parameter(torch.zeros(self.distribution.free)) if self.distribution.free else None
        observed = ObservationMoments(spaces.obs) if network.normalize.observations in ("auto", True) else None
        self.observed = observed if observed is not None and observed.names else None
        self.returns = ReturnMoments() if normalize_returns else None
        self._bf16 = Bf16() if network.precision == "bf16" else None
        hold_still(self)

    def initial_state(self, streams: int) -> dict[str, Tensor]:
        """{} without memory, else `core.h` and `core.c` [streams, width]."""
        return self.core.initial_state(streams) if self.core else {}

    def step(self, obs: dict[str, Tensor], first: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """One row of K slots, policy only: parameters [K, P] of the action distribution, state after the row."""
        features = self._through(self.torso, self._seen(obs))
        if self.core is not None:
            rows, state = self.core(features.unsqueeze(0), first.unsqueeze(0), state)
            features = rows[0]
        return self._params(features), state

    def unroll(self, obs: dict[str, Tensor], first: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """All rows of B streams: [T, B, ...] each, `state` before row 0 -> parameters [T, B, P] and values [T, B]."""
        rows = first.shape
        flat = self._seen({name: leaf.flatten(0, 1) for name, leaf in obs.items()})
        features = self._through(self.torso, flat)
        if self.core is not None:
            features = self.core(features.view(*rows, -1), first, state)[0].flatten(0, 1)
        valued = self._through(self.value_torso, flat) if self.value_torso is not None else features
        value = self.value(valued).view(rows)
        return self._params(features).view(*rows, -1), value if self.returns is None else self.returns.raw(value)

    def _seen(self, obs: dict[str, Tensor]) -> dict[str, Tensor]:
        return obs if self.observed is None else self.observed(obs)

    def _through(self, torso: nn.Module, obs: dict[str, Tensor]) -> Tensor:
        features: Tensor = torso(obs) if self._bf16 is None else self._bf16(torso, obs)
        return features

    def _params(self, features: Tensor) -> Tensor:
        outputs: Tensor = self.policy(features)
        if self.log_std is None:
            return outputs
        return torch.cat([outputs, self.log_std.expand(*outputs.shape[:-1], -1)], -1)
