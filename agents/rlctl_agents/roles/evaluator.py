"""The evaluator: plays whole games with one pinned model. Stop conditions look at its results."""

from __future__ import annotations

import logging
import math
import time
from typing import NamedTuple

import numpy as np
import torch
from msgspec.structs import replace
from numpy.typing import NDArray

from rlctl_agents.acting.bootstrap import make_algorithm, make_env, work
from rlctl_agents.acting.episodes import EpisodeResults, play
from rlctl_agents.acting.policy import Table
from rlctl_agents.acting.policy_player import NetworkPolicy
from rlctl_agents.acting.random_streams import environment_seeds
from rlctl_agents.algorithms.base import Algorithm
from rlctl_agents.checkpoint.policy import PolicyFileError, pack_policy, unpack_policy
from rlctl_agents.envs.base import Env, EnvError, EnvRefused
from rlctl_agents.models.weights import unpack_into
from rlctl_agents.policies.evaluate import ENVS, NOISE_ROWS, outside_of_a_run
from rlctl_agents.policies.filming import Unwanted, recorded
from rlctl_agents.repro.recording import EpisodeRecorder
from rlctl_agents.repro.sending import tell_extremes, told_crash
from rlctl_agents.runtime.gauges import ENVIRONMENTS, PLAYS
from rlctl_agents.runtime.health import SIMULATOR_S, resets_s
from rlctl_agents.runtime.manager_session import ManagerSession, Snapshot
from rlctl_agents.runtime.process import Process, UserFault
from rlctl_agents.types.control import EvalResult, Film, Match, Quota, Reply
from rlctl_agents.types.experience import ModelRef
from rlctl_agents.weights.client import Model, Pool
from rlctl_agents.wire.rpc.client import RemoteError
from rlctl_agents.wire.sockets import Wire

IDLE_S = 0.25
KEEP_S = 60.0
"""Longest wait for the modelpool to keep a model: it may be restarting, or have a slow volume."""
SAY_S = 15.0
"""Longest wait for the manager to take a result: it may be restarting."""

log = logging.getLogger(__name__)


def main(process: Process) -> None:
    """Play the matches that the manager names until asked to stop; raises what `work` does."""
    work(process, process.spec.evaluation.envs or ENVS, Evaluator)


class _Loaded(NamedTuple):
    """Network of a match, its progress, and the model that it was made from."""

    algorithm: Algorithm
    progress: int
    model: Model


