"""Memory and settings of a shard, computed without torch from a spec and the spaces of its environment."""

from __future__ import annotations

from rlctl.spec.algorithms import QLearning, R2d2, Replayed
from rlctl.spec.schema import Network, Spec
from rlctl_agents.experience.replay.messages import unit_bytes
from rlctl_agents.experience.replay.priorities import RECORDED, ReplaySettings
from rlctl_agents.experience.replay.shard import Shard
from rlctl_agents.types.experience import Field, Schema
from rlctl_agents.types.spaces import Box, Spaces, choices, has_images, leaf_array, leaves

STATES = {"lstm": ("core.c", "core.h"), "gru": ("core.h",)}
"""Fields of the recurrent state by `model.core`, as `models.policy.CORES` has them."""

DRAWS_BYTES = 1 << 27
"""Bytes of draws kept for resending, over all learners; more where two draws are larger. A new draw for a lost one
would count as sampled, too. They are part of `rlctl.spec.problems.replay.PROCESS_BYTES`."""


def shard_capacity(spec: Spec, shards: int = 0) -> int:
    """Rows of one shard: its part of `replay.capacity`.

    Args:
        shards: number of shards; 0: that of the spec.
    """
    assert spec.replay is not None, "the spec has a replay for an algorithm that learns from one"
    shards = shards or spec.replay_shards
    return -(-spec.replay.capacity // shards)


def samples_per_insert(spec: Spec, config: Replayed, spaces: Spaces) -> float:
    """Rows drawn for each inserted row; 0: no limit."""
    assert spec.replay is not None, "the spec has a replay for an algorithm that learns from one"
    return spec.replay.ratio_of(config, images=has_images(spaces.obs))


def shard_settings(config: Replayed) -> ReplaySettings:
    """Settings of an algorithm that a shard needs: for the units that are drawn, and for initial priorities."""
    recurrent = config if isinstance(config, R2d2) else None
    return ReplaySettings(
        n_step=config.n_step,
        sequence=recurrent.sequence_length if recurrent else 0,
        burn_in=recurrent.burn_in if recurrent else 0,
        rescaled=recurrent is not None and recurrent.value_rescaling,
        priority_max=recurrent.priority_max if recurrent else 1.0,
        gamma=config.gamma,
        prioritized=config.prioritized,
        alpha=config.priority_alpha,
        epsilon=config.priority_epsilon,
        reward_scale=config.reward_scale,
        reward_clip=config.reward_clip,
    )


def shard_bytes(spec: Spec, config: Replayed, spaces: Spaces, schema: Schema | None = None) -> int:
    """Bytes of the arrays of one shard.

    Args:
        spec: the whole spec, in its normal form.
        config: of a built-in algorithm.
        schema: of a class of the user's own; None: that of the algorithm.
    """
    schema = schema or stored(config, spec.policy(spec.policy_names[0]).model, spaces)
    return Shard.bytes_for(schema, shard_settings(config), shard_capacity(spec))


def draws_bytes(config: Replayed, schema: Schema) -> int:
    """Bytes beyond `DRAWS_BYTES` of two draws, one of which is made while the other is sent."""
    units = config.batch_size // config.unit_rows
    return max(0, 2 * units * unit_bytes(schema, shard_settings(config)) - DRAWS_BYTES)


def stored(config: Replayed, network: Network, spaces: Spaces) -> Schema:
    """Experience schema of a built-in algorithm, equal to the `schema` of its class, which needs torch."""
    obs = [
        Field(name, *leaf_array(leaf), "row+1", leaf.stack if isinstance(leaf, Box) else 0)
        for name, leaf in leaves(spaces.obs, "obs")
    ]
    action = [Field(name, *leaf_array(leaf), "row") for name, leaf in leaves(spaces.action, "action")]
    legal = [Field("legal", "bool", (sum(choices(spaces.action)),), "row+1")] if spaces.legal else []
    flags = [Field(name, "bool", (), "row") for name in ("terminated", "truncated", "valid")]
    first, reward = Field("first", "bool", (), "row+1"), Field("reward", "float32", (), "row")
    values = RECORDED if isinstance(config, QLearning) and config.prioritized else ()
    recorded = [Field(name, "float32", (), "row") for name in values]
    memory: list[Field] = []
    if isinstance(config, R2d2):
        last = [Field(f"last_{one.name}", one.dtype, one.shape, "row") for one in (*action, reward)]
        state = [Field(name, "float32", (network.width,), "segment") for name in STATES.get(network.core, ())]
        memory = [*last, *state]
    return Schema(config.unroll_length, (*obs, first, *action, reward, *flags, *legal, *recorded, *memory))
