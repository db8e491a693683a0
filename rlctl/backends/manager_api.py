"""JSON requests to the manager of a run over any transport, and retries while the manager is down."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from rlctl.errors import BackendUnreachable, Conflict, RlctlError

LARGEST_ANSWER_BYTES: Final = 64 * 2**20

PAUSES_S: Final = (0.0, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Seconds of backoff before each attempt: a restarted manager answers within a minute."""

Answer = TypeVar("Answer")
Send = Callable[[str, str, str | None, dict[str, str]], tuple[int, bytes]]
"""Sender of a request: (method, target, body, headers) to (status, content); it may cut content beyond the limit."""


def persist(
    request: Callable[[], Answer],
    sleep: Callable[[float], None],
    *,
    lasts: Callable[[BackendUnreachable], bool] = lambda error: False,
) -> Answer:
    """Repeat a request to a manager that has answered before until it succeeds, with backoff of a minute in all.

    Args:
        request: sends the request; idempotent.
        lasts: whether an error is permanent, so that no retry helps.

    Returns:
        The reply.

    Raises:
        RlctlError: raised by `request`; BackendUnreachable after the last retry, or if the error is permanent.
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
    """Send a request; returns the decoded JSON of its reply, None if that is empty.

    Args:
        who: process that answers, for messages: "the manager of run cartpole".
        target: path and query of the resource.
        timeout_s: timeout of `send` in seconds, for the message.

    Raises:
        BackendUnreachable: nothing listens, timeout, lost connection, 503, or a reply that is too long or not JSON.
        Conflict: 409: it is too late for the request.
        RlctlError: another status of 400 or more; the message has the manager's reason.
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
        # 503: the manager is busy, or has just started
        raise {409: Conflict, 503: BackendUnreachable}.get(status, RlctlError)(told)
    return value
