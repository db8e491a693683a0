"""Who asks: a token in a header, or a session that a token has opened in a browser."""

from __future__ import annotations

import hmac
import secrets
import time
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request

from rlctl_ci.store.people import People, Person, Scope

COOKIE: Final = "rlctl_ci"
VALID_S: Final = 8 * 3600.0
_MOST: Final = 1000


class Refused(Exception):
    """401: nobody said who; 403: who it is may not."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


@dataclass(frozen=True, slots=True)
class Session:
    """A browser of somebody."""

    token: str  # looked up for every request, so that a token that was taken back ends its sessions
    csrf: str
    until: float


class Sessions:
    """In memory: after a restart one signs in again.

    Args:
        people: whose tokens they are.
        open_reading: whether reading needs nobody.
    """

    def __init__(self, people: People, *, open_reading: bool) -> None:
        self._people, self.open_reading = people, open_reading
        self._known: dict[str, Session] = {}

    def open(self, token: str) -> tuple[str, Session] | None:
        """A cookie's value and its session; None: no such token."""
        if self._people.whose(token) is None:
            return None
        now = time.time()
        self._known = {key: one for key, one in self._known.items() if one.until > now}
        while len(self._known) >= _MOST:
            self._known.pop(next(iter(self._known)))
        key, session = secrets.token_urlsafe(32), Session(token, secrets.token_urlsafe(32), now + VALID_S)
        self._known[key] = session
        return key, session

    def close(self, request: Request) -> None:
        self._known.pop(request.cookies.get(COOKIE, ""), None)

    def session(self, request: Request) -> Session | None:
        found = self._known.get(request.cookies.get(COOKIE, ""))
        return found if found is not None and found.until > time.time() else None

    def who(self, request: Request) -> Person | None:
        """By header, else by cookie."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme:
            return self._people.whose(token) if scheme.lower() == "bearer" else None
        session = self.session(request)
        return None if session is None else self._people.whose(session.token)

    def require(self, request: Request, scope: Scope, csrf: str | None = None) -> Person:
        """Who it is, who may.

        Args:
            csrf: from a form; a change by a cookie alone is refused.

        Raises:
            Refused: nobody, or not them.
        """
        person = self.who(request)
        if person is None:
            if scope == "read" and self.open_reading and "authorization" not in request.headers:
                return Person("anybody", frozenset({"read"}))
            raise Refused(401, "a token is needed")
        if not person.may(scope):
            raise Refused(403, f"this token may not {scope}")
        if request.method not in ("GET", "HEAD") and "authorization" not in request.headers:
            session = self.session(request)
            if session is None or csrf is None or not hmac.compare_digest(session.csrf.encode(), csrf.encode()):
                raise Refused(403, "the form is not of this session")
        return person
