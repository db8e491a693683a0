"""Files of a run for the command line, in pieces: its models, its generations and its evaluations."""

from __future__ import annotations

import base64
import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rlctl.spec.layout import EVALUATIONS, Layout
from rlctl_agents.runtime.http_server import Response, is_count

LARGEST_PIECE_BYTES: Final = 2**20
_PLAIN = re.compile(r"[A-Za-z0-9][-A-Za-z0-9._]{0,200}")


class StoredFiles:
    """Handler of /files; called in several threads.

        GET /files?folder=models                                  {"files": {"best.json": 1193, ...}}: bytes of each
        GET /files?folder=models&name=N&offset=0&length=1000      {"data": base64}: fewer bytes only at the end

    Folders are models, checkpoints, init, episodes, and results, of which only the evaluations are offered. Only plain
    files are offered, no links.
    """

    def __init__(self, layout: Layout) -> None:
        self._folders = {
            folder.name: folder
            for folder in (layout.models, layout.checkpoints, layout.results, layout.init, layout.episodes)
        }

    def answer(self, query: dict[str, str]) -> Response:
        """Reply with names and sizes of a folder, or with a piece of a file."""
        folder = self._folders.get(query.get("folder", ""))
        if folder is None:
            return Response.refusal(400, f"folder must be one of {', '.join(self._folders)}")
        try:
            if "name" not in query:
                return Response.of({"files": dict(_sizes(folder))})
            name, span = query["name"], [query.get(key, "") for key in ("offset", "length")]
            if not all(map(is_count, span)):
                return Response.refusal(400, "offset and length must be numbers")
            if not _offered(folder, name):
                return Response.refusal(404, f"there is no {name[:200]!r} in {folder.name}")
            data = piece(folder / name, int(span[0]), min(int(span[1]), LARGEST_PIECE_BYTES))
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ELOOP):
                return Response.refusal(404, f"there is no {query.get('name', '')[:200]!r} in {folder.name}")
            return Response.refusal(503, f"the volume cannot be read: {error.strerror}")
        return Response.of({"data": base64.b64encode(data).decode()})


def piece(path: Path, offset: int, length: int) -> bytes:
    """Piece of a plain file; shorter at its end.

    Raises:
        OSError: it cannot be read; ENOENT or ELOOP: there is no plain file of that name.
    """
    with open(path, "rb", opener=_no_link) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.ENOENT, "no plain file", str(path))
        file.seek(offset)
        return file.read(length)


def _offered(folder: Path, name: str) -> bool:
    return _PLAIN.fullmatch(name) is not None and (folder.name != "results" or name == EVALUATIONS)


def _sizes(folder: Path) -> Iterator[tuple[str, int]]:
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        with contextlib.suppress(FileNotFoundError):  # the run may remove old ones meanwhile
            if _offered(folder, path.name) and stat.S_ISREG((status := path.lstat()).st_mode):
                yield path.name, status.st_size


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
