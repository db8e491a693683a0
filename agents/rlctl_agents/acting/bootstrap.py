"""Startup of actors and evaluators: environments, lease and reports; construction of algorithms, for every role."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import Protocol

import torch

from rlctl.spec.schema import Network, Spec
from rlctl_agents import algorithms, envs
from rlctl_agents.algorithms.base import Algorithm, AlgorithmError
from rlctl_agents.envs.base import Env, EnvError, EnvRefused
from rlctl_agents.models.inputs import ModelError
from rlctl_agents.models.precision import bf16_flag, choose
from rlctl_agents.models.torso import hold_still
from rlctl_agents.runtime.health import SIMULATOR_S
from rlctl_agents.runtime.manager_session import ManagerSession, Snapshot
from rlctl_agents.runtime.process import Process, UserFault, as_users_fault, open_wire
from rlctl_agents.types.control import Experience
from rlctl_agents.types.spaces import Spaces
from rlctl_agents.wire.sockets import Wire

log = logging.getLogger(__name__)


class Worker(Protocol):
    """An actor or an evaluator."""

    env: Env
    """The environments that it steps now; closed after the worker."""

    def snapshot(self) -> Snapshot:
        """Snapshot for a report; called by another thread."""

    def run(self) -> None:
        """Work until the process is asked to stop."""

    def close(self) -> None:
        """Send what is left to send, and close the sockets."""


def work(process: Process, count: int, make: Callable[[Process, Wire, ManagerSession, Env], Worker]) -> None:
    """Run an actor or an evaluator until asked to stop.

    Args:
        count: number of environments at first.
        make: makes the worker, once the process has joined the run.

    Raises:
        UserFault: environment, algorithm or network cannot be made as the spec asks.
        EnvError: the environment misbehaved while it ran.
        RuntimeError: the process may not go on under its lease.
    """
    process.explained = (EnvError,)
    process.pulse.silent_s = SIMULATOR_S
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    with ExitStack() as stack:
        wire = open_wire(process.arguments)
        stack.callback(wire.close)
        env = make_env(process.spec, count, training=process.role == "actor")
        worker: Worker | None = None
        # closed after the last report has gone out: a simulator may be slow to close, or fail
        stack.callback(lambda: (env if worker is None else worker.env).close())
        with as_users_fault(AlgorithmError):
            schema = algorithms.schema_of(process.spec, env.spaces, process.spec.policy_names[0])
        session = ManagerSession(process, wire, streams=env.envs * env.spaces.seats)
        lease = session.join(Experience(env.spaces, schema, env.frame_skip))
        if lease is None:
            return
        stack.callback(session.close)
        seed_torch(process.spec.seed, process.role, lease.index)
        worker = make(process, wire, session, env)
        stack.callback(worker.close)
        session.start(worker.snapshot)
        worker.run()
        if session.moved:
            raise RuntimeError(session.moved)


def make_env(spec: Spec, count: int, *, training: bool = True) -> Env:
    """Make the environments of the spec, not reset.

    Args:
        training: False for whole games, in which the loss of a life ends no episode.

    Raises:
        UserFault: they cannot be made as the spec asks.
    """
    with as_users_fault(EnvRefused):
        # every reset names its seeds
        return envs.make_of(spec.env.model_dump(), envs=count, seeds=[0] * count, training=training)


def make_algorithm(spec: Spec, policy: str, spaces: Spaces, *, gpu: bool = False) -> Algorithm:
    """Make the policy of that name with its initial weights, its network in eval mode. Logs the network's precision.

    Args:
        gpu: True if its network will be moved to a GPU.

    Raises:
        UserFault: algorithm, network and spaces do not fit.
    """
    try:
        with as_users_fault(AlgorithmError):
            chosen = spec.policy(policy)
            kind = algorithms.class_of(chosen.algorithm)
            made = kind(chosen.algorithm, decided(chosen.model, spec, spaces, gpu=gpu), spaces, seed=spec.seed)
    except KeyError as fault:
        raise UserFault(f"the match names policy {policy}, which the spec has not") from fault
    for module in made.modules.values():
        hold_still(module)
    return made


def decided(network: Network, spec: Spec, spaces: Spaces, *, gpu: bool) -> Network:
    """The network section with its precision resolved for this machine; logs the choice and the reason.

    Raises:
        AlgorithmError: network and spaces do not fit.
    """
    try:
        chosen = choose(network, spaces.obs, sync=spec.sync, gpu=gpu, flag=bf16_flag())
    except ModelError as fault:
        raise AlgorithmError(str(fault)) from fault
    log.info("the network computes in %s: %s", chosen.name, chosen.why)
    return network.model_copy(update={"precision": chosen.name})


def seed_torch(seed: int, role: str, index: int) -> None:
    """Seed torch's global generators, for equal numbers in every equal run. rlctl draws nothing from them: a network or
    an algorithm of the user's own may."""
    digest = hashlib.sha256(f"rlctl torch {seed} {role} {index}".encode()).digest()
    torch.manual_seed(int.from_bytes(digest[:8], "little"))
