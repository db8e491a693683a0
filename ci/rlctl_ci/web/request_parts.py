"""Parts of a request: numbers of its query, its body, its address."""

from __future__ import annotations

import json
import re
from typing import Any

from starlette.requests import Request

from rlctl_ci.core.errors import CiError


async def document(request: Request) -> dict[str, Any]:
    """Parse the body of a request as a JSON object.

    Raises:
        CiError: the body is no JSON object.
    """
    try:
        found = json.loads(await request.body())
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise CiError("the body is no JSON object")
    return found


def number(request: Request, name: str, usual: int, *, least: int = 0, most: int = 10**15 - 1) -> int:
    """Number in the query; `usual` when it has none.

    Raises:
        CiError: it is no number, or not from `least` to `most`.
    """
    text = request.query_params.get(name)
    if text is None:
        return usual
    if not re.fullmatch(r"[0-9]{1,15}", text) or not least <= int(text) <= most:
        raise CiError(f"{name}: must be a number from {least} to {most}")
    return int(text)


def address(request: Request) -> str:
    """Address of the client, as the guard has determined it."""
    return request.client.host if request.client is not None else "-"
