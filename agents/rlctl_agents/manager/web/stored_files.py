"""Files of a run for the command line, in pieces: its models, its generations and its evaluations."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Final

from rlctl.spec.layout import Layout
from rlctl_agents.runtime.http_server import Response

LARGEST_PIECE_BYTES: Final = 8 * 2**20
_PLAIN = re.compile(r"[A-Za-z0-9][-A-Za-z0-9._]{0,200}")
_OF_RESULTS = ("evaluations.jsonl",)


class StoredFiles:
    """Answers /files; called in several threads.

        GET /files?folder=models                                  {"files": {"best.json": 1193, ...}}: bytes of each
        GET /files?folder=models&name=N&offset=0&length=1000      {"data": base64}: fewer bytes only at the end

    Folders are models, checkpoints and results, of which only the evaluations can be had. What is no plain file there,
    such as a link, is not.
    """

    def __init__(self, layout: Layout) -> None:
        self._folders = {"models": layout.models, "checkpoints": layout.checkpoints, "results": layout.results}

    def answer(self, query: dict[str, str]) -> Response:
        """Names and sizes of a folder, or a piece of a file."""
        folder = self._folders.get(query.get("folder", ""))
        if folder is None:
            return Response.refusal(400, f"folder must be one of {', '.join(self._folders)}")
        try:
            files = {path.name: path.lstat().st_size for path in self._files(folder)}
            if "name" not in query:
                return Response.of({"files": files})
            name, span = query["name"], [query.get(key, "") for key in ("offset", "length")]
            if name not in files:
                return Response.refusal(404, f"there is no {name[:200]!r} in {folder.name}")
            if not all(number.isascii() and number.isdigit() and len(number) < 16 for number in span):
                return Response.refusal(400, "offset and length must be numbers")
            with (folder / name).open("rb") as file:
                file.seek(int(span[0]))
                data = file.read(min(int(span[1]), LARGEST_PIECE_BYTES))
        except OSError as error:
            return Response.refusal(503, f"the volume cannot be read: {error.strerror}")
        return Response.of({"data": base64.b64encode(data).decode()})

    def _files(self, folder: Path) -> list[Path]:
        known = [path for path in folder.iterdir() if _PLAIN.fullmatch(path.name)] if folder.is_dir() else []
        offered = known if folder.name != "results" else [path for path in known if path.name in _OF_RESULTS]
        return [path for path in sorted(offered) if path.is_file() and not path.is_symlink()]
