"""Files of a run in its folder on this machine."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from rlctl.backends.base import Folder
from rlctl.backends.files import reported
from rlctl.spec.layout import EVALUATIONS, Layout


class FilesOfFolder:
    """Models, generations and evaluations of a run."""

    def __init__(self, layout: Layout) -> None:
        self._folders: dict[Folder, Path] = {
            "models": layout.models, "checkpoints": layout.checkpoints, "results": layout.results, "init": layout.init,
            "episodes": layout.episodes,
        }  # fmt: skip

    def sizes(self, folder: Folder) -> Mapping[str, int]:
        """Bytes of each file."""
        with reported(f"cannot read {self._folders[folder]}"):
            if not self._folders[folder].is_dir():
                return {}
            names = [path.name for path in sorted(self._folders[folder].iterdir())]
            return dict(self._sizes(folder, [name for name in names if folder != "results" or name == EVALUATIONS]))

    def _sizes(self, folder: Folder, names: list[str]) -> Iterator[tuple[str, int]]:
        for name in names:
            with suppress(FileNotFoundError):  # a live run removes old ones meanwhile
                status = (self._folders[folder] / name).stat()
                if stat.S_ISREG(status.st_mode):
                    yield name, status.st_size

    def read(self, folder: Folder, name: str, offset: int, length: int) -> bytes:
        """Bytes of a file from `offset`, at most `length`.

        Raises:
            BackendUnreachable: there is no such file, or it cannot be read.
        """
        path = self._folders[folder] / Path(name).name  # a damaged file may name anything
        with reported(f"cannot read {path}"), path.open("rb") as file:
            file.seek(offset)
            return file.read(length)
