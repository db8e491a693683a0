"""Authentication: a token in a header, or a session that a token has opened in a browser."""

from __future__ import annotations

import hmac
import secrets
import time
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request

from rlctl_ci.store.people import People, Person, Scope
from rlctl_ci.web.limits.rate import RateLimit
from rlctl_ci.web.request_parts import address

COOKIE: Final = "rlctl_ci"
VALID_S: Final = 8 * 3600.0
_MOST: Final = 1000


class RequestRefused(Exception):
    """Refused request. 401: no valid token or session; 403: not allowed; 404: not found; 429: too many requests."""

    def __init__(self, status: int, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.status, self.message, self.hint = status, message, hint


@dataclass(frozen=True, slots=True)
class Session:
    """Session of a browser."""

    token: str  # looked up for every request, so that a revoked token ends its sessions
    csrf: str
    until: float


class Sessions:
    """Authentication of requests. Sessions are in memory: a restart ends them.

    Args:
        people: owners of the tokens.
        rate: rate limit of each of them; requests without a token are counted for their address.
        open_reading: whether reading needs no token.
    """

    def __init__(self, people: People, rate: RateLimit, *, open_reading: bool) -> None:
        self._people, self._rate, self._open_reading = people, rate, open_reading
        self._known: dict[str, Session] = {}

    def open(self, token: str) -> str | None:
        """Open a session; returns the value of its cookie, or None: the token is not valid."""
        if self._people.whose(token) is None:
            return None
        now = time.time()
        self._known = {key: one for key, one in self._known.items() if one.until > now}
        while len(self._known) >= _MOST:
            self._known.pop(next(iter(self._known)))
        key = secrets.token_urlsafe(32)
        self._known[key] = Session(token, secrets.token_urlsafe(32), now + VALID_S)
        return key

    def close(self, request: Request) -> None:
        self._known.pop(request.cookies.get(COOKIE, ""), None)

    def session(self, request: Request) -> Session | None:
        found = self._known.get(request.cookies.get(COOKIE, ""))
        return found if found is not None and found.until > time.time() else None

    def who(self, request: Request) -> Person | None:
        """Person of a request, by its `Authorization` header, else by its cookie; None: there is no valid one."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme:
            return self._people.whose(token) if scheme.lower() == "bearer" else None
        session = self.session(request)
        return None if session is None else self._people.whose(session.token)

    def require(self, request: Request, scope: Scope | None, csrf: str | None = None) -> Person:
        """Authorised person of a request.

        Args:
            scope: None: any person.
            csrf: token of the form; a change by a cookie alone is refused.

        Raises:
            RequestRefused: the person is not known, may not do this, or exceeds the rate.
        """
        person = self.who(request)
        if person is None and scope == "read" and self._open_reading:
            person = Person("without a token", frozenset({"read"}))
            key = address(request)
        elif person is None:
            if "authorization" in request.headers:
                raise RequestRefused(401, "this token is not known, or no longer valid")
            ended = COOKIE in request.cookies
            raise RequestRefused(
                401, "this session has ended" if ended else "a token is needed", "sign in" if ended else ""
            )
        else:
            key = f"token {person.name}"
        if not self._rate.allows(key):
            raise RequestRefused(429, "slower")
        if scope is not None and not person.may(scope):
            raise RequestRefused(
                403, f"this token may not {scope}", f"one that may: rlctl ci token NAME --scope {scope}"
            )
        if request.method not in ("GET", "HEAD") and "authorization" not in request.headers:
            session = self.session(request)
            if session is None or csrf is None or not hmac.compare_digest(session.csrf.encode(), csrf.encode()):
                raise RequestRefused(403, "the form is not of this session")
        return person
