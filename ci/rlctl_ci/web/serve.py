"""Server process: uvicorn with limits of its own, and a refusal to start where it would be open to anyone."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from rlctl.errors import Refused
from rlctl_ci.client import ADDRESS_FILE
from rlctl_ci.config.settings import Config
from rlctl_ci.core.service import Service
from rlctl_ci.web.app import make
from rlctl_ci.web.limits.connection_limits import CONNECTIONS, ConnectionLimit
from rlctl_ci.web.limits.sources import source
from rlctl_ci.web.limits.streams import Streams

HEADERS_WITHIN_S: Final = 10.0
"""Seconds for the headers of the first request, the TLS handshake included."""
KEEP_ALIVE_S: Final = 15
WRITTEN_WITHIN_S: Final = 30.0
"""Seconds to read what waits to be sent, some 64 KiB; a client that reads slower, or not at all, is cut off."""
ENDS_WITHIN_S: Final = 2.0
"""Seconds for answers in flight when the service shuts down."""
TASKS: Final = 2 * CONNECTIONS
"""Answers in flight, at most, with those for clients that have gone meanwhile."""
RENEW_TICKS: Final = 100
"""Ticks of uvicorn between two checks for a renewed certificate: ten seconds."""
TOKEN_FILE: Final = "token"

log = logging.getLogger(__name__)


class DeadlineProtocol(H11Protocol):
    """HTTP/1.1 connection with deadlines for handshake, headers and the client's reading; one that misses a deadline is
    cut off.

    Args:
        places: limits of connections, which count it.
        tls: context of TLS; None: plain HTTP.
        settings: of uvicorn.
    """

    def __init__(self, *, places: ConnectionLimit, tls: ssl.SSLContext | None, **settings: Any) -> None:
        super().__init__(**settings)
        self._places, self._tls = places, tls
        self._unread: asyncio.TimerHandle | None = None
        self._handshake: asyncio.Task[None] | None = None
        self._made, self._early = False, b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        peer = transport.get_extra_info("peername")
        self._wire = transport
        self._place = self._places.enter(source(peer[0]) if peer else "-", transport.abort)
        self._slow = self.loop.call_later(HEADERS_WITHIN_S, self._abort)
        if self._tls is None:
            self._made = True
            super().connection_made(transport)
        else:  # not by uvicorn, which sees a connection only after its handshake: until then it would not be counted
            transport.pause_reading()
            self._handshake = self.loop.create_task(self._secured(transport, self._tls))

    async def _secured(self, transport: asyncio.Transport, tls: ssl.SSLContext) -> None:
        try:
            safe = await self.loop.start_tls(transport, self, tls, server_side=True)
        except OSError:  # it speaks something else, or not at all
            safe = None
        if safe is None or transport.is_closing():
            self._abort()
            self._left()
        else:
            self._made = True
            super().connection_made(safe)
            early, self._early = self._early, b""
            if early:
                super().data_received(early)

    def data_received(self, data: bytes) -> None:
        if self._made:
            super().data_received(data)
        else:  # data behind the end of the handshake arrives before start_tls returns
            self._early += data

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self._slow.cancel()
        if self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body:
            self._places.work(self._place)

    def on_response_complete(self) -> None:
        self._places.wait(self._place)
        self._slow.cancel()
        # uvicorn closes an idle one, but waits for ever once a byte has come, or while its last answer is not read
        self._slow = self.loop.call_later(KEEP_ALIVE_S + HEADERS_WITHIN_S, self._abort)
        super().on_response_complete()  # handles a request that has come meanwhile, which is in time

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(WRITTEN_WITHIN_S, self._abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        self._left()
        if self._made:  # else it has ended before its handshake
            super().connection_lost(exc)

    def _left(self) -> None:
        self._slow.cancel()
        if self._unread is not None:
            self._unread.cancel()
        self._places.leave(self._place)

    def _abort(self) -> None:
        self._wire.abort()


def check(config: Config) -> None:
    """Require that it is safe to listen at its address. Tokens may come later: until then nothing is read or changed.

    Raises:
        Refused: it would listen beyond this machine without host names or TLS.
    """
    if config.loopback:
        return
    missing = []
    if not config.hosts:
        missing.append("`hosts:`, the names by which it is reached")
    if config.tls_cert is None and not config.behind_tls:
        missing.append("`tls_cert:` and `tls_key:`, or `behind_tls: true` where a proxy speaks HTTPS")
    if missing:
        raise Refused(f"it would listen on {config.listen} without {'; without '.join(missing)}")


def local_token(service: Service) -> Path:
    """File with the token for verbs on this machine; made at the first start, readable by its owner alone. Beside it
    lies the address that verbs send it to."""
    path = service.folder / TOKEN_FILE
    address, here = path.with_name(ADDRESS_FILE), service.config.here[0]
    if not address.is_file() or address.read_text() != here:
        address.write_text(here)
    if not path.exists() or service.people.whose(path.read_text().strip()) is None:
        part = path.with_name(f".{path.name}.part")
        part.unlink(missing_ok=True)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(service.people.issue("local", ["admin"]) + "\n")
        part.rename(path)
    return path


def _nothing() -> None:
    """Do nothing."""


class Certificate:
    """Certificate and key of a TLS context, read again when their files have changed; new connections then use them.

    Args:
        cert, key: files, as in ci.yaml.
    """

    def __init__(self, tls: ssl.SSLContext, cert: Path, key: Path | None) -> None:
        self._tls, self._cert, self._key = tls, cert, key
        self._read: list[int] = []
        self._begun = False

    def renew(self) -> None:
        """Read the files if they are new. Files that cannot be used are logged once, and the previous ones stay.

        Raises:
            OSError: they cannot be used, at the first call.
        """
        try:
            now = [file.stat().st_mtime_ns for file in (self._cert, self._key) if file is not None]
            if now == self._read:
                return
            self._read = now
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
                self._cert, self._key
            )  # one that fails spoils its context
            self._tls.load_cert_chain(self._cert, self._key)
        except OSError as error:  # an ssl.SSLError too, as while one of the two files is still the old one
            if not self._begun:
                raise
            log.error("the renewed certificate cannot be used, the one before stays: %s", error)
            return
        if self._begun:
            log.info("the renewed certificate is used from now on")
        self._begun = True


class Server(uvicorn.Server):
    """uvicorn server that shuts down in seconds: it ends streams and builds first, and cuts slow readers off."""

    def __init__(self, config: uvicorn.Config, streams: Streams, service: Service, renew: Callable[[], None]) -> None:
        super().__init__(config)
        self._streams, self._service, self._renew = streams, service, renew

    async def on_tick(self, counter: int) -> bool:
        if counter % RENEW_TICKS == 0:
            self._renew()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.end()
        self._streams.end()
        asyncio.get_running_loop().call_later(ENDS_WITHIN_S, self._abort)
        await super().shutdown(sockets)

    def _abort(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()


def server(service: Service) -> Server:
    """Server of a service, with its limits and TLS; it listens when it is run."""
    config = service.config
    places, streams = ConnectionLimit(), Streams(time.monotonic)
    tls, renew = None, _nothing
    if config.tls_cert is not None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        renew = Certificate(tls, config.tls_cert, config.tls_key).renew
        renew()
    protocol: Any = partial(DeadlineProtocol, places=places, tls=tls)
    settings = uvicorn.Config(
        make(service, places=places, streams=streams), host=config.host, port=config.port, http=protocol, ws="none",
        lifespan="off", log_level="warning", access_log=False, server_header=False, limit_concurrency=TASKS,
        timeout_keep_alive=KEEP_ALIVE_S, timeout_graceful_shutdown=int(2 * ENDS_WITHIN_S),
        h11_max_incomplete_event_size=32 << 10, proxy_headers=False,
    )  # fmt: skip
    return Server(settings, streams, service, renew)


def serve(service: Service) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        Refused: see `check`.
    """
    config = service.config
    check(config)
    if config.loopback:
        local_token(service)
    service.start()
    try:
        server(service).run()
    finally:
        service.close()
