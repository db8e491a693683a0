"""Manifests of committed generations: one small immutable file each, created atomically once its parts are stored."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

from rlctl_agents.checkpoint.parts import begun_for, generation_of, sync_folder
from rlctl_agents.runtime.storage import create_file
from rlctl_agents.types.control import Generation

FORMAT = 1
_NAME = re.compile(r"generation-([0-9]{6,})\.json")

log = logging.getLogger(__name__)


class Manifest(msgspec.Struct, frozen=True):
    """Content of a manifest file."""

    format: int
    generation: Generation


class Manifests:
    """Committed generations of a run, newest first.

    Args:
        folder: folder of checkpoints, on the volume.

    Raises:
        OSError: the newest manifest cannot be read just now; a learner would resume from an older generation.
    """

    damaged: list[str]
    """Names of manifests that cannot be read; they are left alone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[int, Generation] = {}
        self.damaged = []
        refused: dict[int, OSError] = {}
        for path in sorted(folder.glob("generation-*.json")):
            if (match := _NAME.fullmatch(path.name)) is None:
                continue
            try:
                manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
                if manifest.format != FORMAT or _name(manifest.generation.number) != path.name:
                    raise ValueError("of another format, or renamed")
                self._known[manifest.generation.number] = manifest.generation
            except FileNotFoundError:
                continue  # an earlier manager has just removed it
            except OSError as error:
                refused[int(match[1])] = error
            except (ValueError, msgspec.MsgspecError) as error:
                log.error("%s is damaged and not used: %s", path.name, error)
                self.damaged.append(path.name)
        for number, why in refused.items():
            if number > max(self._known, default=0):
                raise why
            log.error("%s cannot be read and is not used: %s", _name(number), why)
            self.damaged.append(_name(number))

    @property
    def highest(self) -> int:
        """Highest number ever used, including damaged manifests; 0: none."""
        return max([0, *self._known, *self._damaged_numbers])

    @property
    def newest_damaged(self) -> list[str]:
        """Names of damaged manifests that are newer than every other: an older generation is used in their place."""
        return [_name(number) for number in self._damaged_numbers if number > max(self._known, default=0)]

    @property
    def newest_term(self) -> int:
        """Newest term of all generations; 0: none."""
        return max((one.term for one in self._known.values()), default=0)

    def of(self, policy: str) -> tuple[Generation, ...]:
        """Committed generations of a policy, newest first."""
        return tuple(one for _, one in sorted(self._known.items(), reverse=True) if one.policy == policy)

    def newest(self, policy: str) -> Generation | None:
        """Newest committed generation of a policy; None: none."""
        return next(iter(self.of(policy)), None)

    def commit(self, generation: Generation) -> None:
        """Commit a generation, durably and atomically.

        Raises:
            ValueError: its number was used, or a part or a checksum is missing.
            OSError: the volume refuses.
        """
        if generation.number <= self.highest:
            raise ValueError(f"generation {generation.number} is not newer than {self.highest}, which was committed")
        if not generation.parts or generation.parts.keys() != generation.sha256.keys():
            raise ValueError(f"generation {generation.number} has no parts, or not a checksum for each")
        for part, file in generation.parts.items():
            self.require_part(part, file)
        data = msgspec.json.format(msgspec.json.encode(Manifest(FORMAT, generation))) + b"\n"
        if not create_file(self._folder / _name(generation.number), data):
            raise ValueError(f"generation {generation.number} was committed by another process")
        self._known[generation.number] = generation

    def without(self, policy: str) -> dict[str, int | None]:
        """Expected parts that neither the newest generation nor the one before it has -> number of the newest
        generation that has the part; None: none has it."""
        found = self.of(policy)
        lost = {part for one in found[:1] for part in one.absent}.difference(*(one.parts for one in found[1:2]))
        return {part: next((one.number for one in found if part in one.parts), None) for part in sorted(lost)}

    def require_part(self, part: str, file: str) -> None:
        """Check that the file of a part is there.

        Raises:
            ValueError: it is not, or its name cannot be that of a part.
            OSError: the volume refuses.
        """
        if file != Path(file).name or file.startswith(".") or _NAME.fullmatch(file):
            raise ValueError(f"part {part}: {file!r} is not the name of a part")
        if not (self._folder / file).is_file():
            raise ValueError(f"part {part}: {file} is not on the volume")

    def prune(self, keep: int) -> list[Generation]:
        """Remove all but the newest generations of each policy, and the parts that only they had. A generation stays
        for longer while it has the newest part of a shard that the newest generation is without.

        Args:
            keep: number of generations of each policy that stay.

        Returns:
            The removed generations.

        Raises:
            OSError: the volume refuses; manifests that were removed before stay removed.
        """
        removed: list[Generation] = []
        for policy in {one.policy for one in self._known.values()}:
            found = self.of(policy)
            lost = set(found[0].absent).difference(*(one.parts for one in found[:keep]))
            for generation in found[keep:]:
                if lost.isdisjoint(generation.parts):
                    removed.append(generation)
                lost -= generation.parts.keys()
        if not removed:
            return []
        for generation in removed:
            (self._folder / _name(generation.number)).unlink(missing_ok=True)
            del self._known[generation.number]
        sync_folder(self._folder)  # no reader finds a manifest without its parts
        self.remove_parts(_files(removed) - _files(self._known.values()))
        return removed

    def unclaimed(self, policy: str, below: int) -> set[str]:
        """Parts that no generation names or ever will: their commit was refused, or its reply was lost; and parts half
        written by a process that is too late, or that was killed and never comes back to its machine.

        Only parts with a number below one that was committed or given up: a commit of theirs that is still in flight is
        refused, because its number is too low or a part is gone. Parts that a damaged manifest may name are excluded.
        The result is empty if there is an unknown manifest: another process commits here.

        Raises:
            OSError: the volume refuses.
        """
        names = {path.name for path in self._folder.iterdir()}
        seen = {*map(_name, self._known), *self.damaged}
        if any(_NAME.fullmatch(name) and name not in seen for name in names):
            return set()
        damaged = max(self._damaged_numbers, default=0)  # a generation names no part that is newer than itself
        return {
            file
            for file in names - _files(self._known.values())
            if (made_for := generation_of(file) or begun_for(file)) is not None
            and made_for[0] == policy
            and damaged < made_for[1] < below
        }

    def remove_parts(self, files: Iterable[str]) -> None:
        """Remove parts that no generation names.

        Raises:
            OSError: the last refusal of the volume; all parts that it did not refuse are gone.
        """
        refused: OSError | None = None
        for file in files:
            try:
                (self._folder / file).unlink(missing_ok=True)
            except OSError as error:
                refused = error
        if refused is not None:
            raise refused

    @property
    def _damaged_numbers(self) -> list[int]:
        return [int(match[1]) for name in self.damaged if (match := _NAME.fullmatch(name))]


def _files(generations: Iterable[Generation]) -> set[str]:
    return {file for generation in generations for file in generation.parts.values()}


def _name(number: int) -> str:
    return f"generation-{number:06d}.json"
