"""Index of runs: one small file for each run that was started from this machine, which records where it is."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from rlctl.errors import BackendUnreachable
from rlctl.spec.layout import state_home

FORMAT: Final = 1
_TORN: Final = "Another program wrote it, or the disk was full. Move it away; what the run learned lies elsewhere."
_UNREADABLE: Final = "Make it readable: its owner, its mode or its file system is another than before. Keep it."
_TEXTS: Final = ("uid", "storage", "sockets", "context", "namespace", "server")


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """Entry of a run. A text that its file does not have is empty."""

    run: str
    uid: str = ""
    target: str = "local"
    storage: str = ""  # of a run of this machine: absolute folder
    sockets: str = ""  # of a run of this machine: its private folder
    context: str = ""  # of a run on a cluster, as the three below
    namespace: str = ""
    server: str = ""  # https://...
    images: Mapping[str, str] = field(default_factory=dict)  # as applied last, by digest: `render` asks no cluster

    def stored(self) -> dict[str, Any]:
        """Content of its file, as JSON; `read` gives an equal entry."""
        return {"format": FORMAT, **{key: value for key, value in asdict(self).items() if value}}


class Torn(BackendUnreachable):
    """An index entry that is torn, foreign or cannot be read.

    Args:
        run: name of the run.
        why: what is wrong with the file.
        hint: the remedy; by default for a file that another program wrote, or a full disk tore.
    """

    def __init__(self, run: str, why: str, hint: str = _TORN) -> None:
        super().__init__(
            f"{path(run)} does not hold the index entry of run {run}: {why}", hint=hint, objects=(str(path(run)),)
        )


def folder() -> Path:
    """Folder of the index."""
    return state_home() / "index"


def path(run: str) -> Path:
    """File of a run's entry."""
    return folder() / f"{run}.json"


def names() -> list[str]:
    """Runs of the index, sorted, from the names of its files alone; none when there is no index.

    Raises:
        OSError: its folder cannot be read.
    """
    try:
        return sorted(name[:-5] for name in os.listdir(folder()) if name.endswith(".json"))
    except (FileNotFoundError, NotADirectoryError):
        return []


def read(run: str) -> IndexEntry | None:
    """Entry of the run of that name, or None. One that names no target is of this machine.

    Raises:
        Torn: its file is torn or foreign, or cannot be read.
    """
    try:
        found = json.loads(path(run).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Torn(run, f"it cannot be read: {error.strerror or type(error).__name__}", _UNREADABLE) from error
    except (ValueError, RecursionError) as error:
        raise Torn(run, f"not JSON: {error}") from error
    if not isinstance(found, dict):
        raise Torn(run, "not a JSON object")
    if found.get("run", run) != run:
        raise Torn(run, f"it is of run {str(found['run'])[:100]}")
    texts = {key: value for key in _TEXTS if isinstance(value := found.get(key), str)}
    target, images = found.get("target"), found.get("images")
    return IndexEntry(
        run,
        target=target if isinstance(target, str) and target else "local",
        images={name: image for name, image in images.items() if isinstance(image, str)}
        if isinstance(images, dict)
        else {},
        **texts,
    )
