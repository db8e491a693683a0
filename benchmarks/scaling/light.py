"""Actors with a policy that needs no torch, so that a hundred fit into one machine's memory.

    python -m benchmarks.scaling.light COUNT FIRST COUNTERS EXPERIENCE -- actor --name actor-{} ...

Forks COUNT actors, which join the run like any other: lease, experience channel, modelpool, reports. The policy is the
same mlp in numpy; where the run has a replay, even choices. An actor that is killed is forked again. Their indexes
begin at FIRST. COUNTERS is a file of 2 x COUNT int64: agent steps of each, and its process id.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load

from rlctl_agents import envs
from rlctl_agents.experience.segment_writer import FinishedBlock, SegmentWriter
from rlctl_agents.runtime.manager_session import ManagerSession, Snapshot, SnapshotRequest
from rlctl_agents.runtime.process import Process, open_wire, run_role
from rlctl_agents.types.control import Channels, Experience, GetModel, GotModel
from rlctl_agents.types.experience import Arrays, ModelRef
from rlctl_agents.types.spaces import Discrete
from rlctl_agents.wire.experience import ExperienceSender
from rlctl_agents.wire.notice import NoticeSubscriber
from rlctl_agents.wire.rpc.client import RpcClient

PULL_S, WAIT_S = 2.0, 0.05
STREAMS_PER_LEASE = 1_000_000
"""Stream ids of one lease, as for every actor (acting/policy_player.py, which needs torch)."""
DIE_WITH_PARENT = 1


class Mlp:
    """The product's mlp policy: two tanh layers and a softmax."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._layers: list[tuple[NDArray[Any], NDArray[Any]]] = []
        self.ref: ModelRef | None = None

    def take(self, ref: ModelRef, data: bytes) -> None:
        """Act with these weights from now on."""
        weights, self.ref = load(data), ref
        names = ("torso.mlp.layers.0", "torso.mlp.layers.1", "policy")
        self._layers = [(weights[f"{name}.weight"].T, weights[f"{name}.bias"]) for name in names]

    def act(self, obs: NDArray[Any]) -> Arrays:
        """[K, ...] -> action [K] and its log-probability [K]."""
        x = obs.reshape(len(obs), -1).astype(np.float32, copy=False)
        *hidden, (head, bias) = self._layers
        for weight, offset in hidden:
            x = np.tanh(x @ weight + offset)
        logits = x @ head + bias
        logits -= logits.max(1, keepdims=True)
        log_probs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        action = (log_probs + self._rng.gumbel(size=log_probs.shape)).argmax(1)
        log_prob = log_probs[np.arange(len(action)), action]
        return {"action": action.astype(np.int64), "log_prob": log_prob.astype(np.float32)}


