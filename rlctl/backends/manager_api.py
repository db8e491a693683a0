"""One JSON request to the manager of a run, whatever carries it there, and its repetition while the manager is away."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from rlctl.errors import BackendUnreachable, Conflict, RlctlError

LARGEST_ANSWER_BYTES: Final = 64 * 2**20

PAUSES_S: Final = (0.0, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Pauses before each further try: a manager that is started again answers within a minute."""

Answer = TypeVar("Answer")
Send = Callable[[str, str, str | None, dict[str, str]], tuple[int, bytes]]
"""Sender of a request: method, target, body and headers to status and content, which it reads up to a limit at most."""


def persist(
    request: Callable[[], Answer],
    sleep: Callable[[float], None],
    *,
    lasts: Callable[[BackendUnreachable], bool] = lambda error: False,
) -> Answer:
    """The answer to a request of a manager that has answered before, made again with pauses of a minute in all.

    Args:
        request: has the same effect however often it is made.
        lasts: whether no pause helps against an error.

    Raises:
        RlctlError: of the request; BackendUnreachable of the last one, or of one that lasts.
    """
    pauses = iter(PAUSES_S)
    while True:
        try:
            return request()
        except BackendUnreachable as error:
            if lasts(error) or (pause_s := next(pauses, None)) is None:
                raise
            sleep(pause_s)


def ask(who: str, method: str, target: str, body: Mapping[str, Any] | None, send: Send, timeout_s: float) -> Any:
    """The request and its answer.

    Args:
        who: process that is asked, for messages: "the manager of run cartpole".
        target: path and query of the resource.
        timeout_s: time that `send` has, for the message.

    Raises:
        BackendUnreachable: nothing listens, no answer within the time, or not JSON.
        Conflict: it is too late for what is asked (409).
        RlctlError: another answer of 400 or more; with what it says.
    """
    payload = None if body is None else json.dumps(body)
    try:
        status, content = send(method, target, payload, {"Content-Type": "application/json"} if payload else {})
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise BackendUnreachable(f"{who} does not listen") from error
    except TimeoutError as error:
        raise BackendUnreachable(f"{who} did not answer within {timeout_s:g} s") from error
    except (OSError, http.client.HTTPException) as error:
        raise BackendUnreachable(f"{who} broke off: {error or type(error).__name__}") from error
    if len(content) > LARGEST_ANSWER_BYTES:
        raise BackendUnreachable(f"{who} answered {method} {target} with more than {LARGEST_ANSWER_BYTES} bytes")
    try:
        value = json.loads(content) if content else None
    except ValueError as error:
        raise BackendUnreachable(f"{who} answered {method} {target} with something else than JSON") from error
    if status >= 400:
        said = value.get("error") if isinstance(value, dict) else value
        detail = said.get("message") if isinstance(said, dict) else said
        told = f"{who} refused {method} {target}: {detail or f'HTTP {status}'}"
        # 503: busy, or it has only just started
        raise {409: Conflict, 503: BackendUnreachable}.get(status, RlctlError)(told)
    return value
