"""Sending of recorded episodes to the manager, which keeps them: no actor has a volume."""

from __future__ import annotations

import logging

import msgspec
import numpy as np

from rlctl_agents.acting.episodes import EpisodeResults, shares
from rlctl_agents.envs.base import Env, EnvError
from rlctl_agents.repro.provenance import provenance
from rlctl_agents.repro.record import Chunk, Header, Kind, pack
from rlctl_agents.repro.recording import EpisodeRecorder
from rlctl_agents.runtime.logs import users_traceback
from rlctl_agents.runtime.manager_session import ManagerSession
from rlctl_agents.runtime.process import Process
from rlctl_agents.types.control import Mode, Recorded, Reply
from rlctl_agents.types.experience import ModelRef
from rlctl_agents.wire.rpc.client import RemoteError

SAY_S = 10.0
"""Longest wait for the manager: it may be restarting."""

log = logging.getLogger(__name__)


def told_crash(
    error: EnvError, env: Env, process: Process, session: ManagerSession, model: ModelRef | None, sha256: str
) -> EnvError:
    """Send the episode in which the environment has just raised to the manager.

    Args:
        env: a `EpisodeRecorder`.
        model: that acted last.
        sha256: of its weights.

    Returns:
        The error with the command that plays the episode again, or with why there is none.
    """
    try:
        recorder = _recorder(env)
        header, chunks = recorder.crashed(str(error))
        replaced = msgspec.structs.replace(header, error=str(error), traceback=users_traceback(error))
        name = _send(replaced, chunks, recorder, process, session, model, sha256)
    except Exception as fault:  # the first cause is what is told
        return EnvError(f"{error}; its episode is not kept: {fault}")
    return EnvError(f"{error}; play it again: rlctl repro {process.run} {name}")


def tell_extremes(
    played: EpisodeResults,
    env: Env,
    process: Process,
    session: ManagerSession,
    mode: Mode,
    model: ModelRef,
    sha256: str,
) -> None:
    """Send the worst and the best episode of an evaluation to the manager; only the best where all are alike."""
    recorder = _recorder(env)
    if not recorder.records:
        return
    share = shares(len(played.returns), recorder.envs)
    where = [(env, number) for env, count in enumerate(share) for number in range(count)]
    extremes: dict[Kind, int] = {"worst": int(np.argmin(played.returns)), "best": int(np.argmax(played.returns))}
    if extremes["worst"] == extremes["best"]:
        del extremes["worst"]
    try:
        for kind, at in extremes.items():
            header, chunks = recorder.ended(kind, *where[at])
            described = msgspec.structs.replace(header, returned=played.returns[at], mode=mode)
            _send(described, chunks, recorder, process, session, model, sha256)
    except Exception as fault:  # what counts is the evaluation
        log.warning("an episode of the evaluation is not kept: %s", fault)


def _recorder(env: Env) -> EpisodeRecorder:
    assert isinstance(env, EpisodeRecorder)
    return env


def _send(
    header: Header,
    chunks: list[Chunk],
    recorder: EpisodeRecorder,
    process: Process,
    session: ManagerSession,
    model: ModelRef | None,
    sha256: str,
) -> str:
    """Send an episode; returns its name, once the manager keeps it.

    Raises:
        ValueError: the manager does not, and why.
    """
    of = msgspec.structs.replace(provenance(), code=recorder.code)
    named = msgspec.structs.replace(
        header, run=process.run, process=process.identity.id, model=model, sha256=sha256, provenance=of
    )
    line, body = pack(named, chunks)
    try:
        if header.kind == "crash":  # the body may be large, and thousands of others fail at once
            said = session.call(Recorded(process.boot, header.kind, b"", b""), Reply, deadline_s=SAY_S)
            if not said.ok:
                raise ValueError(said.why)
        said = session.call(Recorded(process.boot, header.kind, line, body), Reply, deadline_s=SAY_S)
    except (TimeoutError, RemoteError) as error:
        raise ValueError(f"the manager does not take it: {error}") from error
    if not said.ok:
        raise ValueError(said.why)
    return said.why
