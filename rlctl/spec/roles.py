"""The roles of a run: how many of each, and what one may use."""

from __future__ import annotations

import math
from typing import Annotated, Final, Literal

from pydantic import Field

from rlctl.spec.base import Model, live, restart
from rlctl.spec.units import Cores, Memory

OnPush = Literal["rolling", "checkpoint-restart", "next-run", "manual"]
FAN_OUT: Final = 8
"""Children of a modelpool in their tree, at most: number i takes its weights from number (i - 1) // FAN_OUT."""


class Manager(Model):
    """Leases, matches, stop conditions, checkpoints, status. Exactly one."""

    cpu: Annotated[Cores, restart("manager")] = 0.25
    memory: Annotated[Memory, restart("manager")] = "512Mi"
    """Enough for 2,048 actors; each more needs 128 KiB."""
    on_push: Annotated[OnPush, live()] = "rolling"


class ModelPool(Model):
    """Serves weights: live versions from memory, kept ones from the volume."""

    replicas: Annotated[int, Field(ge=1, le=64), live()] = 1
    """More than one form a tree: number 0 takes weights from learners, the last ones serve the actors."""
    cpu: Annotated[Cores, restart("modelpool")] = 0.25
    memory: Annotated[Memory, restart("modelpool")] = "1Gi"
    """Half of it is for weights. Enough for 2,048 actors that pull from one; each more needs 384 KiB."""
    on_push: Annotated[OnPush, live()] = "rolling"


class Learner(Model):
    """Consumes experience, publishes weights. Replicas are per population member."""

    replicas: Annotated[int, Field(ge=1, le=512), live("manager")] = 1
    """Learners that step together, each with its part of batch_size; actors are shared out over them."""
    cpu: Annotated[Cores, restart("learner")] = 1.0
    """Rounded down, the threads that it computes with, whatever the machine has."""
    memory: Annotated[Memory, restart("learner")] = "4Gi"
    """On a cluster up to a quarter of it may be shared memory (/dev/shm)."""
    gpu: Annotated[int, Field(ge=0, le=8), restart("learner")] = 0
    on_push: Annotated[OnPush, live()] = "checkpoint-restart"


class Actor(Model):
    """Steps environments, and chooses their actions itself."""

    replicas: Annotated[int, Field(ge=0, le=100_000), live()] = 1
    max_replicas: Annotated[int | None, Field(ge=1, le=100_000), live()] = None
    """The most that `scale` will accept; fixes the number of objects on a cluster.

    null: replicas, but at least 64 on one machine; on a cluster rounded up to a full 1,000."""
    envs: Annotated[int, Field(ge=1, le=65_536), restart("actor")] = 16
    """Environments of one actor, whose actions are chosen as one batch; stepped one after the other unless they are one
    vector."""
    cpu: Annotated[Cores, restart("actor")] = 1.0
    """Rounded down, the threads of its network, and of the games of the preset atari."""
    memory: Annotated[Memory, restart("actor")] = "2Gi"
    on_push: Annotated[OnPush, live()] = "rolling"


class Evaluator(Model):
    """Plays whole episodes with one pinned model; the only source of `stop.eval_return`."""

    replicas: Annotated[int, Field(ge=0, le=1_000), live("manager")] = 1
    cpu: Annotated[Cores, restart("evaluator")] = 1.0
    memory: Annotated[Memory, restart("evaluator")] = "2Gi"
    on_push: Annotated[OnPush, live()] = "rolling"


class Replay(Model):
    """Holds a part of the replay. Each replica is one shard."""

    replicas: Annotated[int, Field(ge=1, le=256), live("manager")] = 1
    """A shard that is added begins empty, with its part of `replay.capacity`; those that live keep theirs. The rows of
    one that is removed are dropped."""
    cpu: Annotated[Cores, restart("replay")] = 1.0
    memory: Annotated[Memory, restart("replay")] = "8Gi"
    on_push: Annotated[OnPush, live()] = "rolling"


class Inference(Model):
    """Central inference for actors that only step simulators."""

    replicas: Annotated[int, Field(ge=1, le=256), live()] = 1
    cpu: Annotated[Cores, restart("inference")] = 1.0
    memory: Annotated[Memory, restart("inference")] = "4Gi"
    gpu: Annotated[int, Field(ge=0, le=8), restart("inference")] = 0
    on_push: Annotated[OnPush, live()] = "rolling"


class Roles(Model):
    """One entry per role; what is left out takes its defaults."""

    manager: Manager = Manager()
    modelpool: ModelPool = ModelPool()
    learner: Learner = Learner()
    actor: Actor = Actor()
    evaluator: Evaluator = Evaluator()
    replay: Replay | None = None
    inference: Inference | None = None


def manager_mib(actors: int) -> float:
    """MiB that a manager of so many actors needs.

    A connection costs 88 KiB once 450 messages have gone each way (measured: two chunks of 256 messages of libzmq's
    queues a direction, and the buffers of its engine), and the records of a process 10 to 20 KiB.
    """
    return 256 + actors / 8


def modelpool_mib(actors: int, modelpools: int) -> float:
    """MiB that each of so many modelpools needs.

    An actor costs 170 KiB: two connections, for weights and for notices, that have carried 450 messages. As much
    again is for weights.
    """
    return 2 * (128 + math.ceil(actors / len(serving(modelpools))) * 3 / 16)


def serving(modelpools: int) -> range:
    """Numbers of the modelpools that actors pull from: the leaves of the tree.

    Example:
        Of 1 it is number 0, of 9 they are 1 to 8, of 10 they are 2 to 9, because 9 takes its weights from 1.
    """
    return range((modelpools - 2) // FAN_OUT + 1, modelpools)
