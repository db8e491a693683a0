"""Rules about values that have to be multiples of others, in words."""

from __future__ import annotations

from rlctl.spec.words import either


def no_multiple(value: int, of: int, name: str, *, shown: str = "") -> str:
    """`a multiple of unroll_length, got 250 = 12 x 20 + 10; choose 240 or 260`

    Args:
        name: of the number that divides.
        shown: the same as a product; "": the number itself.
    """
    got = f"{value} = {value // of} x {shown or of} + {value % of}"
    return f"a multiple of {name}, got {got}; choose {_nearest(value, of)}"


def partial_blocks(*, envs: int, seats: int, unroll_length: int, learners: int, batch_size: int) -> str | None:
    """Fault of a `batch_size` that splits blocks of an actor; None: it does not.

    It is one for an algorithm that learns from the newest policy alone, as PPO: the rest of a block is older than the
    next weights.

    Args:
        envs: of an actor.
        seats: of an environment, which all act in every step.
    """
    block = envs * seats * unroll_length
    if batch_size % (block * learners) == 0:
        return None
    named, numbers = ("seats x ", f"{seats} x ") if seats > 1 else ("", "")
    return (
        f"must hold whole blocks of an actor for each learner, roles.actor.envs x {named}unroll_length = {envs} x"
        f" {numbers}{unroll_length} = {block} steps, or the rest of a block is dropped; got {batch_size}; choose"
        f" {_nearest(batch_size, block * learners)}"
    )


def _nearest(value: int, of: int) -> str:
    """The multiples just below and above a value, without 0."""
    low = value - value % of
    return either([str(multiple) for multiple in (low, low + of) if multiple > 0])
