"""Problems of a run in plain words, each with the command to type next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rlctl_agents.manager.evaluation.matches import Standstill

SILENT_S = 8.0
NO_UPDATE_S = 30.0
ABSENT_S = 60.0
SLOW_STEP_S = 0.1
"""Seconds per step from which a simulator is slow: a learner without data waits for it."""
STALE_SHARE = 0.1
NONFINITE_SHARE = 0.001
"""Share of optimizer steps that were left out below which a run is healthy: one in a million is a line in the log."""
LATE_GENERATION_S = 60.0
LATE_PARTS_S = 200.0
"""Seconds after which a generation that waits for a replay's parts, which may be large, is late; two thirds of
`checkpoint.every` where that is more."""
ROLLS_S = 180.0
"""Seconds in which learners are replaced one after the other, at most."""
LOST_S = 600.0
"""Seconds for which a manager reports that it began from older progress; the event stays."""
ENDLESS_STEPS = 200_000
MAX_PROBLEMS = 20
MAX_NAMED = 5
NO_ROOM = ("No space left", "the volume is full", "quota of the volume", "quota exceeded")
"""Phrases of a failure that mean a full volume: the system's and ours."""


@dataclass(frozen=True)
class Facts:
    """Facts from which problems are found; rates are over the last seconds."""

    now_s: float  # seconds since the manager's start
    silent: Mapping[str, float] = field(default_factory=dict)  # "actor/3" -> seconds since its last report
    live: Mapping[str, int] = field(default_factory=dict)  # role -> how many hold a lease
    absent: Mapping[str, float] = field(
        default_factory=dict
    )  # role without a process, or "replay/1" -> seconds since it was heard
    behind: Mapping[str, float] = field(
        default_factory=dict
    )  # modelpool with older weights -> seconds without new ones
    idle_s: float = 0.0  # seconds since the last update
    batch_s: float = 0.0  # seconds that the actors take for a batch at their present rate; 0: not known
    env_step_s: float = 0.0  # seconds per step of one environment, in the slowest actor; 0: not known
    started: bool = False  # something was learned
    nonfinite: float = 0.0  # optimizer steps left out since the learners' start
    optimizer_steps: float = 0.0  # made since then
    ledger_faults: Iterable[str] = ()
    quarantined: Mapping[str, str] = field(default_factory=dict)  # "actor/3" -> fault in its values, in words
    residuals: Iterable[tuple[str, str]] = ()  # outliers among actors, in words, and a process of each
    stale_share: float = 0.0  # share of stale rows among those that reach the learner
    rejected_per_s: Mapping[tuple[str, str], float] = field(default_factory=dict)  # (role, reason)
    late_generation: tuple[int, float] | None = None  # number, seconds since it was ordered
    late_parts: Sequence[str] = ()  # processes that have yet to add a part: the learner's own is there
    generations_every_s: float = 0.0  # checkpoint.every
    damaged: Iterable[str] = ()  # manifests, newer than all that can be read
    unreadable: Mapping[str, int] = field(default_factory=dict)  # shard -> parts that it could not use when it began
    rows_unsaved: Mapping[str, tuple[int | None, str]] = field(default_factory=dict)
    """Shard -> newest generation that has its rows (None: none has), and why the two newest lack them."""
    unusable: Iterable[int] = ()  # generations that a learner could not use
    lost: str = ""  # why the manager began from older progress than was stored
    disk: str = ""  # why something could not be stored
    unsaved: str = ""  # the run ends, and no generation holds its last model
    refused: str = ""  # newest refused hello, if it is recent
    learner_waited_s: float = 0.0  # seconds for which a learner has waited for those of another spec or image to leave
    broken: tuple[str, str] | None = None  # how lock-step was broken, and the process
    starved: Iterable[str] = ()  # learners that get no segments: the others go on without them
    apart: tuple[int, int] | None = None  # learners that step together, and their number in the spec
    endless_steps: float = 0.0  # steps of an evaluator in each environment, without the end of any episode
    standstill: Standstill | None = None  # evaluators that make no steps


