"""Whether learner and actors mean the same by a segment."""

from __future__ import annotations

from rlctl.spec.schema import Spec
from rlctl_agents import algorithms
from rlctl_agents.acting.bootstrap import policy_names
from rlctl_agents.algorithms.base import AlgorithmError
from rlctl_agents.runtime.process import UserFault
from rlctl_agents.types.experience import Schema
from rlctl_agents.types.spaces import Spaces


def own_schema(spec: Spec, spaces: Spaces) -> Schema:
    """What this learner means by a segment.

    Raises:
        UserFault: the algorithm cannot be found, or does not fit the spaces.
    """
    policy = spec.policy(policy_names(spec)[0])
    try:
        return algorithms.find(policy.algorithm.name).schema(policy.algorithm, policy.model, spaces)
    except AlgorithmError as fault:
        raise UserFault(str(fault)) from fault


def difference_of(own: Schema, actors: Schema) -> str:
    """What learner and actors understand differently by a segment; "" when nothing."""
    if own.segment_steps != actors.segment_steps:
        return f"segments have {own.segment_steps} steps at the learner and {actors.segment_steps} at the actors"
    here, there = set(own.fields), set(actors.fields)
    if own == actors:
        return ""
    return (
        f"segments hold {sorted(field.name for field in here - there)} at the learner and "
        f"{sorted(field.name for field in there - here)} at the actors: different releases of the algorithm?"
    )
