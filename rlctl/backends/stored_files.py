"""Files of a run as its manager, or a pod in its place, hands them out, whatever carries the questions there."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlencode

from rlctl.backends.base import Folder
from rlctl.errors import BackendUnreachable

_TRIES: Final = 3
"""For each piece of a file: a large one has thousands."""


class FilesOfManager:
    """Models, generations and evaluations of a run.

    Args:
        ask: GET of the manager's control API: path and query to the answer.
        who: answers, for messages.
    """

    def __init__(self, ask: Callable[[str], Any], who: str = "the manager") -> None:
        self._ask, self._who = ask, who

    def sizes(self, folder: Folder) -> Mapping[str, int]:
        """Bytes of each file.

        Raises:
            RlctlError: of `ask`.
            BackendUnreachable: the answer is none.
        """
        answer = self._ask("/files?" + urlencode({"folder": folder}))
        found = answer.get("files") if isinstance(answer, dict) else None
        if not isinstance(found, dict) or not all(type(size) is int for size in found.values()):
            raise BackendUnreachable(f"{self._who} does not say what {folder} holds")
        return found

    def read(self, folder: Folder, name: str, offset: int, length: int) -> bytes:
        """A piece of a file.

        Raises:
            RlctlError: of `ask`.
            BackendUnreachable: the answer is none.
        """
        asked = {"folder": folder, "name": name, "offset": offset, "length": length}
        for left in reversed(range(_TRIES)):
            try:
                answer = self._ask("/files?" + urlencode(asked))
                break
            except BackendUnreachable:
                if not left:
                    raise
        try:
            return base64.b64decode(answer["data"], validate=True)
        except (TypeError, KeyError, ValueError, binascii.Error) as error:
            raise BackendUnreachable(f"{self._who} does not say what {folder}/{name} holds") from error
