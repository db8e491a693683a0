"""Films of single episodes of a run: the newest few and the best, as GIFs below results/episodes."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path

import msgspec

from rlctl_agents.manager.state_store import Evaluation
from rlctl_agents.runtime.storage import read_file, refusal, replace_file
from rlctl_agents.types.control import Film

NEWEST = 3
"""Newest films that are kept, beside the best."""
FILE = re.compile(r"[0-9]{10}-v[0-9]{12}\.gif")
INDEX = "index.json"

log = logging.getLogger(__name__)


class StoredFilm(msgspec.Struct, frozen=True):
    """Entry of results/episodes/index.json."""

    file: str
    version: int  # of the model
    steps: int  # agent steps that it was learned from
    mode: str
    returned: float  # return of the episode, raw
    length: int  # decisions
    mean: float  # of the evaluation that it belongs to
    seconds: float  # length of the film
    time: float  # unix


class Films:
    """Stored films; one enters the index once its file is written.

    Args:
        folder: results/episodes; created with the first film.
        stands: no other manager has taken over; may raise OSError.
    """

    def __init__(self, folder: Path, stands: Callable[[], bool]) -> None:
        self._folder, self._stands = folder, stands
        self.episodes = read_films(folder)
        """Oldest first."""

    def add(self, film: Film, of: Evaluation, match: int) -> str:
        """Store a film and remove those neither new nor best any more; returns what was done, in words.

        Args:
            of: evaluation that it belongs to.
            match: unique number of the match.

        Raises:
            ValueError: it is not stored; the message says why.
        """
        if film.fault:
            raise ValueError(film.fault)
        if not film.gif.startswith((b"GIF89a", b"GIF87a")):
            raise ValueError("it is no GIF")
        name = f"{match:010d}-v{of.ref.version:012d}.gif"
        try:
            if not self._stands():
                raise ValueError("another manager has taken over")
            self._folder.mkdir(mode=0o700, exist_ok=True)
            replace_file(self._folder / name, film.gif, durable=False)  # not retried: nothing waits for it
        except OSError as error:
            raise ValueError(refusal(error) or f"the volume takes nothing: {error.strerror}") from error
        made = StoredFilm(
            name, of.ref.version, of.steps, of.mode, film.returned, film.length, of.mean, film.seconds,
            of.time,
        )  # fmt: skip
        known = [*self.episodes, made]
        best = self.best(known)
        self.episodes = [one for one in known if one is best or one in known[-NEWEST:]]
        try:
            replace_file(self._folder / INDEX, msgspec.json.encode(self.episodes), durable=False)
        except OSError as error:  # retried with the next film
            log.warning("cannot store which episodes are recorded: %s", refusal(error) or error)
        self._tidy()
        return f"an episode of version {made.version} is recorded: return {made.returned:.4g}, results/episodes/{name}"

    @staticmethod
    def best(episodes: list[StoredFilm]) -> StoredFilm | None:
        """Episode of the evaluation with the highest mean; of equal ones the newest."""
        return max(reversed(episodes), key=lambda one: one.mean, default=None)

    def _tidy(self) -> None:
        kept = {one.file for one in self.episodes}
        try:
            for path in self._folder.iterdir():
                if FILE.fullmatch(path.name) and path.name not in kept:
                    path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("cannot remove old films: %s", error)


def read_films(folder: Path) -> list[StoredFilm]:
    """Films of a run, oldest first; none if they cannot be read: films are no reason to end a run."""
    try:
        data = read_file(folder / INDEX)
        found = [] if data is None else msgspec.json.decode(data, type=list[StoredFilm])
    except (OSError, msgspec.MsgspecError) as error:
        log.error("%s cannot be read, films begin anew: %s", folder / INDEX, error)
        return []
    return [one for one in found if FILE.fullmatch(one.file) and (folder / one.file).is_file()]
