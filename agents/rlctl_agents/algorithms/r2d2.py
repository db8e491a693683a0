"""R2D2: recurrent Ape-X on stored sequences, whose first rows (burn-in) only warm up the memory.

docs/algorithms/r2d2.md has the mathematics and every deviation from the paper (Kapturowski et al. 2019,
openreview.net/forum?id=r1lyTjAqYX).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from rlctl.spec import algorithms as specs
from rlctl.spec.schema import Network
from rlctl_agents.algorithms.apex_dqn import ApexDqn
from rlctl_agents.algorithms.base import ActInputs, Batch, Loss, Tensors, below
from rlctl_agents.models.moments import AllReduce
from rlctl_agents.models.policy import CORES
from rlctl_agents.models.q_network import RecurrentQNetwork
from rlctl_agents.ops.n_step import sequence_returns
from rlctl_agents.ops.rescaling import rescaled, unscaled
from rlctl_agents.types.experience import Field, Schema
from rlctl_agents.types.spaces import Spaces, leaf_array, leaves


class R2d2(ApexDqn):
    """Recurrent double dueling Q-learning from prioritized sequences.

    A batch of the replay holds B sequences of L = burn_in + sequence_length rows (`experience.replay.sequences`): the
    fields of segments of L rows, with the actor's memory before the first row, `core.*` [B, width], the last action and
    reward of each row, `last_action.*` and `last_reward` [L, B], and the importance weight [B].
    """

    settings = specs.R2d2
    config: specs.R2d2
    needs_last = frozenset({"action", "reward"})
    network = RecurrentQNetwork
    net: RecurrentQNetwork
    target: RecurrentQNetwork

    @classmethod
    def schema(cls, config: specs.Algorithm, network: Network, spaces: Spaces) -> Schema:
        schema = super().schema(config, network, spaces)
        last = [Field(f"last_{name}", *leaf_array(leaf), "row") for name, leaf in leaves(spaces.action, "action")]
        states = sorted(CORES[network.core].state) if network.core in CORES else []
        memory = [Field(name, "float32", (network.width,), "segment") for name in states]
        fields = (*schema.fields, *last, Field("last_reward", "float32", (), "row"), *memory)
        return Schema(schema.unroll_length, fields)

    def initial_state(self, slots: int) -> Tensors:
        return self.net.core.initial_state(slots)

    def values(self, inputs: ActInputs) -> tuple[Tensor, Tensors, Tensors]:
        """Values after a step of the memory; the last action and reward are recorded."""
        assert inputs.last_action is not None, "of needs_last"
        assert inputs.last_reward is not None, "of needs_last"
        action, reward = inputs.last_action, inputs.last_reward
        q, state = self.decide(self.net, inputs.obs, inputs.first, inputs.state, action, reward)
        return q, {f"last_{name}": leaf for name, leaf in action.items()} | {"last_reward": reward}, state

    def decide(
        self, net: RecurrentQNetwork, obs: Tensors, first: Tensor, state: Tensors, action: Tensors, reward: Tensor
    ) -> tuple[Tensor, Tensors]:
        """Action values [K, options] of K slots by a network, and their memory afterwards.

        Args:
            obs, first, state: as in `ActInputs`.
            action, reward: the last ones, ignored where `first`.
        """
        last = torch.cat([self.choices.codes(action), self.scaled(reward).unsqueeze(1)], 1) * ~first.unsqueeze(1)
        seen = {name: leaf.unsqueeze(0) for name, leaf in net.seen(obs).items()}
        q, after = net.unroll(seen, last.unsqueeze(0), first.unsqueeze(0), state)
        return q[0], after

    def scaled(self, reward: Tensor) -> Tensor:
        """Rewards as the network sees them: scaled and clipped as they are learned from, then rescaled."""
        return rescaled(self.learned(reward))

    def learned(self, reward: Tensor) -> Tensor:
        """Rewards as they are learned from: scaled, then clipped."""
        config = self.config
        scaled = reward if config.reward_scale == 1.0 else reward * config.reward_scale
        return scaled if config.reward_clip is None else scaled.clamp(-config.reward_clip, config.reward_clip)

    def prepare(self, batch: Batch | None, all_reduce: AllReduce) -> Batch | None:
        """Sequences as the networks see them. Of all rows and the one after, [L + 1, B, ...]: `seen.*`, `last`,
        `first`. Of the rows behind the burn-in: `reward`, `terminated`, `truncated`, `valid`, `column`; of these and
        the one after: `legal`, and `q_target`, values of the target network. Of each sequence: `weight`, and `core.*`,
        the memory before the first row."""
        self._drawn = {}
        if batch is None:
            return None
        fields, burn_in = batch.fields, self.config.burn_in
        self._drawn = below(fields, "obs")
        first = fields["first"]
        flat = self.net.seen({name: leaf.flatten(0, 1) for name, leaf in self._drawn.items()})
        seen = {name: leaf.view(*first.shape, *leaf.shape[1:]) for name, leaf in flat.items()}
        chosen = self.choices.columns({name: leaf.flatten(0, 1) for name, leaf in below(fields, "action").items()})
        state = below(fields, "core")
        if not self.config.stored_state:
            state = {name: torch.zeros_like(leaf) for name, leaf in state.items()}
        made: Tensors = {f"seen.{name}": leaf for name, leaf in seen.items()}
        made |= {"last": self._last(fields), "first": first, "weight": fields["weight"], **state}
        for name in ("terminated", "truncated", "valid"):
            made[name] = fields[name][burn_in:]
        made["reward"] = self.learned(fields["reward"])[burn_in:]
        made["column"] = chosen.view(*fields["reward"].shape, -1)[burn_in:]
        if "legal" in fields:
            made["legal"] = fields["legal"][burn_in:]
        made["q_target"] = self._burned_in(self.target, made)
        columns = torch.arange(batch.version.shape[1])
        whole = frozenset({"weight", *state})
        return Batch(made, batch.version, whole, columns, None, batch.all_valid)

    def _last(self, fields: Tensors) -> Tensor:
        """Last action (one-hot codes) and last reward of each row and of the one after, [L + 1, B, options + 1]; 0
        where an episode begins."""
        action, begins = below(fields, "action"), fields["first"]
        last = {name: torch.cat([fields[f"last_{name}"], leaf[-1:]]) for name, leaf in action.items()}
        codes = self.choices.codes({name: leaf.flatten(0, 1) for name, leaf in last.items()})
        reward = torch.cat([fields["last_reward"], fields["reward"][-1:]])
        both = torch.cat([codes.view(*begins.shape, -1), self.scaled(reward).unsqueeze(-1)], -1)
        return both * ~begins.unsqueeze(-1)

    def _burned_in(self, net: RecurrentQNetwork, fields: Tensors) -> Tensor:
        """Values behind the burn-in, through which no gradient flows: [sequence_length + 1, B, options]."""
        burn_in, state = self.config.burn_in, below(fields, "core")
        seen = {name[5:]: leaf for name, leaf in fields.items() if name.startswith("seen.")}
        last, first = fields["last"], fields["first"]
        if burn_in:
            with torch.no_grad():
                begun = {name: leaf[:burn_in] for name, leaf in seen.items()}
                state = net.remember(begun, last[:burn_in], first[:burn_in], state)[1]
        rest = {name: leaf[burn_in:] for name, leaf in seen.items()}
        return net.unroll(rest, last[burn_in:], first[burn_in:], state).q

    def loss(self, batch: Batch) -> Loss:
        """Half the squared error of the values of the taken actions, or Huber's with `huber`; weighted, over the valid
        rows."""
        fields, config = batch.fields, self.config
        q = self._burned_in(self.net, fields)
        q_taken = q[:-1].gather(2, fields["column"]).sum(2)
        with torch.no_grad():
            q_target, legal = fields["q_target"].flatten(0, 1), fields.get("legal")
            chooser = q.flatten(0, 1) if config.double else q_target
            best = self.choices.best(chooser, None if legal is None else legal.flatten(0, 1))[0]
            value = self.choices.of(q_target, best).view(q.shape[:2])
            if config.value_rescaling:
                value = unscaled(value)
            first = fields["first"][config.burn_in :]
            target, whole = sequence_returns(
                fields["reward"], fields["terminated"], fields["truncated"], first, value, config.gamma, config.n_step
            )
            if config.value_rescaling:
                target = rescaled(target)
            valid = fields["valid"] & whole
            rows = valid.sum()
        error = torch.where(valid, q_taken - target, 0.0)
        size = error if config.huber is None else error.clamp(-config.huber, config.huber)
        total = (fields["weight"] * size.detach() * (error - size.detach() / 2)).sum()
        with torch.no_grad():
            size, count = error.abs(), torch.clamp(rows, min=1)
            shown = {
                "td_error": size.sum() / count,
                "q": torch.where(valid, q_taken, 0.0).sum() / count,
                "target": torch.where(valid, target, 0.0).sum() / count,
            }
            mean = size.sum(0) / valid.sum(0).clamp(min=1)
            priority = config.priority_max * size.amax(0) + (1 - config.priority_max) * mean
        return Loss(total, rows.to(torch.float32), shown, priority if config.prioritized else None)

    def update_statistics(self, batch: Batch | None, means: Mapping[str, float], all_reduce: AllReduce) -> None:
        """Add the rows that were learned from to the moments of observations, each as often as it was drawn."""
        if self.net.observed is not None:
            burn_in = self.config.burn_in
            drawn = {name: leaf[burn_in:] for name, leaf in self._drawn.items()}
            self.net.observed.update(drawn or None, None if batch is None else batch.fields["valid"], all_reduce)
