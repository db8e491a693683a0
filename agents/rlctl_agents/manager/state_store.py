"""State of a run that outlives its manager: progress and other files, stored as well as a full disk allows."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from rlctl_agents.manager.episodes import Episodes
from rlctl_agents.runtime.storage import read_file, refusal, replace_file
from rlctl_agents.types.control import Generation
from rlctl_agents.types.experience import ModelRef

FORMAT = 2
NEWEST, PREVIOUS = "progress.json", "progress.json.1"
HISTORY = 2000
"""Points of the learning curve, at most; beyond that, every second one is dropped."""
LINEAGES = 1024
"""Learner boots that are remembered with their lineage: those with a lease, and the newest of the others."""

TRAINING = 1
"""Id of the one training match; evaluations count from 2."""
APART = 100
"""Numbers skipped after newer progress was lost, so that none is issued twice."""

log = logging.getLogger(__name__)


class Evaluation(msgspec.Struct, frozen=True):
    """Result of one finished quota, as shown in the status."""

    mean: float
    std: float  # population standard deviation of the episodes
    min: float
    max: float
    episodes: int
    mode: str
    ref: ModelRef
    steps: int  # agent steps that the weights were learned from
    wall_s: float  # wall time of the run when the quota was finished
    seconds: float  # duration of the quota
    time: float  # unix
    seats: int = 1  # of the environment, all played by this model; returns are those of the first
    info: dict[str, float] = {}  # mean over the episodes of each number that the environment reported at their end
    seed: int = 0  # of its episodes
    confirms: bool = False  # evaluation on fresh seeds, of a model that another evaluation had selected


class Resumed(msgspec.Struct, frozen=True):
    """Generation from which the newest learner resumed."""

    number: int
    steps: int  # agent steps learned from
    text: str


class LockStepBreak(msgspec.Struct, frozen=True):
    """Step from which on a run in lock-step cannot be repeated."""

    process: str  # "actor/0"
    step: int  # agent steps learned from by then

    @property
    def text(self) -> str:
        return (
            f"lock-step was broken: {self.process.replace('/', ' ')} was started again; "
            f"from step {self.step} on this run cannot be repeated"
        )


class Progress(msgspec.Struct):
    """Content of results/progress.json. Times are summed over all ups, without the pauses between them."""

    format: int = FORMAT
    term: int = 0  # of the manager that stored it
    wall_s: float = 0.0
    started: bool = False  # the learner has learned something
    steps: dict[str, int] = {}  # policy -> steps that its weights were learned from
    learned: dict[str, int] = {}  # policy -> the same, each step counted once per optimizer step made from it
    versions: dict[str, int] = {}  # policy -> updates that made its weights
    lineages: dict[str, int] = {}  # policy -> newest
    lineage_of: dict[str, int] = {}  # learner boot -> lineage that it opened
    issued: int = 0  # newest number of a generation, ordered or committed
    match: int = TRAINING
    evaluation: Evaluation | None = None  # newest in the mode that stop looks at
    other: Evaluation | None = None  # newest in the other mode
    history: list[tuple[int, float, float]] = []  # steps, wall_s, mean of the evaluation
    resumed: Resumed | None = None  # None: the newest learner has not reported it, or began from nothing
    resumed_boot: str = ""  # of the learner that reported it
    unusable: list[int] = []  # generations that a learner passed over
    met: str | None = None
    requested: str = ""  # why the run ends on request; "" when it was not asked to, or has done so
    first_boots: dict[str, str] = {}  # in lock-step: "actor/0" -> its first boot
    broken: LockStepBreak | None = None

    def open_lineage(self, policy: str, boot: str, alive: Callable[[str], bool] = lambda boot: False) -> int:
        """Lineage of a learner boot: a new one for every boot, the same one however often it asks.

        Args:
            alive: whether a boot holds a lease: it may ask again, and is not forgotten.
        """
        if boot not in self.lineage_of:
            self.lineages[policy] = self.lineages.get(policy, 0) + 1
            self.lineage_of[boot] = self.lineages[policy]
            self.resumed = None  # it was of the boot before
            ended = [one for one in self.lineage_of if one != boot and not alive(one)]
            for one in ended[: max(len(self.lineage_of) - LINEAGES, 0)]:
                del self.lineage_of[one]
        return self.lineage_of[boot]

    def catch_up(self, policy: str, generations: Sequence[Generation], *, lost: bool) -> None:
        """Take steps and lineage from committed generations, where the progress lacks them.

        Args:
            generations: of the policy, newest first.
            lost: newer progress was stored and is gone; lineages that it issued must not be issued again.
        """
        committed = max((one.ref.lineage for one in generations), default=0)
        lost = lost or (committed > 0 and policy not in self.lineages)  # the files were moved away
        if lost:
            self.lineages[policy] = max(self.lineages.get(policy, 0), committed) + APART
        if generations and policy not in self.steps:
            self.steps[policy], self.versions[policy] = generations[0].steps, generations[0].ref.version
            self.started = True

    def break_lock_step(self, process: str, boot: str, step: int) -> LockStepBreak | None:
        """Register an actor or learner that joins a run in lock-step; returns the break, if it is the first."""
        if self.first_boots.setdefault(process, boot) == boot or self.broken is not None:
            return None
        self.broken = LockStepBreak(process, step)
        return self.broken

    def measured(self, evaluation: Evaluation) -> None:
        """Add an evaluation to the learning curve."""
        older = self.evaluation is not None and evaluation.ref < self.evaluation.ref  # another evaluator was quicker
        if evaluation.confirms or not older:
            self.evaluation = evaluation
        self.history.append((evaluation.steps, round(evaluation.wall_s, 3), evaluation.mean))
        if len(self.history) > HISTORY:
            self.history = self.history[:-1:2] + self.history[-1:]


class _Format(msgspec.Struct):
    format: int = FORMAT


class Damaged(Exception):
    """A file that the manager must not overwrite and cannot read."""


def load_progress(folder: Path) -> tuple[Progress, bytes | None, str]:
    """Progress as the last manager stored it; the previous one if the newest is torn; a fresh one if there is none.

    Returns:
        The progress, the bytes of the newest file when it is sound, and what was lost, in words ("": nothing).

    Raises:
        Damaged: no sound one is left, or it is of another release: going on would count from nothing.
        OSError: the volume refuses.
    """
    faults: list[str] = []
    for name in (NEWEST, PREVIOUS):
        path = folder / name
        data = read_file(path)
        if data is None:
            continue
        try:
            found = msgspec.json.decode(data, type=_Format).format
            progress = msgspec.json.decode(data, type=Progress) if found == FORMAT else None
        except msgspec.MsgspecError as error:
            faults.append(f"{path}: {error}")
            continue
        if progress is None:
            raise Damaged(f"{path}: format {found}, this release reads {FORMAT}: use the release that wrote it")
        if name == NEWEST:
            return progress, data, ""
        why = "; ".join(faults) or f"{folder / NEWEST} is not there"
        return progress, None, f"{why}: went on from the previous one, {PREVIOUS}"
    if faults:
        raise Damaged(
            f"{'; '.join(faults)}; to go on, move {'it' if len(faults) == 1 else 'both'} away: steps and lineage then "
            "come from the newest generation, wall time and learning curve begin anew"
        )
    return Progress(), None, ""


class StateStore:
    """Progress of the run and other files that outlive the manager. A full disk costs files, never the run.

    Args:
        folder: results/.
        clock: monotonic seconds.

    Raises:
        Damaged: progress.json and the one before it cannot be read.
        OSError: the volume refuses.
    """

    lost: str
    """Why the progress is not the newest that was stored; "" when it is."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._clock = folder, clock
        self.episodes = Episodes(folder / "episodes", clock)
        self.began = clock()
        """Start of this manager; monotonic seconds."""
        self.progress, self._newest, self.lost = load_progress(folder)
        if self.lost:
            log.error("%s", self.lost)
        self._wall_before_s = self.progress.wall_s
        self._errors: dict[Path, OSError] = {}  # of files that are not stored as they are now

    @property
    def wall_s(self) -> float:
        """Wall time of the run in seconds, over all ups."""
        return self._wall_before_s + self._clock() - self.began

    def restart_wall_time(self) -> None:
        """Reset wall time to 0, so that the run has all its time again."""
        self._wall_before_s -= self.wall_s

    @property
    def failure(self) -> str:
        """Failure to store the newest state, in words; "" without one."""
        for path, error in self._errors.items():
            return refusal(error, path) or f"cannot store {path}: {error.strerror}"
        return ""

    def require_stored(self, *paths: Path) -> None:
        """Check that these files are stored in their present state.

        Args:
            paths: files to check; none: all that were ever tried.

        Raises:
            OSError: why one is not; names the file.
        """
        for path, error in self._errors.items():
            if not paths or path in paths:
                raise OSError(error.errno, error.strerror, str(path)) from error

    @property
    def progress_failed(self) -> bool:
        """True if the last attempt to store the progress failed."""
        return any(self._folder / name in self._errors for name in (NEWEST, PREVIOUS))

    def save_progress(self) -> bool:
        """Store the progress, durably, and keep the one before it; False if it cannot be stored."""
        self.progress.wall_s = self.wall_s
        data = msgspec.json.encode(self.progress)
        # a torn newest file never replaces the previous one, from which this manager resumed
        if self._newest is not None and not self.save(self._folder / PREVIOUS, self._newest, durable=True):
            return False
        if not self.save(self._folder / NEWEST, data, durable=True):
            return False
        self._newest = data
        return True

    def save_members(self, members: msgspec.Struct) -> None:
        """Store leases and ledger."""
        self.save(self._folder / "ledger.json", msgspec.json.encode(members), durable=False)

    def save(self, path: Path, data: bytes, *, durable: bool) -> bool:
        """Store a file; False if it cannot be stored. `failure` reports each until it can."""
        try:
            replace_file(path, data, durable=durable)
        except OSError as error:
            self._errors[path] = error
            return False
        self._errors.pop(path, None)
        return True
