"""The status page, and a page for each build: complete without JavaScript, each with a twin in JSON."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl

from markupsafe import escape
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse

from rlctl_ci.core import logs
from rlctl_ci.core.errors import Busy, CiError
from rlctl_ci.core.service import Service
from rlctl_ci.core.states import ACTIVE, WAITING
from rlctl_ci.store.people import Scope
from rlctl_ci.store.records import Build
from rlctl_ci.web.api import act_on_build, act_on_project, build_document, decides, projects_document
from rlctl_ci.web.html import MARKS, render
from rlctl_ci.web.limits.streams import Streams
from rlctl_ci.web.masked_reading import MaskedReading
from rlctl_ci.web.request_parts import address, number
from rlctl_ci.web.sessions import COOKIE, VALID_S, RequestRefused, Sessions

SHOWN: Final = 50
LOG_SHOWN: Final = 96 << 10
BEAT_S: Final = 15.0
SVG: Final = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><circle cx="8" cy="8" r="6" fill="{}"/></svg>'
ICONS: Final = {"good": "#10693c", "bad": "#b3261e", "busy": "#0b57a4", "none": "#60646c", "warn": "#8a5300"}


class Viewer(NamedTuple):
    """A person with a session, as a page knows them."""

    name: str
    csrf: str
    may: Callable[[Scope], bool]


class Pages:
    """Pages for people: builds, deployments, logs, and buttons for what a person may do.

    Args:
        service: the service.
        sessions: authenticate requests.
        streams: open streams of changes.
        secure: cookies only over HTTPS.
    """

    def __init__(self, service: Service, sessions: Sessions, streams: Streams, *, secure: bool) -> None:
        self.service, self.sessions, self._streams, self._secure = service, sessions, streams, secure
        self.reading = MaskedReading(service)

    async def overview(self, request: Request) -> Response:
        """Overview of all projects, or of one; the newest builds, or those below `before`."""
        if (gate := self._gate(request)) is not None:
            return gate
        name, before = request.path_params.get("project"), number(request, "before", 0) or None
        if name is not None and name not in self.service.config.projects:
            raise RequestRefused(404, "there is no such project")
        made = await run_in_threadpool(self._overview, request, name, before)
        if request.url.path.endswith(".json"):
            return JSONResponse(made[1])
        return HTMLResponse(made[0])

    def _overview(self, request: Request, name: str | None, before: int | None) -> tuple[str, dict[str, Any]]:
        now, mark = self.service.now(), self.reading.mark()
        builds = self.reading.builds(project=name, before=before, limit=SHOWN)
        projects = [one for one in projects_document(self.service.config, self.reading) if name in (None, one["name"])]
        deploys = self.reading.deploys(project=name, before=before, limit=10)
        ignored = self.reading.ignored(project=name)
        blind = {one: told for one, told in self.reading.blind().items() if name in (None, one)}
        data = {
            "time": now, "projects": projects, "builds": [build_document(self.reading, one) for one in builds],
            "deploys": [{"build": one.build, "run": one.run, "state": one.state, "note": one.note} for one in deploys],
            "ignored": [dict(zip(("at", "project", "event", "why"), one, strict=True)) for one in ignored],
            "blind": [{"project": one, "since": at or None, "why": why} for one, (at, why) in blind.items()],
            "next_before": builds[-1].id if len(builds) == SHOWN else None,
        }  # fmt: skip
        busy = [one for one in builds if one.state in (*ACTIVE, *WAITING)]
        bad = next((one for one in builds if one.terminal and one.state not in ("superseded", "ignored")), None)
        icon = "busy" if busy else "bad" if bad is not None and bad.state in ("failed", "rolled_back") else "good"
        word = f"{len(busy)} under way" if busy else "idle"
        page = render(
            "overview.html.j2", title=" · ".join([word, *filter(None, [name]), "rlctl ci"]), icon=icon, now=now,
            live=f"/live?since={mark}", viewer=self._viewer(request), path=request.url.path, older=before is not None,
            next_before=data["next_before"], project=name, projects=projects, builds=builds, deploys=deploys,
            ignored=ignored, blind=blind,
        )  # fmt: skip
        return page, data

    async def build(self, request: Request) -> Response:
        if (gate := self._gate(request)) is not None:
            return gate
        found = await run_in_threadpool(self._found, request)
        if request.url.path.endswith(".json"):
            return JSONResponse(await run_in_threadpool(lambda: build_document(self.reading, found, full=True)))
        return HTMLResponse(await run_in_threadpool(self._build, request, found))

    def _build(self, request: Request, build: Build) -> str:
        now, mark, path = self.service.now(), self.reading.mark(), self.service.log(build.id)
        size = logs.size(path)
        begin = max(0, size - LOG_SHOWN)
        content, after = logs.read(path, begin, LOG_SHOWN)
        events = self.reading.events(build.id)
        ends = [*(at for at, _, _ in events[1:]), None]
        steps = [
            (at, name, note, None if end is None else end - at)
            for (at, name, note), end in zip(events, ends, strict=True)
        ]
        kind = MARKS[build.state][1] if build.terminal else "busy"
        return render(
            "build.html.j2", title=f"{build.state.replace('_', ' ')} · build {build.id}", now=now, build=build,
            icon="none" if kind == "warn" else kind, live=None if build.terminal else f"/live?since={mark}",
            viewer=self._viewer(request), known=build.project in self.service.config.projects, steps=steps,
            artifacts=self.reading.artifacts(build.id), deploy=self.reading.deploy(build.id),
            decides=decides(self.reading, build), log=escape(content.decode("utf-8", "replace")), log_end=after,
            log_cut=(LOG_SHOWN >> 10, f"{size / (1 << 20):.1f}") if begin else None,
        )  # fmt: skip

    def _found(self, request: Request) -> Build:
        try:
            return self.reading.build(request.path_params["number"])
        except Busy:  # the database, not the build
            raise
        except CiError as error:
            raise RequestRefused(404, error.message) from error

    async def live(self, request: Request) -> Response:
        """Server-sent events: that something has changed since a page was made, and that the service is alive."""
        self.sessions.require(request, "read")
        since = request.headers.get("last-event-id") or request.query_params.get("since", "")
        return StreamingResponse(self._changes(request, since), media_type="text/event-stream")

    async def _changes(self, request: Request, seen: str) -> AsyncIterator[str]:
        said = -math.inf
        with self._streams.one(address(request)) as goes_on:
            while request.method == "GET" and goes_on() and not await request.is_disconnected():
                now = await run_in_threadpool(self.reading.mark)
                if now != seen or time.monotonic() - said >= BEAT_S:
                    yield f"id: {now}\nevent: {'beat' if now == seen else 'changed'}\ndata: {{}}\n\n"
                    seen, said = now, time.monotonic()
                await asyncio.sleep(1.0)

    async def feed(self, request: Request) -> Response:
        self.sessions.require(request, "read")
        builds = await run_in_threadpool(lambda: self.reading.builds(limit=SHOWN))
        home = f"{'https' if self._secure else 'http'}://{request.headers['host']}"
        updated = max((one.updated for one in builds), default=self.service.started)
        feed = render("feed.atom.j2", builds=builds, home=home, updated=updated)
        return Response(feed, media_type="application/atom+xml")

    async def badge(self, request: Request) -> Response:
        self.sessions.require(request, "read")
        name = request.path_params["project"]
        if name not in self.service.config.projects:
            raise RequestRefused(404, "there is no such project")
        found = await run_in_threadpool(lambda: self.reading.builds(project=name, limit=20))
        last = next((one for one in found if one.state in ("succeeded", "failed", "rolled_back")), None)
        word = last.state.replace("_", " ") if last is not None else "none"
        colour = ICONS["none" if last is None else "good" if last.state == "succeeded" else "bad"]
        public = {"cross-origin-resource-policy": "cross-origin"} if self.service.config.public_status else None
        badge = render("badge.svg.j2", word=word, colour=colour)
        return Response(badge, headers=public, media_type="image/svg+xml")

    async def sign_in(self, request: Request) -> Response:
        if request.method != "POST":
            return HTMLResponse(_sign_in())
        cookie = await run_in_threadpool(self.sessions.open, (await fields(request)).get("token", ""))
        if cookie is None:
            return HTMLResponse(_sign_in("There is no such token, or it has expired."), 401)
        response = RedirectResponse("/", 303)
        response.set_cookie(
            COOKIE, cookie, max_age=int(VALID_S), httponly=True, samesite="strict", secure=self._secure, path="/"
        )
        return response

    async def act(self, request: Request, verb: str = "") -> Response:
        """A button: cancel, retry, pause, resume, rollback, sign-out."""
        form = await fields(request)
        scope: Scope | None = None  # None: sign out
        if "number" in request.path_params or "project" in request.path_params:
            scope = "trigger" if "number" in request.path_params else "deploy"
        person = self.sessions.require(request, scope, form.get("csrf", ""))
        if "number" in request.path_params:
            build = await run_in_threadpool(self._found, request)
            done = await run_in_threadpool(act_on_build, self.service, person.name, build, verb)
            return RedirectResponse(f"/builds/{done['build_id']}", 303)
        if "project" in request.path_params:
            name = request.path_params["project"]
            await run_in_threadpool(act_on_project, self.service, person.name, name, verb)
        else:
            self.sessions.close(request)
        return RedirectResponse("/", 303)

    def _gate(self, request: Request) -> Response | None:
        """Redirect a browser without a session to the sign-in page; None: the request may go on."""
        try:
            self.sessions.require(request, "read")
        except RequestRefused as refusal:
            if refusal.status == 401 and "text/html" in request.headers.get("accept", ""):
                return RedirectResponse("/sign-in", 303)
            raise
        return None

    def _viewer(self, request: Request) -> Viewer | None:
        person, session = self.sessions.who(request), self.sessions.session(request)
        return None if person is None or session is None else Viewer(person.name, session.csrf, person.may)


def _sign_in(why: str = "") -> str:
    return render("sign_in.html.j2", title="sign in · rlctl ci", live=None, icon="none", why=why)


async def fields(request: Request) -> dict[str, str]:
    """Fields of a form as browsers send it; empty when it is anything else."""
    try:
        return dict(parse_qsl((await request.body()).decode("ascii"), max_num_fields=5))
    except ValueError:
        return {}
