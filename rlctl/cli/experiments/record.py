"""Record of a sweep: its trials and the spec that they were begun with, in a file beside the runs of this machine.

`<state>/sweeps/<name>/` holds sweep.json, replaced in one step; `lock`, held by the command that runs the sweep;
`stop`, which asks that command to end; `optuna.db` of a search; and a folder for each policy that trials begin with.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import TypeAdapter, ValidationError

from rlctl.backends.files import reported, to_json, write
from rlctl.cli.experiments.axes import Settings, words
from rlctl.errors import BackendUnreachable, Conflict, Locked, UsageError
from rlctl.spec.layout import state_home
from rlctl.spec.schema import RUN_NAME, Spec
from rlctl.spec.words import show

FORMAT: Final = 1
State = Literal["waiting", "running", "finished", "failed", "pruned", "stopped"]
"""State of a trial. stopped: by another command; the command that starts waiting trials resumes it."""
OVER: Final = ("finished", "failed", "pruned")
MOST_TRIALS: Final = 10_000
_LONGEST: Final = 35
"""Characters of a sweep's name, at most: a run's has _LONGEST_RUN, "-" and the number of a trial included."""
_LONGEST_RUN: Final = 40
_OF_ONE_RUN: Final = ("run", "seed")


@dataclass(slots=True)
class Trial:
    """One run of a sweep."""

    run: str
    settings: Settings
    seed: int
    state: State = "waiting"
    uid: str = ""  # of the run, recorded before it is created
    suggestion: int | None = None  # number that the search knows its settings by
    steps: int = 0  # agent steps learned from
    evaluation: float | None = None  # mean of the newest, in the mode that counts
    best: float | None = None  # highest so far
    why: str = ""  # reason of a failure or a stop

    @property
    def over(self) -> bool:
        """Whether the trial has ended and is not trained again."""
        return self.state in OVER


@dataclass(slots=True)
class Sweep:
    """Record of a sweep, as stored in sweep.json."""

    name: str
    created: str  # RFC 3339
    spec: str  # its files, for people
    target: str
    context: str | None
    namespace: str | None
    search: dict[str, Any] = field(default_factory=dict)  # method, axes and whether it prunes; empty: a grid
    specs: dict[str, dict[str, Any]] = field(default_factory=dict)  # settings in words -> resolved spec, flat
    images: dict[str, str] = field(default_factory=dict)  # by digest, as the first trial got them
    trials: list[Trial] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return folder(self.name)

    def kept(self, spec: Spec) -> Path | None:
        """Folder with a copy of the initial policy, so that all trials begin from the same one; None without `init`."""
        if spec.init is None:
            return None
        return self.folder / f"init-{sha256(spec.init.model_dump_json().encode()).hexdigest()[:12]}"

    def save(self) -> None:
        """Write the record, as a whole or not at all.

        Raises:
            BackendUnreachable: it cannot be written.
        """
        common = next(iter(self.specs.values()), {})  # of the others what differs: it is written for each trial
        with reported(f"cannot record sweep {self.name}"):
            specs = {key: _differing(common, spec) for key, spec in self.specs.items()}
            stored = {**asdict(replace(self, specs={})), "common": common, "specs": specs}
            write(self.folder / "sweep.json", to_json({"format": FORMAT, **stored}))

    def count(self, *states: State) -> int:
        return sum(trial.state in states for trial in self.trials)

    def firsts(self) -> dict[str, Trial]:
        """The first trial of each settings whose spec is pinned, by settings in words."""
        found = {words(trial.settings): trial for trial in reversed(self.trials)}
        return {key: found[key] for key in self.specs if key in found}

    def add(self, settings: Settings, seed: int, suggestion: int | None = None) -> Trial:
        """Add a trial with the next number."""
        self.trials.append(Trial(f"{self.name}-{len(self.trials) + 1}", settings, seed, suggestion=suggestion))
        return self.trials[-1]


def _differing(common: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    """Values of a flat spec that another has not; None: it lacks one."""
    return {path: spec.get(path) for path in {**common, **spec} if spec.get(path) != common.get(path)}


class DamagedRecord(BackendUnreachable):
    """A record that is torn or foreign; the runs of its sweep are unaffected."""

    def __init__(self, name: str, path: Path, why: str) -> None:
        super().__init__(
            f"{path} is not the record of sweep {name}: {why}",
            hint=(
                f"the disk was full, or another program wrote it; its runs {name}-1, {name}-2, ... are not touched. "
                f"Put the file right, or remove it: rlctl sweep clean {name}"
            ),
            objects=(str(path),),
        )


def folder(name: str) -> Path:
    return state_home() / "sweeps" / name


def names() -> list[str]:
    """All sweeps of this machine."""
    home = state_home() / "sweeps"
    with reported("cannot read"):
        found = sorted(path.parent.name for path in home.glob("*/sweep.json")) if home.is_dir() else []
    return [name for name in found if re.fullmatch(RUN_NAME, name)]


def find(name: str) -> Sweep | None:
    """The sweep of that name.

    Raises:
        DamagedRecord: its file is torn or foreign.
        BackendUnreachable: the file cannot be read.
    """
    path = folder(name) / "sweep.json"
    if not re.fullmatch(RUN_NAME, name):
        return None
    with reported(f"cannot read the record of sweep {name}"):
        if not path.exists():
            return None
        stored = path.read_bytes()
    try:
        value = json.loads(stored)
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            raise ValueError(f"not a JSON object of format {FORMAT}, which this rlctl knows")
        common, specs = value.pop("common", {}), value.get("specs", {})  # release 0.1 wrote all of each spec
        if not isinstance(specs, dict) or not all(isinstance(one, dict) for one in (common, *specs.values())):
            raise ValueError("its specs are no JSON objects")
        value["specs"] = {key: {**common, **spec} for key, spec in specs.items()}
        found = TypeAdapter(Sweep).validate_python(value)
        _check(found, name)
    except ValidationError as error:
        wrong = error.errors()[0]
        raise DamagedRecord(name, path, f"{'.'.join(map(str, wrong['loc']))}: {wrong['msg']}") from error
    except (ValueError, RecursionError) as error:
        raise DamagedRecord(name, path, str(error)) from error
    return found


def _check(found: Sweep, name: str) -> None:
    """Check that the parts of a record go together.

    Raises:
        ValueError: it is not the record of this sweep, or its parts do not go together.
    """
    if found.name != name:
        raise ValueError(f"it is that of sweep {show(found.name)}")
    for at, trial in enumerate(found.trials, 1):
        if trial.run != f"{name}-{at}":
            raise ValueError(f"trial {at} is {show(trial.run)}, not {name}-{at}")
    axes = found.search.get("axes")
    if found.search and (not isinstance(axes, list) or not {"method", "prune"} <= found.search.keys()):
        raise ValueError("its search has no method, axes and prune")


def known(name: str) -> Sweep:
    """The sweep of that name; raises as `find`.

    Raises:
        UsageError: there is no such sweep.
    """
    found = find(name)
    if found is None:
        there = ", ".join(names())
        raise UsageError(f"there is no sweep {name}", hint=f"sweeps: {there}" if there else "rlctl sweep SPEC")
    return found


def check_name(name: str) -> None:
    """Check that runs can be named after a sweep.

    Raises:
        UsageError: its runs could not be named after it.
    """
    if not re.fullmatch(RUN_NAME, name) or len(name) > _LONGEST:
        raise UsageError(
            f"{show(name)} cannot be the name of a sweep, whose runs are NAME-1, NAME-2, ...",
            hint=f"at most {_LONGEST} of a-z, 0-9 and -, with no - at the ends: --name NAME",
        )


def check_room(name: str, trials: int) -> None:
    """Check that so many trials can be named.

    Raises:
        UsageError: so many trials are too many, or the last of them could not be named.
    """
    if trials > MOST_TRIALS:
        raise UsageError(
            f"{trials:,} trials are too many: a sweep has at most {MOST_TRIALS:,}",
            hint="fewer values or seeds; --search optuna tries some of many settings",
        )
    if len(last := f"{name}-{trials}") > _LONGEST_RUN:
        raise UsageError(
            f"the last trial would be {last}, and the name of a run has at most {_LONGEST_RUN} characters",
            hint="a shorter one: --name NAME",
        )


@contextmanager
def held(name: str) -> Iterator[None]:
    """Hold the lock of a sweep, so that no other command runs or removes it.

    Raises:
        Locked: another command holds it.
        BackendUnreachable: the file cannot be written.
    """
    with reported(f"cannot lock sweep {name}"):
        folder(name).mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(folder(name) / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Locked(
                f"another command runs sweep {name}", hint=f"rlctl sweep stop {name}, or wait for it", objects=(name,)
            ) from None
        yield
    finally:
        os.close(handle)


def ask_to_stop(name: str, *, wanted: bool) -> None:
    """Ask the command that runs the sweep to end, or withdraw the request."""
    with reported(f"cannot stop sweep {name}"):
        if wanted:
            (folder(name) / "stop").touch(mode=0o600)
        else:
            (folder(name) / "stop").unlink(missing_ok=True)


def asked_to_stop(name: str) -> bool:
    return (folder(name) / "stop").exists()


def remove(name: str) -> None:
    """Delete the record of a sweep; its runs are not touched.

    Raises:
        BackendUnreachable: its folder cannot be removed.
    """
    with reported(f"cannot remove the record of sweep {name}"):
        aside = folder(name).rename(folder(name).with_name(f".{name}-{os.getpid()}"))  # all of it, or nothing
        shutil.rmtree(aside)


def flat(value: Any, path: tuple[str, ...] = ()) -> dict[str, Any]:
    """Leaves of nested mappings by dotted path.

    Example:
        `flat({"a": {"b": 1, "c": [2]}})` is `{"a.b": 1, "a.c": [2]}`.
    """
    if not isinstance(value, Mapping) or not value:
        return {".".join(path): value}
    return {key: leaf for name, below in value.items() for key, leaf in flat(below, (*path, str(name))).items()}


def pinned(spec: Spec) -> dict[str, Any]:
    """Values of a resolved spec that may not change within a sweep: all but run, seed and trackers."""
    values = flat(spec.model_dump(mode="json", exclude={"trackers"}))
    return {path: value for path, value in values.items() if path not in _OF_ONE_RUN}


def foreign(sweep: Sweep, run: str) -> Conflict:
    """Error of a run that has the name of a trial and is not of its sweep."""
    return Conflict(
        f"run {run} is there, and sweep {sweep.name} has not made it",
        hint=f"another name: --name {sweep.name}-again; or remove it: rlctl down {run} --volumes",
        objects=(run,),
    )


def check_same(before: Sweep, now: Sweep) -> None:
    """Require that a sweep has only grown: by seeds, by values, by trials of a search.

    Args:
        now: the sweep by the command line.

    Raises:
        Conflict: it has changed otherwise; the message lists every difference.
    """
    told: dict[str, None] = {}
    for what in ("target", "context", "namespace"):
        was, is_ = getattr(before, what), getattr(now, what)
        if is_ is not None and was != is_:
            told[f"{what}: {was}, now {is_}"] = None
    if before.search != now.search:
        told[f"search: {_said(before.search)}, now {_said(now.search)}"] = None
    for settings, old in before.specs.items():
        new = now.specs.get(settings)
        if new is None:
            told[f"{settings or 'the spec without a --set of several values'}: has trials, and is not asked for"] = None
            continue
        for path in sorted(old.keys() | new.keys()):
            if (old.get(path) or None) != (new.get(path) or None):  # a release may add a field, empty by default
                told[f"{path}: {old.get(path)}, now {new.get(path)}"] = None
    if not before.search:
        asked = {(words(trial.settings), trial.seed) for trial in now.trials}
        gone = sorted({trial.seed for trial in before.trials if (words(trial.settings), trial.seed) not in asked})
        if gone and not told:
            told[f"seeds: {', '.join(map(str, gone))} have trials, and are not asked for"] = None
    if told:
        lines = "\n".join(f"  {line}" for line in told)
        raise Conflict(
            f"sweep {before.name} was begun with another spec:\n{lines}",
            hint=f"another name: --name {before.name}-2; or remove it with its runs: rlctl sweep clean {before.name}",
            objects=(before.name,),
        )


def _said(search: Mapping[str, Any]) -> str:
    return f"{search['method']} over {', '.join(search['axes'])}" if search else "none"
