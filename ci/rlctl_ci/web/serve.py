"""The process: uvicorn with limits of its own, and refusals to start where it would be open."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from rlctl.errors import Refused
from rlctl_ci.config import Config
from rlctl_ci.service import Service
from rlctl_ci.web.app import make

HEADERS_WITHIN_S: Final = 10.0
KEEP_ALIVE_S: Final = 15
CONNECTIONS: Final = 512
TOKEN_FILE: Final = "token"


class Patient(H11Protocol):
    """Ends a connection that does not say what it wants: slow headers of any of its requests would hold it for ever."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._slow = self.loop.call_later(HEADERS_WITHIN_S, self._too_slow)

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self._slow.cancel()

    def on_response_complete(self) -> None:
        self._slow.cancel()
        # uvicorn ends one that stays silent; one byte is enough for it to wait without end
        self._slow = self.loop.call_later(KEEP_ALIVE_S + HEADERS_WITHIN_S, self._too_slow)
        super().on_response_complete()  # goes on with what has come meanwhile, which is in time

    def connection_lost(self, exc: Exception | None) -> None:
        self._slow.cancel()
        super().connection_lost(exc)

    def _too_slow(self) -> None:
        if not self.transport.is_closing():
            self.transport.abort()


def check(config: Config) -> None:
    """Whether it may listen where it is told to. Tokens may come later: until then nobody reads or changes anything.

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
    """The token by which verbs on this machine reach it; made at the first start, readable by its owner alone."""
    path = service.folder / TOKEN_FILE
    if not path.exists() or service.people.whose(path.read_text().strip()) is None:
        part = path.with_name(f".{path.name}.part")
        part.unlink(missing_ok=True)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(service.people.issue("local", ["admin"]) + "\n")
        part.rename(path)
    return path


def server(service: Service) -> uvicorn.Server:
    """It listens when it is run."""
    config = service.config
    settings: dict[str, Any] = {}
    if config.tls_cert is not None:
        settings = {"ssl_certfile": str(config.tls_cert), "ssl_keyfile": str(config.tls_key)}
    return uvicorn.Server(
        uvicorn.Config(
            make(service), host=config.host, port=config.port, http=Patient, ws="none", lifespan="off",
            log_level="warning", access_log=False, server_header=False, limit_concurrency=CONNECTIONS,
            timeout_keep_alive=KEEP_ALIVE_S, timeout_graceful_shutdown=5, h11_max_incomplete_event_size=32 << 10,
            proxy_headers=False, **settings,
        )
    )  # fmt: skip


def serve(service: Service) -> None:
    """Until SIGTERM or SIGINT.

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
