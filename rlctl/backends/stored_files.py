"""Files of a run, read from its manager or from a pod in its place, over any connection."""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import urlencode

from rlctl.backends.base import Folder
from rlctl.backends.manager_api import persist
from rlctl.errors import BackendUnreachable


class FilesOfManager:
    """Models, generations and evaluations of a run.

    Args:
        ask: GET of the control API: path and query to the decoded reply.
        who: process that answers, for messages.
    """

    def __init__(
        self, ask: Callable[[str], Any], who: str = "the manager", *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._get, self._who, self._sleep = ask, who, sleep
        self._answered = False

    def sizes(self, folder: Folder) -> Mapping[str, int]:
        """Bytes of each file.

        Raises:
            RlctlError: raised by `ask`.
            BackendUnreachable: the reply is malformed.
        """
        answer = self._ask({"folder": folder})
        found = answer.get("files") if isinstance(answer, dict) else None
        if not isinstance(found, dict) or not all(type(size) is int for size in found.values()):
            raise BackendUnreachable(f"{self._who} does not say what {folder} holds")
        return found

    def read(self, folder: Folder, name: str, offset: int, length: int) -> bytes:
        """Bytes of a file from `offset`, at most `length`.

        Raises:
            RlctlError: raised by `ask`.
            BackendUnreachable: the reply is malformed.
        """
        asked = {"folder": folder, "name": name, "offset": offset, "length": length}
        answer = self._ask(asked)
        try:
            return base64.b64decode(answer["data"], validate=True)
        except (TypeError, KeyError, ValueError, binascii.Error) as error:
            raise BackendUnreachable(f"{self._who} does not say what {folder}/{name} holds") from error

    def _ask(self, asked: Mapping[str, Any]) -> Any:
        """The reply; once there has been one, a request is retried while the server is unreachable."""
        get = partial(self._get, "/files?" + urlencode(asked))
        answer = persist(get, self._sleep) if self._answered else get()
        self._answered = True
        return answer
