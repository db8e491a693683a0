"""Design of a sweep: its trials by the command line, all checked before any starts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlctl.cli.apply import spec_check
from rlctl.cli.context import ON_CLUSTERS, Cluster, World
from rlctl.cli.display import checks
from rlctl.cli.experiments import axes as grammar
from rlctl.cli.experiments import record
from rlctl.cli.experiments.axes import Settings, words
from rlctl.cli.experiments.record import Sweep, Trial
from rlctl.cli.models.initial import initial
from rlctl.cli.run.prepare import check_place, load
from rlctl.cli.text import rfc3339
from rlctl.errors import Conflict, Problem, SpecError, UsageError
from rlctl.spec.names import IN_CLUSTER
from rlctl.spec.problems.checks import unsound
from rlctl.spec.runs import run_index
from rlctl.spec.words import printable

if TYPE_CHECKING:
    from rlctl.cli.experiments.search import Search
    from rlctl.spec import Loaded, Spec


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """Options of `rlctl sweep run`."""

    specs: Sequence[Path]
    sets: Sequence[str]
    target: str | None
    name: str | None
    seeds: int
    search: str | None  # method
    prune: bool
    trials: int  # settings that a search tries


class Design:
    """All settings of a sweep, each with its spec.

    Raises:
        SpecError: with everything that is wrong with the spec and all values.
        UsageError: options do not go together, or the sweep cannot be named so.
    """

    def __init__(self, world: World, options: SweepOptions) -> None:
        _check(options)
        self._world, self._options, self._digest = world, options, _digest(options.specs)
        self._fixed, axes, problems = grammar.read(options.sets, search=options.search is not None)
        stated = next((axis for axis in axes if axis.path == "seed"), None)
        self._axes = [axis for axis in axes if axis is not stated]
        if stated and options.prune:
            raise UsageError("--prune judges single runs", hint="leave out --set seed, and compare the best afterwards")
        if stated and options.seeds > 1:
            raise UsageError("--seeds and --set seed=... both say which seeds", hint="leave one of them out")
        if options.search is not None and not self._axes:
            raise UsageError("nothing to search", hint="as in --set algorithm.lr=1e-5..1e-3:log")
        if stated and stated.range and options.search:
            problems.append(Problem("seed", "is no range to search: list the seeds, as in seed=0,1,2", "--set"))
        _refuse(problems)
        settings_many = options.trials if options.search else prod(len(axis.values) for axis in self._axes)
        many = settings_many * (len(stated.values) if stated else options.seeds)  # counted before they are made
        record.check_room(options.name or "", many)
        grid = grammar.grid(self._axes)
        self._loaded: dict[str, Loaded] = {}  # settings in words -> the spec with them
        self._seeds: list[int] = []
        for settings in grid:
            try:
                self._loaded[words(settings)] = self._load(settings)
            except SpecError as error:
                problems += error.problems
        for text in stated.values if stated else ():
            try:
                self._seeds.append(self._load(grid[0], f"seed={text}").spec.seed)
            except SpecError as error:
                problems += error.problems
        _refuse(problems)
        _refuse([problem for one in self._loaded.values() for problem in _endless(one.spec, prune=options.prune)])
        first = self._first
        check_place(world, first)
        self._seeds = self._seeds or [first.spec.seed + at for at in range(options.seeds)]
        self.sweep = self._new(first.spec.run if options.name is None else options.name, first.spec.target)
        record.check_room(self.sweep.name, many)
        named = unsound(first.spec.model_copy(update={"run": f"{self.sweep.name}-1"}))
        _refuse([Problem("run", fault.message, "--name") for fault in named if fault.path == ("run",)])
        for ordered in self._ordered(grid) if options.search is None else ():
            self.sweep.specs[words(ordered)] = record.pinned(self._loaded[words(ordered)].spec)
            for seed in self._seeds:
                self.sweep.add(ordered, seed)

    @property
    def _first(self) -> Loaded:
        return next(iter(self._loaded.values()))

    def _ordered(self, grid: Sequence[Settings]) -> Iterator[Settings]:
        """Settings with their fields in the order in which the sweep's record has them, if it does."""
        before = record.find(self.sweep.name)
        known = {frozenset(one.settings.items()): one.settings for one in (before.trials if before else ())}
        for settings in grid:
            same = known.get(frozenset(settings.items()), settings)
            self._loaded[words(same)] = self._loaded.pop(words(settings))
            yield same

    def _load(self, settings: Settings, *more: str) -> Loaded:
        own = [f"{path}={value}" for path, value in settings.items()]
        return load(self._world, self._options.specs, [*self._fixed, *own, *more], self._options.target)

    def _new(self, name: str, target: str) -> Sweep:
        record.check_name(name)
        options, search = self._options, dict[str, Any]()
        if options.search is not None:
            search = {"method": options.search, "axes": [axis.text for axis in self._axes], "prune": options.prune}
        cluster = self._world.cluster if any(self._world.cluster) else self._world.usual_cluster
        context, namespace = cluster if target in ON_CLUSTERS else Cluster()
        files = ", ".join(printable(str(path)) for path in options.specs)
        return Sweep(name, rfc3339(self._world.now()), files, target, context, namespace, search)

    def begin(self, *, retry: bool) -> Sweep:
        """Merge the sweep into its record and save it; environments are tried first.

        Raises:
            Conflict: it was begun with another spec, or a package is not installed.
            SpecError: an environment is not there.
        """
        before, now = record.find(self.sweep.name), self.sweep
        if before is not None:
            if now.search:
                now.specs = {key: record.pinned(self.load(one).spec) for key, one in before.firsts().items()}
            record.check_same(before, now)
            if now.search and (had := sorted({one.seed for one in before.trials})) not in ([], sorted(self._seeds)):
                raise Conflict(
                    f"search {now.name} was begun with the seeds {had}, now {sorted(self._seeds)}: means of another "
                    "number of seeds are not alike",
                    hint=f"another name: --name {now.name}-again; or the seeds of before",
                    objects=(now.name,),
                )
            have = {(words(one.settings), one.seed) for one in before.trials}
            for one in now.trials:
                if (words(one.settings), one.seed) not in have:
                    before.add(one.settings, one.seed)
            record.check_room(before.name, len(before.trials))
            before.specs |= now.specs
            for one in before.trials if retry else ():
                one.state = "waiting" if one.state == "failed" else one.state
            self.sweep = before
        for one in self.sweep.trials:
            if not one.uid and run_index.read(one.run) is not None:
                raise record.foreign(self.sweep, one.run)
        self._find_cluster()
        if self.sweep.search or any(not one.over for one in self.sweep.trials):
            self._try()
        self.sweep.save()
        return self.sweep

    def _find_cluster(self) -> None:
        """Select the cluster that the sweep was begun on; record that of a new one."""
        sweep, world = self.sweep, self._world
        if sweep.target in ON_CLUSTERS:
            world.cluster = Cluster(sweep.context, sweep.namespace)
            backend = world.backend(sweep.target)
            sweep.context, sweep.namespace = backend.context, backend.namespace
            if sweep.context == IN_CLUSTER:
                sweep.context = None
            world.cluster = Cluster(sweep.context, sweep.namespace)

    def _try(self) -> None:
        """Try environments, networks and algorithms on this machine, once for specs that name the same ones."""
        problems: list[Problem] = []
        for one in {_named(loaded.spec): loaded for loaded in self._loaded.values()}.values():
            with (
                initial(self._world, one, kept=self.sweep.kept(one.spec)) as policy,
                spec_check.started_check(self._world, one, policy) as asked,
            ):
                if asked is None:
                    continue
                probed = asked.answer()
            problems += [one.problem(fault) for fault in probed.faults]
            if not probed.faults:
                found = spec_check.as_checks(one, probed)
                for line in checks.as_lines(found, "  "):
                    self._world.say(line)
                checks.refuse(self.sweep.name, found)
        _refuse(problems)

    def load(self, trial: Trial) -> Loaded:
        """The spec of a trial.

        Raises:
            SpecError: its settings do not go together.
            Conflict: the files were changed meanwhile.
        """
        key = words(trial.settings)
        if key not in self._loaded:
            if _digest(self._options.specs) != self._digest:
                name = self.sweep.name
                raise Conflict(f"{self.sweep.spec} was changed while sweep {name} runs", hint="put it back as it was")
            self._loaded[key] = self._load(trial.settings)
            self.sweep.specs.setdefault(key, record.pinned(self._loaded[key].spec))
        one = self._loaded[key]
        update = {"run": trial.run, "seed": trial.seed, "trackers": one.spec.trackers.grouped(self.sweep.name)}
        return replace(one, spec=one.spec.model_copy(update=update))

    def search(self) -> Search | None:
        """The sweep's search, resumed; None for a grid.

        Raises:
            UsageError: Optuna is not installed.
        """
        if self._options.search is None:
            return None
        from rlctl.cli.experiments.search import Search
        from rlctl.spec import fields

        values, whole = self._first.values, set[str]()
        for axis in self._axes:
            field = fields.at(tuple(axis.path.split(".")), values)
            types = getattr(field, "types", ())
            if not types:  # an argument of your own: whole where its bounds are written so
                types = (int,) if all(bound.strip().lstrip("+-").isdecimal() for bound in axis.values) else ()
            whole |= {axis.path} if int in types and float not in types else set()
        made = Search(self.sweep.folder, self._axes, whole, prune=self._options.prune, seed=self._first.spec.seed)
        made.forget({one.suggestion for one in self.sweep.trials if one.suggestion is not None})
        return made

    def suggest(self, search: Search | None, most: int) -> Trial | None:
        """First trial of the next suggestion, recorded with all its seeds; None without a search, or after `most`."""
        if search is None or len({one.suggestion for one in self.sweep.trials}) >= most:
            return None
        record.check_room(self.sweep.name, len(self.sweep.trials) + len(self._seeds))
        number, settings = search.ask()
        added = [self.sweep.add(settings, seed, number) for seed in self._seeds]
        self.sweep.save()
        return added[0]


