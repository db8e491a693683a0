"""Limits of connections: sources, connections, answers. Without sockets; `test_slow` has those."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Any

import pytest

from rlctl_ci.config.settings import Config
from rlctl_ci.web.limits.connection_limits import ConnectionLimit, OpenConnection
from rlctl_ci.web.limits.guard import Guard
from rlctl_ci.web.limits.sources import Sources, source
from tests.ci.world import project

FORWARDED = b"x-forwarded-for"


@pytest.mark.parametrize(
    ("address", "who"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::1"),
        ("testclient", "testclient"),
    ],
)
def test_a_source_is_an_address_or_a_network_that_one_customer_has(address: str, who: str) -> None:
    assert source(address) == who


@pytest.mark.parametrize(
    ("proxies", "peer", "forwarded", "who"),
    [
        ([], "10.0.0.5", [b"192.0.2.7"], "10.0.0.5"),
        (["10.0.0.0/8"], "192.0.2.1", [b"192.0.2.7"], "192.0.2.1"),
        (["10.0.0.0/8"], "10.0.0.5", [b"192.0.2.7"], "192.0.2.7"),
        (["10.0.0.0/8"], "::ffff:10.0.0.5", [b"192.0.2.7"], "192.0.2.7"),
        (["10.0.0.0/8"], "10.0.0.5", [b"198.51.100.9, 192.0.2.7"], "192.0.2.7"),
        (["10.0.0.0/8"], "10.0.0.5", [b"198.51.100.9", b"192.0.2.7, 10.1.1.1"], "192.0.2.7"),
        (["10.0.0.0/8"], "10.0.0.5", [b"made up, 10.1.1.1"], "10.1.1.1"),
        (["10.0.0.0/8"], "10.0.0.5", [b""], "10.0.0.5"),
        (["10.0.0.0/8"], "10.0.0.5", [b"2001:db8:1:2::9"], "2001:db8:1:2::/64"),
    ],
)
def test_a_proxy_is_believed_where_it_is_trusted_and_no_further(
    proxies: list[str], peer: str, forwarded: list[bytes], who: str
) -> None:
    assert Sources(proxies).of(peer, [(FORWARDED, value) for value in forwarded]) == who


class Connections:
    """Connections that note their end."""

    def __init__(self, places: ConnectionLimit) -> None:
        self.places, self.ended = places, list[str]()

    def open(self, name: str, source: str = "a") -> OpenConnection:
        return self.places.enter(source, lambda: self.ended.append(name))


def test_the_newest_connection_has_a_place_and_the_oldest_that_waits_ends_for_it() -> None:
    seen = Connections(ConnectionLimit(3))
    first, second, _ = (seen.open(name) for name in ("first", "second", "third"))
    seen.places.work(first)
    seen.open("fourth")
    assert seen.ended == ["second"]
    seen.places.wait(first)  # its answer is given: it is the newest that waits
    seen.places.leave(second)
    seen.open("fifth")
    assert seen.ended == ["second", "third"]


def test_who_holds_most_connections_idle_loses_the_first() -> None:
    seen = Connections(ConnectionLimit(4))
    for name, of in (("a1", "a"), ("b1", "b"), ("b2", "b"), ("b3", "b"), ("c1", "c"), ("c2", "c")):
        seen.open(name, of)
    assert seen.ended == ["b1", "b2"]


def test_a_connection_ends_at_once_where_all_others_are_at_work() -> None:
    seen = Connections(ConnectionLimit(1))
    first = seen.open("first")
    seen.places.work(first)
    seen.open("second")
    assert seen.ended == ["second"]
    seen.places.leave(first)
    seen.open("third")
    assert seen.ended == ["second"]


def test_answers_to_one_source_and_to_all_have_a_limit() -> None:
    places = ConnectionLimit(pages=3, pages_of_one=2)
    with ExitStack() as stack:
        assert [stack.enter_context(places.page("a")) for _ in range(3)] == [0, 0, 429]
        assert [stack.enter_context(places.page(of)) for of in ("b", "c")] == [0, 503]
    with places.page("a") as refused:
        assert refused == 0, "what is over holds no place"


class Site:
    """A guard before answers that go on until they are told to end.

    Args:
        fields: of ci.yaml.
    """

    def __init__(self, **fields: Any) -> None:
        config = Config.model_validate({"hosts": ["ci"], "projects": {"pole": project().model_dump()}, **fields})
        self._over, self._guard = asyncio.Event(), Guard(self._app, config, ConnectionLimit(pages=2, pages_of_one=1))
        self.seen: list[str] = []

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        self.seen.append(scope["client"][0])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await self._over.wait()

    async def ask(self, path: str, peer: str, forwarded: str = "") -> int:
        """The status of an answer that may go on."""
        status = asyncio.get_running_loop().create_future()
        headers = [(b"host", b"ci"), *([(FORWARDED, forwarded.encode())] if forwarded else [])]
        scope = {"type": "http", "method": "GET", "path": path, "headers": headers, "client": (peer, 1)}

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b""}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                status.set_result(message["status"])

        self._tasks = [*getattr(self, "_tasks", []), asyncio.create_task(self._guard(scope, receive, send))]
        return int(await status)

    async def end(self) -> None:
        self._over.set()
        await asyncio.gather(*self._tasks)


def test_pages_that_never_end_take_no_place_from_hooks_and_probes() -> None:
    async def asked() -> list[int]:
        site = Site()
        found = [await site.ask("/", peer) for peer in ("a", "a", "b", "c")]
        found += [await site.ask(path, "a") for path in ("/hooks/github/pole", "/healthz", "/readyz")]
        await site.end()
        found.append(await site.ask("/", "a"))
        return found

    assert asyncio.run(asked()) == [200, 429, 200, 503, 200, 200, 200, 200]


def test_who_asks_through_a_proxy_that_is_trusted_is_counted_by_their_own_address() -> None:
    async def asked(*proxies: str) -> tuple[list[int], list[str]]:
        site = Site(proxies=list(proxies))
        found = [await site.ask("/", "10.0.0.5", forwarded) for forwarded in ("192.0.2.1", "192.0.2.2")]
        await site.end()
        return found, site.seen

    assert asyncio.run(asked("10.0.0.0/8")) == ([200, 200], ["192.0.2.1", "192.0.2.2"])
    assert asyncio.run(asked()) == ([200, 429], ["10.0.0.5"])
