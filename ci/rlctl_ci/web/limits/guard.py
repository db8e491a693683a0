"""Guard before every request: host, origin, size, time, rate. An ASGI middleware."""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, Final

from rlctl_ci.config.settings import LOOPBACK, Config
from rlctl_ci.web.limits.connection_limits import ConnectionLimit
from rlctl_ci.web.limits.sources import Sources

AsgiScope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[AsgiScope, Receive, Send], Awaitable[None]]

BODY_WITHIN_S: Final = 10.0
BODIES_BYTES: Final = 256 << 20
"""Bytes of the bodies of all requests in flight, at most: their senders are not known yet. Larger ones than
SMALL_BODY_BYTES take a quarter for each source, and leave one for the small ones of all connections."""
SMALL_BODY_BYTES: Final = 64 << 10
"""Bytes of a body that is no hook's, at most; most hooks are smaller."""
_KEPT: Final = ("/hooks/", "/healthz", "/readyz")
"""Paths that the limit of answers does not count."""
POLICY: Final = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self';"
    " base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),  # with no-referrer, browsers send forms with `Origin: null`
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


class Guard:
    """Middleware that lets through requests of an allowed host, origin, size, time and rate.

    Args:
        app: the application behind it.
        config: host names, sizes, proxies.
        places: limits of answers.
    """

    def __init__(self, app: App, config: Config, places: ConnectionLimit) -> None:
        self._app, self._places = app, places
        self._bodies_left = BODIES_BYTES
        self._bodies_of = Counter[str]()  # source -> bytes of its larger bodies
        self._sources = Sources(config.proxies)
        self._most = int(config.body_mib * (1 << 20))
        self._hosts = hosts(config)
        self._public = config.public_status

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def headed(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                names = {name for name, _ in message.get("headers", ())}
                message["headers"] = [
                    *message.get("headers", ()), *(header for header in HEADERS if header[0] not in names)
                ]  # fmt: skip
            await send(message)

        badge = self._public and scope["method"] == "GET" and scope["path"].startswith("/badge/")
        refusal = self._refusal(scope["headers"], elsewhere=badge)
        if refusal is not None:
            await _answer(headed, *refusal)
            return
        most = self._most if scope["path"].startswith("/hooks/") else min(self._most, SMALL_BODY_BYTES)
        peer = scope.get("client") or ("-", 0)
        source = self._sources.of(peer[0], scope["headers"])
        with self._room(source) as take:
            body = await self._body(scope["headers"], receive, most, take)
            if isinstance(body, tuple):
                await _answer(headed, *body)
            else:
                await self._pass({**scope, "client": (source, peer[1])}, body, receive, headed)

    @contextmanager
    def _room(self, source: str) -> Iterator[Callable[[int], bool]]:
        """Function that reserves bytes for a body and returns whether they were free; released at the end."""
        taken = large = 0
        part = BODIES_BYTES // 4

        def take(size: int) -> bool:
            nonlocal taken, large
            more = size + taken - large if taken + size > SMALL_BODY_BYTES else 0
            if more and (self._bodies_of[source] + more > part or size > self._bodies_left - part):
                return False
            if size > self._bodies_left:
                return False
            taken, large, self._bodies_left = taken + size, large + more, self._bodies_left - size
            self._bodies_of[source] += more
            return True

        try:
            yield take
        finally:
            self._bodies_left += taken
            self._bodies_of[source] -= large
            self._bodies_of += Counter()  # forgets sources at 0

    async def _pass(self, scope: AsgiScope, body: bytes, receive: Receive, send: Send) -> None:
        """Pass on a request of a source whose body has been read."""
        given = False

        async def again() -> MutableMapping[str, Any]:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        if scope["path"].startswith(_KEPT):
            await self._app(scope, again, send)
            return
        with self._places.page(scope["client"][0]) as refused:
            if refused:
                await _answer(send, refused, "too many answers are under way; ask again in ten seconds")
            else:
                await self._app(scope, again, send)

    def _refusal(self, headers: Collection[tuple[bytes, bytes]], *, elsewhere: bool) -> tuple[int, str] | None:
        """Status and reason for which a request is refused; None: it is not.

        Args:
            elsewhere: it may be a picture in a page of another site.
        """
        named = [value for name, value in headers if name == b"host"]
        if len(named) != 1 or named[0].decode("latin-1").lower() not in self._hosts:
            return 421, "not a host of ours; see `hosts:`"
        if {b"content-length", b"transfer-encoding"} <= {name for name, _ in headers}:
            return 400, "its length is given twice"  # a proxy may have read another one: RFC 9112, 6.1
        for name, value in headers:
            if name == b"origin":
                scheme, _, host = value.decode("latin-1").lower().partition("://")
                if scheme not in ("http", "https") or host not in self._hosts:
                    return 403, "not from another page"
        if (b"sec-fetch-site", b"cross-site") in headers and (b"sec-fetch-mode", b"navigate") not in headers:
            return None if elsewhere else (403, "not from another page")
        return None

    async def _body(
        self, headers: Collection[tuple[bytes, bytes]], receive: Receive, most: int, take: Callable[[int], bool]
    ) -> bytes | tuple[int, str]:
        """The body, or status and reason for which it is refused."""
        lengths = [value for name, value in headers if name == b"content-length"]
        if any(not value.isdigit() or int(value[:20]) > most for value in lengths):
            return 413, "the body is too large"
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(BODY_WITHIN_S):
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        return 400, "the sender has gone"
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > most:
                        return 413, "the body is too large"
                    if not take(len(parts[-1])):
                        return 503, "too many bodies are under way; send it again in ten seconds"
                    if not message.get("more_body"):
                        return b"".join(parts)
        except TimeoutError:
            return 408, "the body did not come in time"


def hosts(config: Config) -> frozenset[str]:
    """Accepted values of `Host:`."""
    found = {host.lower() for host in config.hosts}
    if config.loopback:
        names = ("[::1]" if name == "::1" else name for name in LOOPBACK)
        found |= {each for name in names for each in (f"{name}:{config.port}", *([name] if config.port == 80 else []))}
    else:
        try:
            if not ipaddress.ip_address(config.host).is_unspecified:
                found.add(config.listen.lower())
        except ValueError:
            found.add(config.listen.lower())
    return frozenset(found)


async def _answer(send: Send, status: int, text: str) -> None:
    body = f"{text}\n".encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    if status in (429, 503):
        headers.append((b"retry-after", b"10"))
    if status in (400, 408, 413, 429, 503):
        headers.append((b"connection", b"close"))  # the rest of what it sends is not read
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