def _check(options: SweepOptions) -> None:
    if any(str(path) == "-" for path in options.specs):
        raise UsageError("a sweep reads its spec again when it goes on", hint="write it to a file")
    if options.prune and options.search is None:
        raise UsageError("--prune is for a search: --search optuna")
    if options.prune and options.seeds > 1:
        raise UsageError("--prune judges single runs", hint="leave out --seeds, and compare the best with more seeds")


def _refuse(problems: Sequence[Problem]) -> None:
    if problems:
        raise SpecError(list(dict.fromkeys(problems)), hint="no trial was started")


def _endless(spec: Spec, *, prune: bool) -> list[Problem]:
    """Reasons for which runs of a sweep would not end, or could not be compared while they run."""
    stop = spec.stop
    if prune and stop.agent_steps is None:
        return [Problem("stop.agent_steps", "--prune compares trials at the same share of it, and it is not set")]
    if stop.agent_steps is None and stop.eval_return is None and stop.wall_time is None:
        return [Problem("stop", "a sweep has runs that end: set stop.agent_steps, stop.eval_return or stop.wall_time")]
    return []


def _named(spec: Spec) -> str:
    """Key of a trial of the environment: equal for specs that differ in numbers of the algorithm alone."""
    policies = [(name, spec.policy(name)) for name in spec.policy_names]
    named = []
    for name, one in policies:
        algorithm = one.algorithm.model_dump(mode="json", include={"name", "class_", "params"})
        named.append((name, algorithm, one.model.model_dump(mode="json")))
    code = None if spec.code is None else spec.code.model_dump(mode="json")
    init = None if spec.init is None else spec.init.model_dump(mode="json")
    return json.dumps([spec.env.model_dump(mode="json"), code, named, init])


def _digest(specs: Sequence[Path]) -> str:
    try:
        return sha256(b"\0".join(path.read_bytes() for path in specs)).hexdigest()
    except OSError:  # the loader reports it
        return ""
