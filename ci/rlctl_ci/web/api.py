"""`/api/v1`: builds, deployments and projects as JSON; logs by offset, as text or as events."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from rlctl.errors import RlctlError
from rlctl_ci import logs
from rlctl_ci.config import Config
from rlctl_ci.errors import Busy, CiError, Settled
from rlctl_ci.refs import HEADS, fault, is_sha
from rlctl_ci.service import Service
from rlctl_ci.stages import seconds
from rlctl_ci.store.reading import Reading
from rlctl_ci.store.records import Build, Push
from rlctl_ci.web.sessions import Refused, Sessions
from rlctl_ci.web.shown import Shown

FOLLOW_S: Final = 0.5
PING_S: Final = 15.0
MAX_PAGE: Final = 200
_FROM = re.compile(r"bytes=([0-9]{1,15})-")


def build_document(reading: Reading, build: Build, *, full: bool = False) -> dict[str, Any]:
    """One build for machines."""
    found: dict[str, Any] = {
        "id": build.id, "project": build.project, "ref": build.ref, "branch": build.branch, "sha": build.sha,
        "state": build.state, "terminal": build.terminal, "reason": build.reason, "phase": build.phase,
        "code": build.code, "author": build.author, "title": build.title, "source": build.source,
        "attempts": build.attempts, "created": build.created, "updated": build.updated,
    }  # fmt: skip
    if full:
        deploy = reading.deploy(build.id)
        events = reading.events(build.id)
        found["events"] = [{"at": at, "state": state, "note": note} for at, state, note in events]
        found["seconds"] = seconds(events)
        found["artifacts"] = [
            {"name": one.name, "reference": one.reference, "base": one.base, "bytes": one.bytes}
            for one in reading.artifacts(build.id)
        ]
        found["deploy"] = None if deploy is None else {
            "run": deploy.run, "state": deploy.state, "before_revision": deploy.before_revision,
            "revision": deploy.revision, "note": deploy.note, "started": deploy.started, "updated": deploy.updated,
        }  # fmt: skip
    return found


def projects_document(config: Config, reading: Reading) -> list[dict[str, Any]]:
    """All projects, with what holds them up."""
    pauses, pins = reading.pauses(), reading.pins()
    return [
        {
            "name": name, "forge": project.forge, "repository": project.repository, "branches": project.branches,
            "run": project.run, "target": project.target, "builder": project.builder, "paused": pauses.get(name),
            "pins": [
                {"branch": ref.removeprefix(HEADS), "sha": sha, "why": why}
                for (owner, ref), (sha, why) in pins.items() if owner == name
            ],
        }
        for name, project in config.projects.items()
    ]  # fmt: skip


class Api:
    """Args:
    service: what is asked about.
    sessions: who asks.
    """

    def __init__(self, service: Service, sessions: Sessions) -> None:
        self.service, self.sessions, self.reading = service, sessions, Shown(service)

    async def projects(self, request: Request) -> Response:
        self.sessions.require(request, "read")
        found = await run_in_threadpool(projects_document, self.service.config, self.reading)
        return JSONResponse({"projects": found})

    async def builds(self, request: Request) -> Response:
        if request.method == "POST":
            return await self._trigger(request)
        self.sessions.require(request, "read")
        limit, before = number(request, "limit", 50), number(request, "before", 0)
        project = request.query_params.get("project")

        def found() -> dict[str, Any]:
            builds = self.reading.builds(project=project, before=before or None, limit=max(1, min(limit, MAX_PAGE)))
            return {
                "builds": [build_document(self.reading, build) for build in builds],
                "next_before": builds[-1].id if len(builds) == max(1, min(limit, MAX_PAGE)) else None,
            }

        return JSONResponse(await run_in_threadpool(found))

    async def deploys(self, request: Request) -> Response:
        self.sessions.require(request, "read")
        before = number(request, "before", 0)
        limit = max(1, min(number(request, "limit", 50), MAX_PAGE))

        def found() -> dict[str, Any]:
            rows = self.reading.deploys(project=request.query_params.get("project"), before=before or None, limit=limit)
            return {
                "deploys": [
                    {
                        "build": one.build, "project": one.project, "ref": one.ref, "run": one.run, "state": one.state,
                        "before_revision": one.before_revision, "revision": one.revision, "note": one.note,
                        "started": one.started, "updated": one.updated,
                    }
                    for one in rows
                ],
                "next_before": rows[-1].build if len(rows) == limit else None,
            }  # fmt: skip

        return JSONResponse(await run_in_threadpool(found))

    async def build(self, request: Request) -> Response:
        self.sessions.require(request, "read")
        build = self._build(request)
        return JSONResponse(await run_in_threadpool(lambda: build_document(self.reading, build, full=True)))

    async def log(self, request: Request) -> Response:
        """From `offset`, `Range: bytes=N-` or `Last-Event-ID` on; as events it goes on until the build is over.

        A range of another form is not looked at, as HTTP allows.
        """
        self.sessions.require(request, "read")
        build = self._build(request)
        ranged = _FROM.fullmatch(request.headers.get("range", ""))
        offset = int(ranged[1]) if ranged else number(request, "offset", 0)
        if "text/event-stream" in request.headers.get("accept", ""):
            last = request.headers.get("last-event-id", "")
            offset = int(last[:15]) if last.isascii() and last.isdigit() else offset
            return StreamingResponse(self._follow(request, build.id, offset), media_type="text/event-stream")
        found, after = await run_in_threadpool(logs.read, self.service.log(build.id), offset)
        headers = {"x-next-offset": str(after), "x-build-state": build.state}
        if ranged and found:
            headers["content-range"] = f"bytes {offset}-{after - 1}/*"
        return PlainTextResponse(found, 206 if ranged and found else 200, headers)

    async def _follow(self, request: Request, build: int, offset: int) -> AsyncIterator[str]:
        quiet_s = 0.0
        while not await request.is_disconnected():
            state = await run_in_threadpool(self.reading.build, build)
            found, after = await run_in_threadpool(logs.read, self.service.log(build), offset)
            if found:
                lines = found.decode("utf-8", "replace").splitlines()
                yield f"id: {after}\nevent: log\ndata: {json.dumps(lines)}\n\n"
                offset, quiet_s = after, 0.0
                continue
            if state.terminal:
                end = json.dumps({"state": state.state, "reason": state.reason})
                yield f"id: {offset}\nevent: end\ndata: {end}\n\n"
                return
            quiet_s += FOLLOW_S
            if quiet_s >= PING_S:
                yield ": still here\n\n"
                quiet_s = 0.0
            await asyncio.sleep(FOLLOW_S)

    async def _trigger(self, request: Request) -> Response:
        person = self.sessions.require(request, "trigger", request.headers.get("x-csrf-token"))
        asked = await document(request)
        name, branch, sha = asked.get("project"), asked.get("branch"), asked.get("sha")
        if not isinstance(name, str) or name not in self.service.config.projects:
            raise CiError("no such project")
        if not isinstance(branch, str) or fault(f"{HEADS}{branch}") or not isinstance(sha, str) or not is_sha(sha):
            raise CiError("needs `branch` and `sha`, a full commit name")

        def act() -> int:
            build = self.service.trigger(name, Push(f"{HEADS}{branch}", sha, person.name, "asked for by hand"))
            self.service.people.audit(person.name, "build", f"{name} {sha}")
            return build

        return JSONResponse({"build_id": await run_in_threadpool(act)}, 202)

    async def act(self, request: Request) -> Response:
        """cancel and retry of a build."""
        person = self.sessions.require(request, "trigger", request.headers.get("x-csrf-token"))
        build = self._build(request)
        done = await run_in_threadpool(act_on_build, self.service, person.name, build, request.path_params["verb"])
        return JSONResponse(done, 202)

    async def act_on_project(self, request: Request) -> Response:
        """pause, resume and rollback of a project."""
        person = self.sessions.require(request, "deploy", request.headers.get("x-csrf-token"))
        name = request.path_params["project"]
        done = await run_in_threadpool(act_on_project, self.service, person.name, name, request.path_params["verb"])
        return JSONResponse(done, 202)

    def _build(self, request: Request) -> Build:
        try:
            return self.reading.build(request.path_params["number"])
        except CiError as error:
            raise Refused(404, "there is no such build") from error


def act_on_build(service: Service, who: str, build: Build, verb: str) -> dict[str, Any]:
    """Raises:
    Settled: it is over, or not over.
    """
    if verb == "cancel":
        state = service.queue.cancel(build.id, f"cancelled by {who}")
        service.people.audit(who, "cancel", f"build {build.id}")
        service.wake()
        return {"build_id": build.id, "state": state}
    if not build.terminal:
        raise Settled(f"build {build.id} is not over: {build.state}")
    again = service.trigger(build.project, Push(build.ref, build.sha, build.author, build.title))
    service.people.audit(who, "retry", f"build {build.id} as {again}")
    return {"build_id": again, "retry_of": build.id}


def act_on_project(service: Service, who: str, name: str, verb: str) -> dict[str, Any]:
    """Raises:
    CiError: no such project, or it cannot be done.
    """
    project = service.config.projects.get(name)
    if project is None:
        raise Refused(404, "there is no such project")
    service.people.audit(who, verb, name)
    if verb == "pause":
        service.people.pause(name, f"paused by {who}")
        return {"project": name, "paused": True}
    if verb == "resume":
        lifted = service.people.resume(name)
        service.wake()
        return {"project": name, "paused": False, "lifted": lifted}
    return service.roll_back(name, who)


async def document(request: Request) -> dict[str, Any]:
    """Raises:
    CiError: the body is no JSON object.
    """
    try:
        found = json.loads(await request.body())
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise CiError("the body is no JSON object")
    return found


def number(request: Request, name: str, usual: int) -> int:
    """Raises:
    CiError: it is none.
    """
    text = request.query_params.get(name)
    if text is None:
        return usual
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise CiError(f"{name}: not a number")
    return int(text)


async def refused(request: Request, error: Exception) -> Response:
    """An answer to what was refused, or cannot be done."""
    if isinstance(error, Refused):
        return JSONResponse(
            {"error": error.message}, error.status, {"www-authenticate": "Bearer"} if error.status == 401 else None
        )
    assert isinstance(error, RlctlError)
    status = 409 if isinstance(error, Settled) else 503 if isinstance(error, Busy) else 400
    return JSONResponse({"error": error.message, "hint": error.hint}, status)


Route = Callable[[Request], Any]