def find(facts: Facts, run: str) -> list[dict[str, str]]:
    """Problems, at most MAX_PROBLEMS, each with `text` and `next`; the likeliest cause of others first.

    Args:
        run: name of the run, which every command carries: a user may have several runs.
    """
    found = [*_disk(facts), *_processes(facts), *_experience(facts), *_learning(facts), *_books(facts)]
    return [
        {"text": text, "next": f"{command} --run {run}" if command.startswith("rlctl ") else command}
        for text, command in found
    ][:MAX_PROBLEMS]


def _disk(facts: Facts) -> Iterable[tuple[str, str]]:
    if facts.disk:
        room = any(words in facts.disk for words in NO_ROOM)
        yield facts.disk, "df -h; df -i" if room else "rlctl logs manager --level ERROR"
    if facts.unsaved:
        yield facts.unsaved, "rlctl logs learner"
    for name in facts.damaged:
        yield f"{name} is damaged; older generations are used", "rlctl logs manager --level ERROR"
    for name, (kept, why) in facts.rows_unsaved.items():
        have = "no generation has" if kept is None else f"no generation since {kept} has"
        yield f"{have} the rows of {name}: {why}", f"rlctl logs {name}"
    for number in facts.unusable:
        yield (
            f"generation {number} cannot be used; the learner went on from another",
            "rlctl logs learner --level ERROR",
        )
    if facts.lost and facts.now_s < LOST_S:
        yield facts.lost, "rlctl logs manager --level ERROR"
    if facts.late_generation is not None:
        number, waited_s = facts.late_generation
        told = f"generation {number} was ordered {waited_s:.0f} s ago and"
        if facts.late_parts and waited_s >= max(LATE_PARTS_S, facts.generations_every_s * 2 / 3):
            yield f"{told} waits for {', '.join(facts.late_parts)}", "rlctl logs replay"
        elif not facts.late_parts and waited_s >= LATE_GENERATION_S:
            yield f"{told} is not saved", "rlctl logs learner"


def _processes(facts: Facts) -> Iterable[tuple[str, str]]:
    if facts.learner_waited_s >= ROLLS_S:
        waited = f"a learner has waited {facts.learner_waited_s:.0f} s for those of another spec or image to leave"
        yield f"{waited}: their update stands still", "the same rlctl up again"
    if facts.refused:
        yield f"the manager refuses a process: {facts.refused}", "rlctl logs manager --level WARNING"
    for name, silent_s in [*facts.silent.items()][:MAX_NAMED]:
        yield f"{name} has said nothing for {silent_s:.0f} s", f"rlctl logs {name}"
    if (more := len(facts.silent) - MAX_NAMED) > 0:
        yield f"{more} more processes have said nothing for {SILENT_S:.0f} s", "rlctl status -o wide"

    def too_long(absent_s: float) -> bool:
        """True if an absence is a problem. Processes that this manager has not heard yet may still be loading."""
        return absent_s >= (SILENT_S if facts.started and absent_s < facts.now_s - 1.0 else ABSENT_S)

    for role in ("modelpool", "replay", "learner", "actor"):
        if too_long(absent_s := facts.absent.get(role, 0.0)):
            yield f"no {role} has reported for {absent_s:.0f} s", f"rlctl logs {role}"
    shards = {name: absent_s for name, absent_s in facts.absent.items() if name.startswith("replay/")}
    for name, absent_s in shards.items():
        if too_long(absent_s):
            yield f"{name} has not reported for {absent_s:.0f} s: its rows are not drawn", f"rlctl logs {name}"
    for name, parts in facts.unreadable.items():
        yield f"{name} could not use {parts} of its parts: it began with older rows or none", f"rlctl logs {name}"
    if (absent_s := facts.absent.get("modelpool/0", 0.0)) >= ABSENT_S:
        text = f"modelpool/0 has not reported for {absent_s:.0f} s: the others and evaluators get nothing new"
        yield text, "rlctl logs modelpool/0"
    for name, behind_s in facts.behind.items():
        if behind_s >= NO_UPDATE_S:
            text = (
                f"{name} has had no new weights for {behind_s:.0f} s, which modelpool/0 has: its actors play older ones"
            )
            yield text, f"rlctl logs {name}"


