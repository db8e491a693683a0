"""Initial policy of a run, uploaded by the command line in pieces, where that has no access to the volume."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import re
import threading
from typing import Any, Final

from rlctl.spec.layout import Layout
from rlctl_agents.checkpoint.parts import sync_folder
from rlctl_agents.runtime.http_server import Request, Response
from rlctl_agents.runtime.storage import refusal

BODY_BYTES: Final = 2**20
"""Bytes of a request, at most."""
LARGEST_BYTES: Final = 2**36
"""Bytes of a file, at most."""
_NAME = re.compile(r"policy\.json|policy\.safetensors|run\.json")


class InitialPolicy:
    """Handler of /init; called in several threads.

    POST /init {"name": "policy.json", "offset": 0, "data": base64}    {"bytes": of the file so far}
    POST /init {"whole": {"policy.json": sha256, ...}}                 {"there": true}: from now on it never changes
    """

    def __init__(self, layout: Layout) -> None:
        self._to, self._unfinished = layout.init, layout.init.with_name(f".{layout.init.name}-unfinished")
        self._lock = threading.Lock()

    def answer(self, request: Request) -> Response:
        """Store a piece, or complete the policy from its pieces."""
        try:
            body = json.loads(request.body)
            with self._lock:
                if self._to.exists():  # completed by another command, or by this one, whose reply was lost
                    return Response.of({"there": True})
                return Response.of(self._complete(body["whole"]) if "whole" in body else self._take(body))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, binascii.Error) as error:
            return Response.refusal(400, f"{type(error).__name__}: {error}")
        except OSError as error:
            return Response.refusal(507 if refusal(error) else 503, f"the volume takes nothing: {error.strerror}")

    def _take(self, body: dict[str, Any]) -> dict[str, int]:
        name, offset = body["name"], body["offset"]
        data = base64.b64decode(body["data"], validate=True)
        if not _NAME.fullmatch(name) or type(offset) is not int or not 0 <= offset <= LARGEST_BYTES:
            raise ValueError("no file of a policy, or no place in one")
        self._unfinished.mkdir(mode=0o700, exist_ok=True)
        with open(self._unfinished / name, "r+b" if offset else "wb") as file:
            file.seek(offset)
            file.write(data)
            file.truncate()
            return {"bytes": file.tell()}

    def _complete(self, digests: dict[str, str]) -> dict[str, bool]:
        for name, sha256 in digests.items():
            if not _NAME.fullmatch(name):
                raise ValueError(f"{name[:100]!r} is no file of a policy")
            with open(self._unfinished / name, "rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                    raise ValueError(f"{name} is not as it was sent")
                os.fsync(file.fileno())
        if "policy.json" not in digests:
            raise ValueError("there is no policy.json")
        for path in self._unfinished.iterdir():  # left by a command that was killed
            if path.name not in digests:
                path.unlink()
        sync_folder(self._unfinished)
        self._unfinished.rename(self._to)
        sync_folder(self._to.parent)
        return {"there": True}
