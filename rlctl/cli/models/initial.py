"""`init` of a spec: the initial policy of a new run, fetched and checked before the run is created."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlctl.backends.files import copy_policy
from rlctl.cli.context import ON_CLUSTERS, World
from rlctl.cli.models.fetched import fetched
from rlctl.cli.models.pull import read
from rlctl.cli.models.tensors import NoWeights, arrays
from rlctl.cli.run.target import look_up, recorded_target
from rlctl.errors import RlctlError, SpecError, UsageError
from rlctl.spec.runs.model_names import is_folder, split

if TYPE_CHECKING:
    from rlctl.spec import Loaded


class Initial:
    """Policy of `init.run`, fetched at most once.

    Args:
        loaded: a spec with `init`.
        files: exit stack that removes the fetched copy.
        kept: folder of a copy for all trials of a sweep, so that they begin alike; made at the first fetch.
    """

    def __init__(self, world: World, loaded: Loaded, files: ExitStack, kept: Path | None = None) -> None:
        assert loaded.spec.init is not None
        self._world, self._loaded, self._files, self._init = world, loaded, files, loaded.spec.init
        self._folder: Path | None = None
        self._kept = kept
        self.arrays: Mapping[str, str] = {}
        """Name of each array -> dtype and shape; empty before the fetch."""
        self.name = self._init.run

    def __call__(self) -> Path:
        """Folder of the policy, in the form of `rlctl pull`; fetched at the first call.

        Raises:
            SpecError: there is no such run, model or folder, or not such a part of it.
            BadSignature: the folder is not as the owner of `init.verify` signed it.
            RlctlError: it is damaged, or out of reach.
        """
        if self._folder is None:
            self._folder = self._fetched()
            if self._kept is not None and not self._kept.exists():
                copy_policy(self._folder, self._kept)
        return self._folder

    def plain(self) -> dict[str, Any]:
        """Name and arrays, for the check of the spec; empty before the fetch."""
        return {"of": self.name, "arrays": dict(self.arrays)} if self.arrays else {}

    def _fetched(self) -> Path:
        from rlctl.spec.problems.initial import part_of, taken, unknown_parts
        from rlctl.spec.problems.messages import Fault

        init, base = self._init, self._loaded.base
        try:
            if self._kept is not None and self._kept.exists():
                model = fetched(self._world, str(self._kept), None)
            elif is_folder(init.run):
                key = None if init.verify is None else base / init.verify
                model = fetched(self._world, os.path.realpath(base / os.path.expanduser(init.run)), None, key)
            else:
                model = fetched(self._world, init.run, recorded_target(split(init.run)[0]))
            folder, _, origin = self._files.enter_context(model)
            described, data = read(folder)
            self.arrays = arrays(data)
        except UsageError as error:
            text = f"{error.message}; {error.hint}" if error.hint else error.message
            raise SpecError([self._loaded.problem(Fault(("init", "run"), text))]) from error
        except NoWeights as error:
            raise RlctlError(f"the weights of {init.run} are damaged: {error}") from error
        self.name = f"{origin['run']}@{origin['model']}"
        if faults := list(unknown_parts(self.arrays, init.parts, self.name)):
            raise SpecError([self._loaded.problem(fault) for fault in faults])
        parts = ", ".join(init.parts) or "all parts"
        told = f"version {described['ref']['version']}, learned from {described['steps']:,} agent steps"
        self._world.say(f"begins from {self.name}: {told}; {parts}")
        took = {part_of(one) for one in taken(self.arrays, init.parts)}
        for part, needs in (("torso", "observed"), ("value", "returns")):
            if part in took and needs not in took and any(part_of(one) == needs for one in self.arrays):
                self._world.say(f"note: init.parts takes {part} without {needs}, the moments that it was trained with")
        return folder


@contextmanager
def initial(
    world: World, loaded: Loaded, *, only_here: bool = False, kept: Path | None = None
) -> Iterator[Initial | None]:
    """Initial policy of a spec's run, for as long as the block lasts; None without `init`.

    For a run that does not exist yet it is fetched at once, so that nothing is begun where it is unavailable.

    Args:
        only_here: ask no cluster, for `lint`.
        kept: as for `Initial`.
    """
    spec = loaded.spec
    if spec.init is None:
        yield None
        return
    with ExitStack() as files:
        found = Initial(world, loaded, files, kept)
        if only_here:
            there = None if is_folder(spec.init.run) else recorded_target(split(spec.init.run)[0])
            if there in ON_CLUSTERS:
                world.say(f"not checked: init.run: {spec.init.run} is on a cluster")
            elif recorded_target(spec.run) is None:
                found()
        elif look_up(world, spec.run, spec.target)[1] is None:
            found()
        yield found