class Uniform:
    """Even choices, with values of 0 for a replay's first priorities; weights are pulled and not used."""

    def __init__(self, seed: int, options: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._options = options
        self.ref: ModelRef | None = None

    def take(self, ref: ModelRef, data: bytes) -> None:
        """Rows are of this version from now on."""
        self.ref = ref

    def act(self, obs: NDArray[Any]) -> Arrays:
        """[K, ...] -> action, q and q_max [K] each."""
        zeros = np.zeros(len(obs), np.float32)
        return {"action": self._rng.integers(self._options, size=len(obs)), "q": zeros, "q_max": zeros}


class LightActor:
    """One actor: one vector of environments, one policy, one learner and one modelpool."""

    def __init__(self, process: Process, experience: Experience, counter: NDArray[np.int64]) -> None:
        self._process, self._experience, self._counter = process, experience, counter
        self._asked = SnapshotRequest(Snapshot())

    def run(self) -> None:
        """Act until asked to stop."""
        process, spec = self._process, self._process.spec
        with ExitStack() as stack:
            wire = open_wire(process.arguments)
            stack.callback(wire.close)
            count = spec.roles.actor.envs
            env = envs.make(spec.env.id, envs=count, seeds=[0] * count, kwargs=spec.env.kwargs)
            member = ManagerSession(process, wire, streams=count)
            lease = member.join(self._experience)
            if lease is None:
                return
            stack.callback(member.close)
            member.start(lambda: self._asked.ask(0.5))
            self._member = member
            pool = self._pool()
            if not pool:
                return
            self._client = RpcClient(wire, pool["rpc"], process.boot)
            stack.callback(self._client.close)
            self._notices = NoticeSubscriber(wire, pool["notice"], "main")
            stack.callback(self._notices.close)
            self._policy = self._make_policy(int(process.boot, 16))
            self._peers = member.peers
            self._sender = ExperienceSender(
                wire, self._receiver()["experience"], run=process.uid, boot=process.boot,
                schema=self._experience.schema, term=member.term, queue_blocks=1,
            )  # fmt: skip
            stack.callback(self._end)
            self._streams = lease.index * STREAMS_PER_LEASE + np.arange(count)
            self._loop(env, SegmentWriter(self._experience.schema, count))

    def _loop(self, env: envs.Env, writer: SegmentWriter) -> None:
        metrics = self._process.metrics
        while self._turn() and not self._pull():
            self._process.stop.wait(WAIT_S)
        decisions = env.reset(None)
        self._process.pulse.ready = True
        while self._turn():
            block = writer.observe(decisions, {})
            if block is not None and not self._hand_over(block):
                return
            chosen = self._policy.act(decisions.obs["obs"])
            assert self._policy.ref is not None
            writer.record(chosen, self._policy.ref.version)
            self._sender.poll(0.0)
            decisions = env.step(decisions.slot, {"action": chosen["action"]})
            self._counter += decisions.slot.size
            for name in ("agent_steps", "env_steps", "frames"):
                metrics.add(name, decisions.slot.size)

    def _hand_over(self, block: FinishedBlock) -> bool:
        ref = self._policy.ref
        assert ref is not None
        stream, row0 = self._streams[block.slot].tolist(), block.row0.tolist()
        while not self._sender.offer(
            model=ref, stream=stream, row0=row0, version=block.version, fields=block.fields
        ):  # fmt: skip
            if not self._wait():
                return False
        while not self._sender.reserve(block.version.size):
            if not self._wait():
                return False
        if self._notices.latest() is not None:
            self._pull()
        return True

    def _wait(self) -> bool:
        self._sender.poll(WAIT_S)
        return self._turn()

    def _pull(self) -> bool:
        """Ask for newer weights; True if there are weights now."""
        try:
            got, buffers = self._client.call(
                GetModel("main", have=self._policy.ref), GotModel, deadline_s=PULL_S, keep_waiting=self._turn
            )
        except TimeoutError:
            return self._policy.ref is not None
        if got.state == "new" and got.ref is not None:
            self._policy.take(got.ref, b"".join(buffers))
        return self._policy.ref is not None

    def _turn(self) -> bool:
        self._process.pulse.beat()
        sender = getattr(self, "_sender", None)
        if sender is not None:
            sender.term = self._member.term
            self._asked.answer(self._books)
            if self._member.peers is not self._peers:
                self._peers = self._member.peers
                sender.redirect(self._receiver()["experience"])
        return not self._process.stop.is_set()

    def _books(self) -> Snapshot:
        return Snapshot(sent=dict(self._sender.ledgers), pending=self._sender.pending, model=self._policy.ref)

    def _end(self) -> None:
        self._sender.flush(0.3)
        self._sender.close()
        books = self._books()
        self._member.snapshot = lambda: books

    def _make_policy(self, seed: int) -> Mlp | Uniform:
        action = self._experience.spaces.action
        if self._process.spec.policy().algorithm.needs_replay:
            assert isinstance(action, Discrete)
            return Uniform(seed, action.n)
        return Mlp(seed)

    def _receiver(self) -> Channels:
        """Channels of the receiver of its rows, chosen as an actor chooses (roles/actor.py)."""
        receiver = self._member.assigned("replay") or self._member.assigned("learner")
        assert receiver is not None, "waited for"
        return receiver

    def _pool(self) -> Channels:
        """Wait for a modelpool and a receiver, and return the modelpool's channels; {} when asked to stop."""
        while not self._process.stop.is_set():
            pools = self._member.peers_of("modelpool")
            if (self._member.peers_of("replay") or self._member.peers_of("learner")) and pools:
                return next(iter(pools.values()))
            self._process.stop.wait(0.2)
        return {}


def be_actor(index: int, words: list[str], experience: Experience, counter: NDArray[np.int64]) -> int:
    """In a child: one actor from beginning to end."""
    ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    named = [word.replace("{}", str(index)) for word in words]
    return run_role(named, lambda process: LightActor(process, experience, counter).run())


def main(count: int, first: int, counters: Path, experience: Path, words: list[str]) -> None:
    """Fork the actors, and again each one that ends, until killed."""
    steps, pids = np.memmap(counters, np.int64, "r+", shape=(2, count))
    told = msgspec.json.decode(experience.read_bytes(), type=Experience)
    children: dict[int, int] = {}
    waiting = list(range(count))
    while True:
        for index in waiting:
            child = os.fork()
            if child == 0:
                os._exit(be_actor(first + index, words, told, steps[index : index + 1]))
            children[child], pids[index] = index, child
        ended, _ = os.wait()
        waiting = [children.pop(ended)]


if __name__ == "__main__":
    at = sys.argv.index("--")
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]), sys.argv[at + 1 :])
