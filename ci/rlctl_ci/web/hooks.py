"""`POST /hooks/{forge}/{project}`: verify, store, answer; nothing else happens here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from rlctl.errors import RlctlError
from rlctl_ci.config.settings import secrets
from rlctl_ci.core.errors import Busy
from rlctl_ci.core.service import Service
from rlctl_ci.forges.base import Event, Malformed
from rlctl_ci.forges.find import FORGES
from rlctl_ci.store.records import Accepted
from rlctl_ci.web.limits.rate import RateLimit
from rlctl_ci.web.metrics import ServiceMetrics

MOST_TOGETHER = 100
_DECOY = (b"there is no such project, and this takes as long",)


class Hooks:
    """Endpoint for the hooks of forges.

    Args:
        service: stores verified deliveries.
        rate: rate limit of each project.
        metrics: counts the replies.
        clock: seconds since the epoch.
    """

    def __init__(
        self, service: Service, rate: RateLimit, metrics: ServiceMetrics, clock: Callable[[], float] = time.time
    ) -> None:
        self._service, self._rate, self._metrics, self._clock = service, rate, metrics, clock
        self._waiting: list[tuple[str, Event, asyncio.Future[Accepted | str]]] = []
        self._writer: asyncio.Task[None] | None = None

    async def __call__(self, request: Request) -> Response:
        begun = time.perf_counter()
        response = await self._answer(request)
        self._metrics.hook(response.status_code, time.perf_counter() - begun)
        return response

    async def _store(self, name: str, event: Event) -> Accepted | str:
        """Store deliveries in batches: those that come while the disk is written are stored together, next."""
        future: asyncio.Future[Accepted | str] = asyncio.get_running_loop().create_future()
        self._waiting.append((name, event, future))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write())
        return await future

    async def _write(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:MOST_TOGETHER], self._waiting[MOST_TOGETHER:]
            try:
                found = await run_in_threadpool(self._service.take_all, [(name, event) for name, event, _ in batch])
            except Exception as error:
                for _, _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                continue
            for (_, _, future), taken in zip(batch, found, strict=True):
                if not future.done():  # the sender may have gone
                    future.set_result(taken)

    async def _answer(self, request: Request) -> Response:
        name, forge_name = request.path_params["project"], request.path_params["forge"]
        project = self._service.config.projects.get(name)
        right = project is not None and project.forge == forge_name
        forge = FORGES.get(forge_name, FORGES["github"])
        body = await request.body()
        headers = request.scope["headers"]
        try:
            known = secrets(name, project.secret_file) if project is not None and right else _DECOY
        except RlctlError:
            return PlainTextResponse("its secret cannot be read\n", 503)
        if not forge.verify(headers, body, known, self._clock()) or not right:
            return PlainTextResponse("no\n", 401)  # one reply, whatever was wrong
        if not self._rate.allows(name):
            return PlainTextResponse("slower\n", 429, {"retry-after": "10"})
        try:
            event = forge.read(headers, body)
        except Malformed as error:
            return PlainTextResponse(f"{error}\n", 400)
        try:
            taken = await self._store(name, event)
        except Busy:
            return PlainTextResponse("not stored; send it again\n", 503, {"retry-after": "10"})
        if isinstance(taken, str):
            return Response(None, 204)
        return JSONResponse({"build_id": taken.build}, 202 if taken.new else 200)
