"""Bottleneck of a run: one sentence, the shares of time that it rests on, and advice."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from rlctl.spec.words import number

WORTH_SAYING = 0.2
"""Smallest share of waiting that counts as a bottleneck."""
CORES_FULL = 0.9
STALLED_S = 8.0
"""Seconds without an update after which a run is stalled if its processes report no waiting."""
MOST_AT_ONCE = 4
"""Largest factor by which more actors are suggested."""

SHARD_FULL = 0.9
"""Share of its time from which a computing shard is itself the bottleneck."""

Kind = Literal[
    "starting",
    "actor-bound",
    "simulator-bound",
    "learner-bound",
    "modelpool-bound",
    "replay-bound",
    "balanced",
    "stalled",
    "ending",
]


class Waits(msgspec.Struct, frozen=True):
    """Shares of wall time in [0, 1], means over the processes of a role, over the last seconds."""

    learner_waits_data: float  # for experience
    actor_waits_credit: float  # to be allowed to send
    actor_waits_model: float  # for weights
    learner_waits_model: float = 0.0  # for the modelpool
    actor_simulates: float = 0.0  # inside the environment's step
    learner_waits_draw: float = 0.0
    """Part of learner_waits_data: rows may be drawn, but have not arrived, or no shard replies."""
    shard_busy: float = 0.0  # the busiest shard of the replay computes


class Verdict(msgspec.Struct, frozen=True):
    """Verdict, as shown in the status beside the shares of waiting."""

    kind: Kind
    text: str
    suggest: str


def judge(
    waits: Waits, *, started: bool, actors: int, cores_busy: float, cores: float, one_machine: bool, run: str,
    samples_per_insert: float = 0.0, learners: int = 1, again: bool = False, idle_s: float = 0.0,
    at_once: int | None = None,
) -> Verdict:  # fmt: skip
    """Name the slow side: the cause, not the side that waits because of it.

    A slow modelpool stops the learner, so that actors wait for credit too; a slow simulator starves the learner. So
    shares are traced to where time is really spent. With a limit on samples per insert, the faster side waits: a
    learner that may not draw waits for actors, and actors without credit for the learner, unless a shard computes all
    the time.

    Args:
        started: the learner has learned for some seconds.
        actors: number of live actors.
        cores_busy: CPU seconds per second over all roles.
        cores: cores of the machine that the manager may use.
        one_machine: all roles share its cores.
        run: name of the run, for the command.
        samples_per_insert: ratio by which the replay lets learner and actors wait for each other; 0: none.
        learners: number of live learners.
        again: updates were made before these learners, or this manager, began.
        idle_s: seconds since the last update, minus those that the actors take for a batch.
        at_once: number of actors whose experience a batch holds, where more of them would wait; None: no such number.

    Example:
        A learner that waits for data 60 % of the time, two actors, half the machine idle: actor-bound, and
        `rlctl scale actor=5 --run NAME` (2 actors keep it busy 40 % of the time).
    """
    kind, text, wanted = _find(waits, actors, idle_s) if started else (*_before(actors, learners, again), None)
    if samples_per_insert and kind in ("actor-bound", "simulator-bound", "learner-bound"):
        text += f", at {number(samples_per_insert)} samples per insert"
    if at_once is not None and wanted is not None and wanted > max(actors, at_once):
        wanted = at_once if at_once > actors else None
        held = "one actor" if at_once <= 1 else f"{at_once} actors"
        text += f"; a batch holds blocks of {held} at most: with fewer roles.actor.envs more can play"
    full = one_machine and cores_busy >= CORES_FULL * cores
    if full and kind in ("actor-bound", "simulator-bound", "learner-bound", "replay-bound"):
        text += f"; all {number(cores)} cores of this machine are busy, so more processes will not help"
        wanted = None
    elif one_machine and wanted is not None and wanted > max(actors, cores):
        wanted = math.floor(cores) if math.floor(cores) > actors else None
        if wanted is None:
            text += f"; the {number(cores)} cores of this machine are all in use"
    return Verdict(kind, text, "" if wanted is None else f"rlctl scale actor={wanted} --run {run}")


def _before(actors: int, learners: int, again: bool) -> tuple[Kind, str]:
    """Kind and sentence before shares of time are meaningful."""
    who = "no actor" if actors == 0 else "no learner" if learners == 0 else ""
    if who:
        return ("stalled", f"stalled: {who} reports") if again else ("starting", f"starting: {who} has reported yet")
    does = "goes on; its bottleneck is known in some seconds" if again else "makes its first updates"
    return "starting", f"starting: the learner {does}"


def _find(waits: Waits, actors: int, idle_s: float) -> tuple[Kind, str, int | None]:
    """Kind, sentence, and a better number of actors; None: no other number."""
    # it takes no rows then, so credit runs out
    if waits.learner_waits_model >= max(WORTH_SAYING, waits.learner_waits_data):
        text = f"modelpool-bound: the learner waits to publish {_percent(waits.learner_waits_model)} of the time"
        return "modelpool-bound", text, None
    largest = max(waits.learner_waits_data, waits.actor_waits_credit, waits.actor_waits_model)
    if largest < WORTH_SAYING and idle_s >= STALLED_S:
        return "stalled", f"stalled: no update for {idle_s:.0f} s, and no process says what it waits for", None
    if largest < WORTH_SAYING:
        return "balanced", f"balanced: no role waits more than {_percent(largest)} of the time", None
    if largest == waits.actor_waits_model:
        return "modelpool-bound", _for_weights(waits), None
    draws = largest == waits.learner_waits_data and waits.learner_waits_draw > largest / 2
    if waits.shard_busy >= SHARD_FULL or draws:
        return "replay-bound", _for_the_replay(waits), None
    if largest == waits.learner_waits_data:
        return _upstream(waits, actors)
    text = f"learner-bound: actors wait to be allowed to send {_percent(waits.actor_waits_credit)} of the time"
    fewer = max(math.ceil(actors * (1.0 - waits.actor_waits_credit)), 1)
    return "learner-bound", text, fewer if fewer < actors else None


def _upstream(waits: Waits, actors: int) -> tuple[Kind, str, int | None]:
    """Bottleneck of a learner that starves, from the time of its actors."""
    rest = 1.0 - waits.actor_waits_credit - waits.actor_waits_model - waits.actor_simulates
    if waits.actor_waits_model >= WORTH_SAYING and waits.actor_waits_model > max(rest, waits.actor_simulates):
        return "modelpool-bound", _for_weights(waits), None
    busy = max(1.0 - waits.learner_waits_data, 1.0 / MOST_AT_ONCE)
    wanted = max(math.ceil(actors / busy), actors + 1)
    starves = f"the learner waits for experience {_percent(waits.learner_waits_data)} of the time"
    if waits.actor_simulates > max(rest, WORTH_SAYING):
        simulates = _percent(waits.actor_simulates)
        text = f"simulator-bound: {starves}, and the simulator takes {simulates} of the actors' time"
        return "simulator-bound", text, wanted
    return "actor-bound", f"actor-bound: {starves}", wanted


def _for_weights(waits: Waits) -> str:
    return f"modelpool-bound: actors wait for weights {_percent(waits.actor_waits_model)} of the time"


def _for_the_replay(waits: Waits) -> str:
    if waits.learner_waits_data >= waits.actor_waits_credit:
        drawn = waits.learner_waits_draw > waits.learner_waits_data / 2
        share = waits.learner_waits_draw if drawn else waits.learner_waits_data
        who = f"the learner waits for {'draws' if drawn else 'experience'} {_percent(share)} of the time"
    else:
        who = f"actors wait to be allowed to send {_percent(waits.actor_waits_credit)} of the time"
    full = waits.shard_busy >= SHARD_FULL
    busy = f", and its busiest shard computes {_percent(waits.shard_busy)} of it" if full else ""
    return f"replay-bound: {who}{busy}"


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %"