class Evaluator:
    """One vector of environments and the networks of the policies met so far."""

    def __init__(self, process: Process, wire: Wire, session: ManagerSession, env: Env) -> None:
        self._process, self._wire, self._session = process, wire, session
        self.env: Env = self._recorded(env)
        self._networks: dict[ModelRef, _Loaded] = {}  # of the present match
        self._pool: Pool | None = None
        self._pool_address = ""
        self._model: ModelRef | None = None
        self._done: int | None = None  # the match played last

    def snapshot(self) -> Snapshot:
        """Snapshot for a report; called by the reporting thread."""
        return Snapshot(model=self._model)

    def run(self) -> None:
        """Play until the process is asked to stop."""
        stop = self._process.stop
        while not stop.is_set():
            self._process.pulse.beat()
            match = self._session.match
            if match is None:  # with one, the pool is asked for its models
                self._process.pulse.ready = self._process.pulse.ready or self._has_any_model()
            if match is None or match.quota is None or match.id == self._done or not self._measure(match, match.quota):
                self._session.heard.wait(IDLE_S)
                self._session.heard.clear()

    def _measure(self, match: Match, quota: Quota) -> bool:
        """Load the models of a match, play it and report the result; False as long as the pool lacks one of them."""
        self._process.metrics.set(PLAYS, match.id)  # loading large weights takes its time as well
        try:
            if not self._load(match):
                return False
            started = time.perf_counter()
            try:
                played = self._play(match, quota)
            except EnvRefused as error:
                raise UserFault(str(error)) from error
            except EnvError as error:
                raise told_crash(error, self.env, self._process, self._session, *self._acted(match)) from error
            if played is not None:
                seconds = time.perf_counter() - started
                acted = self._acted(match)
                tell_extremes(played, self.env, self._process, self._session, quota.mode, *acted)
                self._tell(match, quota, played, seconds, self._record(match, quota))
                self._done = match.id
            return True
        finally:
            self._process.metrics.set(PLAYS, 0.0)

    def close(self) -> None:
        """Close the sockets."""
        if self._pool is not None:
            self._pool.close()

    def _play(self, match: Match, quota: Quota) -> EpisodeResults | None:
        wanted = self._process.spec.evaluation.envs or min(ENVS, quota.episodes)
        if wanted != self.env.envs:
            self.env.close()
            self.env = self._recorded(make_env(self._process.spec, wanted, training=False))
        env, seats = self.env, [(seat, ref) for seat, ref in sorted(match.seats.items())]
        torch.manual_seed(match.seed)  # what a network draws does not depend on what was played before
        table = Table.of_seats(env.spaces, env.envs, [[seat] for seat, _ in seats])
        players = [self._seat(ref, slots, match, quota) for (_, ref), slots in zip(seats, table.slots, strict=True)]
        return play(
            env,
            environment_seeds(match.seed, np.arange(env.envs, dtype=np.int64)),
            table,
            players,
            quota.episodes,
            metrics=self._process.metrics,
            keep_going=lambda: self._keep_going(match),
        )

    def _record(self, match: Match, quota: Quota) -> Film | None:
        """Film of one more episode, if it is wanted; else None. A failure of any kind does not end the process."""
        if not quota.record:
            return None
        loaded = self._networks[match.seats[min(match.seats)]]
        try:
            return recorded(
                self._process.spec.env.model_dump(), loaded.algorithm, seed=match.seed,
                greedy=quota.mode == "greedy", progress=loaded.progress,
                keep_going=lambda: self._keep_going(match), metrics=self._process.metrics,
            )  # fmt: skip
        except Unwanted:
            return None
        except Exception as error:
            log.warning("no episode is recorded: %s", error, exc_info=not isinstance(error, EnvError))
            return Film(fault=f"{type(error).__name__}: {error}"[:500])

    def _seat(self, ref: ModelRef, slots: NDArray[np.int64], match: Match, quota: Quota) -> NetworkPolicy:
        greedy, loaded = quota.mode == "greedy", self._networks[ref]
        player = NetworkPolicy(
            loaded.algorithm, slots, seed=match.seed, rows=NOISE_ROWS, greedy=greedy, spaces=self.env.spaces
        )
        player.progress = loaded.progress
        return player

    def _recorded(self, env: Env) -> EpisodeRecorder:
        """Environments that record what is played; from here on it is known how long their resets may take."""
        self._process.metrics.set(ENVIRONMENTS, env.envs)
        self._process.pulse.silent_s = SIMULATOR_S + resets_s(env.envs)
        return EpisodeRecorder(env, self._process.spec.env.model_dump(), training=False)

    def _acted(self, match: Match) -> tuple[ModelRef, str]:
        """The model of the lowest seat, and the sha256 of its weights."""
        ref = match.seats[min(match.seats)]
        return ref, self._networks[ref].model.sha256

    def _keep_going(self, match: Match) -> bool:
        self._process.pulse.beat()
        wanted = self._session.match  # the result of a match that was withdrawn or replaced meanwhile would not count
        return wanted is not None and wanted.id == match.id and not self._process.stop.is_set()

    def _has_any_model(self) -> bool:
        """True if the pool has weights: a pool out of reach is known before the first match, perhaps in an hour."""
        pool = self._reach()
        try:
            return pool is not None and pool.newer(self._process.spec.policy_names[0], None) is not None
        except (TimeoutError, RemoteError):
            return False

    def _reach(self) -> Pool | None:
        """The modelpool assigned now; None as long as there is none."""
        channels = self._session.assigned("modelpool")
        if channels is None:
            return None
        if self._pool is None or channels["rpc"] != self._pool_address:
            if self._pool is not None:
                self._pool.close()
            self._pool_address = channels["rpc"]
            policy, stop = self._process.spec.policy_names[0], self._process.stop
            self._pool = Pool(self._wire, channels, policy, self._process.boot, lambda: not stop.is_set())
        return self._pool

    def _load(self, match: Match) -> bool:
        """Load the networks of a match; False as long as the pool lacks one of its models."""
        networks: dict[ModelRef, _Loaded] = {}
        for ref in set(match.seats.values()):
            network = self._networks.get(ref) or self._fetch(match, ref)
            if network is None:
                return False
            networks[ref] = network
        self._networks = networks
        self._process.pulse.ready = True
        self._model = match.seats[min(match.seats)]
        return True

    def _fetch(self, match: Match, ref: ModelRef) -> _Loaded | None:
        model = self._pull(match, ref)
        if model is None:
            return None
        algorithm = outside_of_a_run(make_algorithm(self._process.spec, ref.policy, self.env.spaces))
        return _Loaded(algorithm, unpack_into(algorithm.net, model.data, sha256=model.sha256), model)

    def _pull(self, match: Match, ref: ModelRef) -> Model | None:
        """Weights of a version; None when the pool lacks them, or the match is not wanted any more."""
        while self._keep_going(match) and (pool := self._reach()) is not None:
            try:
                model = pool.exact(ref.policy, ref.version, ref.lineage)
            except TimeoutError:
                continue  # the request stays in flight
            except RemoteError:
                return None
            if model is not None and model.ref == ref:
                return model
            log.warning("the modelpool has no %s (any more)", ref)
            return None
        return None

    def _tell(self, match: Match, quota: Quota, played: EpisodeResults, seconds: float, film: Film | None) -> None:
        ref = match.seats[min(match.seats)]
        mean = math.fsum(played.returns) / len(played.returns)
        log.info(
            "evaluated %s: mean return %g over %d episodes", ref, round(mean, 3), len(played.returns),
            extra={"kv": {"match": match.id, "mode": quota.mode, "seconds": round(seconds, 2)}},
        )  # fmt: skip
        kept, fault = self._keep(match, ref) if mean > quota.keep_above else ("", "")
        result = EvalResult(
            match.id, ref, quota.mode, played.returns, played.lengths, seconds, played.info, kept, fault,
            film,
        )  # fmt: skip
        try:
            said = self._session.call(result, Reply, deadline_s=SAY_S)
        except (TimeoutError, RemoteError) as error:
            log.warning("the manager did not take an evaluation: %s", error)
            return
        if not said.ok:
            log.info("the manager did not want an evaluation: %s", said.why)

    def _keep(self, match: Match, ref: ModelRef) -> tuple[str, str]:
        """Have the modelpool keep the model; the file that describes it and "", or "" and the reason of a failure."""
        loaded = self._networks[ref]
        deadline, why = time.monotonic() + KEEP_S, "the match was withdrawn, or this process stops"
        while self._keep_going(match) and (left_s := deadline - time.monotonic()) > 0:
            if (pool := self._reach()) is None:
                why = "there is no modelpool"
                self._process.stop.wait(IDLE_S)
                continue
            try:
                described = replace(unpack_policy(loaded.model.policy), steps=loaded.progress)
                return pool.keep(loaded.model._replace(policy=pack_policy(described)), left_s), ""
            except (TimeoutError, RemoteError, PolicyFileError) as error:
                why = str(error)
                break
        log.warning("%s is not kept: %s", ref, why)
        return "", why
