"""All routes, behind the guard."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.convertors import IntegerConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from rlctl.errors import RlctlError
from rlctl_ci.core.service import Service
from rlctl_ci.web.api import Api, refused
from rlctl_ci.web.hooks import Hooks
from rlctl_ci.web.limits.connection_limits import ConnectionLimit
from rlctl_ci.web.limits.guard import Guard
from rlctl_ci.web.limits.rate import RateLimit
from rlctl_ci.web.limits.streams import Streams
from rlctl_ci.web.metrics import ServiceMetrics
from rlctl_ci.web.pages import ICONS, SVG, Pages
from rlctl_ci.web.sessions import RequestRefused, Sessions

STATIC = Path(__file__).parent / "static"
READY_LOOKS_PER_MINUTE = 120
_KINDS = {"style.css": "text/css", "live.js": "text/javascript"}
_BUILD, _PROJECT = ("cancel", "retry"), ("pause", "resume", "rollback")
"""Actions on a build, and on a project: last parts of their paths."""
_Routes = list[tuple[str, Any, list[str]]]
"""Path, handler and methods of each; the first that fits is taken."""


class BuildNumber(IntegerConvertor):
    """A number that the database can hold; a longer one is no build."""

    regex = "[0-9]{1,15}"


register_url_convertor("build", BuildNumber())


def make(
    service: Service, clock: Callable[[], float] = time.monotonic, *, places: ConnectionLimit | None = None,
    streams: Streams | None = None,
) -> Guard:  # fmt: skip
    """ASGI application with all routes, behind the guard.

    Args:
        clock: monotonic seconds.
        places: limits of connections and answers.
        streams: open streams.
    """
    config = service.config
    rate = RateLimit(config.hooks_per_minute, clock)
    sessions = Sessions(service.people, rate, open_reading=config.open_reading)
    metrics, streams = ServiceMetrics(service), streams or Streams(clock)
    api = Api(service, sessions, streams)
    pages = Pages(service, sessions, streams, secure=config.behind_tls or config.tls_cert is not None)
    hooks = Hooks(service, RateLimit(config.hooks_per_minute, clock), metrics, service.now)

    async def numbers(request: Request) -> Response:
        sessions.require(request, "read")
        return Response(await run_in_threadpool(metrics.page), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    async def ready(request: Request) -> Response:
        try:
            await run_in_threadpool(service.database.check)
        except RlctlError:
            return PlainTextResponse("nothing can be stored: the disk is full, or the database locked\n", 503)
        if not service.healthy():
            return PlainTextResponse("a thread has ended; start the service again\n", 503)
        return PlainTextResponse("ok\n")

    routes: _Routes = [
        ("/hooks/{forge}/{project}", hooks.__call__, ["POST"]),
        ("/healthz", _alive, ["GET"]),
        ("/readyz", _seldom(ready, RateLimit(READY_LOOKS_PER_MINUTE, clock)), ["GET"]),
        ("/metrics", numbers, ["GET"]),
        *_api_routes(api),
        *_page_routes(pages),
    ]
    app = Starlette(
        routes=[Route(path, handler, methods=methods) for path, handler, methods in routes],
        exception_handlers={HTTPException: refused, RequestRefused: refused, RlctlError: refused},
    )
    return Guard(app, config, places or ConnectionLimit())


def _api_routes(api: Api) -> _Routes:
    """Routes for machines."""
    return [
        ("/api/v1/openapi.json", _openapi, ["GET"]),
        ("/api/v1/projects", api.projects, ["GET"]),
        ("/api/v1/builds", api.builds, ["GET", "POST"]),
        ("/api/v1/deploys", api.deploys, ["GET"]),
        ("/api/v1/builds/{number:build}", api.build, ["GET"]),
        ("/api/v1/builds/{number:build}/log", api.log, ["GET"]),
        *((f"/api/v1/builds/{{number:build}}/{verb}", partial(api.act, verb=verb), ["POST"]) for verb in _BUILD),
        *(
            (f"/api/v1/projects/{{project}}/{verb}", partial(api.act_on_project, verb=verb), ["POST"])
            for verb in _PROJECT
        ),
    ]


def _page_routes(pages: Pages) -> _Routes:
    """Routes for browsers."""
    return [
        ("/", pages.overview, ["GET"]),
        ("/index.json", pages.overview, ["GET"]),
        ("/projects/{project}.json", pages.overview, ["GET"]),
        ("/projects/{project}", pages.overview, ["GET"]),
        ("/builds/{number:build}", pages.build, ["GET"]),
        ("/builds/{number:build}.json", pages.build, ["GET"]),
        ("/live", pages.live, ["GET"]),
        ("/feed.atom", pages.feed, ["GET"]),
        ("/badge/{project}.svg", pages.badge, ["GET"]),
        ("/static/{name}", _static, ["GET"]),
        ("/favicon.ico", _static, ["GET"]),  # browsers ask for it on a page without an icon, such as a log
        ("/sign-in", pages.sign_in, ["GET", "POST"]),
        ("/sign-out", pages.act, ["POST"]),
        *((f"/builds/{{number:build}}/{verb}", partial(pages.act, verb=verb), ["POST"]) for verb in _BUILD),
        *((f"/projects/{{project}}/{verb}", partial(pages.act, verb=verb), ["POST"]) for verb in _PROJECT),
    ]


async def _alive(request: Request) -> Response:
    return PlainTextResponse("ok\n")


async def _openapi(request: Request) -> Response:
    return Response((STATIC / "openapi.json").read_bytes(), media_type="application/json")


async def _static(request: Request) -> Response:
    name = request.path_params.get("name", "none.svg")
    if name in _KINDS:
        headers = {"cache-control": "public, max-age=300"}
        return Response((STATIC / name).read_bytes(), media_type=_KINDS[name], headers=headers)
    icon = ICONS.get(name.removesuffix(".svg"))
    if icon is None:
        raise RequestRefused(404, "there is no such file")
    return Response(SVG.format(icon), media_type="image/svg+xml", headers={"cache-control": "public, max-age=300"})


def _seldom(handler: Any, rate: RateLimit) -> Any:
    """Limit a handler to a rate; beyond it the last answer is repeated, because each new one uses the disk."""
    last: Response | None = None

    async def answered(request: Request) -> Response:
        nonlocal last
        if rate.allows("") or last is None:
            last = await handler(request)
        assert last is not None
        return last

    return answered