def _learning(facts: Facts) -> Iterable[tuple[str, str]]:
    if facts.nonfinite > NONFINITE_SHARE * facts.optimizer_steps:
        count = f"{facts.nonfinite:.0f} optimizer step{'s were' if facts.nonfinite > 1 else ' was'}"
        yield f"{count} left out because loss or gradient was not finite", "rlctl logs learner --level WARNING"
    working = facts.live.get("learner", 0) > 0 and facts.live.get("actor", 0) > 0
    if working and facts.idle_s >= max(NO_UPDATE_S, 2.0 * facts.batch_s):
        since = "no update for" if facts.started else "nothing was learned in"
        actors = facts.live["actor"]
        text = f"{since} {facts.idle_s:.0f} s although {actors} actor{'s run' if actors > 1 else ' runs'}"
        if facts.env_step_s >= SLOW_STEP_S:
            yield f"{text}: the simulator takes {facts.env_step_s:.3g} s for a step", "rlctl logs actor"
        else:
            yield text, "rlctl logs learner"
    for name in facts.starved:
        yield f"{name} gets no segments: updates are made without its part of algorithm.batch_size", "rlctl logs actor"
    if facts.apart is not None and facts.now_s >= ABSENT_S:
        there, wanted = facts.apart
        yield f"{there} of {wanted} learners step together", "rlctl logs learner"
    if facts.broken is not None:
        yield facts.broken[0], f"rlctl logs {facts.broken[1]}"
    if facts.endless_steps > ENDLESS_STEPS:
        text = f"no episode has ended after {facts.endless_steps:.0f} steps: set env.max_episode_steps"
        yield text, "rlctl logs evaluator"
    if facts.standstill is not None:
        yield _stands_still(facts.standstill), "rlctl logs evaluator"
    if facts.stale_share >= STALE_SHARE:
        share = f"{facts.stale_share * 100:.0f} % of the rows"
        yield (
            f"{share} are too old when they reach the learner: fewer actors, or a larger algorithm.max_lag_versions;"
            " with ppo, environments whose copies all step together",
            "rlctl status -o json",
        )


def _stands_still(found: Standstill) -> str:
    """Evaluators without a step, in words, with the way out of slow resets."""
    if found.still_s:
        text = f"an evaluator has made no step for {found.still_s:.0f} s"
    else:
        how_many = f"{found.given_up} evaluations were" if found.given_up > 1 else "an evaluation was"
        text = f"{how_many} given up after {found.limit_s:.0f} s without a step, and none was done since"
    if found.envs == 1:
        return f"{text}: its environment hangs in a reset or a step, or takes so long"
    return (
        f"{text}: one of its environments hangs, or they are slow: most are reset one after the other, here"
        f" {found.envs}; fewer evaluation.envs take less"
    )


def _experience(facts: Facts) -> Iterable[tuple[str, str]]:
    """Senders of impossible values, or of values unlike those of all others: a broken build, or a broken machine."""
    for name, text in [*facts.quarantined.items()][:MAX_NAMED]:
        yield text, f"rlctl logs {name if '/' in name else 'actor'} --level WARNING"
    if (more := len(facts.quarantined) - MAX_NAMED) > 0:
        yield f"{more} more processes send values that cannot be", "rlctl logs actor --level WARNING"
    for text, name in facts.residuals:
        yield text, f"rlctl logs {name}"


def _books(facts: Facts) -> Iterable[tuple[str, str]]:
    for fault in facts.ledger_faults:
        yield f"the ledger does not balance: {fault}", "rlctl logs manager --level WARNING"
    for (role, reason), per_s in sorted(facts.rejected_per_s.items()):
        if per_s > 0 and reason == "disk":
            yield f"{role} cannot keep models: the volume takes nothing", "df -h; df -i"
        elif reason == "term" and facts.now_s < ABSENT_S:
            continue  # messages in flight when this manager took over
        elif per_s > 0 and not (reason == "values" and facts.quarantined):  # a quarantined sender asks again and again
            why = f" ({reason})" if reason else ""
            yield f"{role} rejects messages{why}: {per_s:.3g} a second", f"rlctl logs {role} --level WARNING"
