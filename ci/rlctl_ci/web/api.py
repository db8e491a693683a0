"""`/api/v1`: builds, deployments and projects as JSON. static/openapi.json describes it for machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from rlctl.errors import BackendUnreachable, RlctlError
from rlctl_ci.config.settings import Config
from rlctl_ci.core.errors import Busy, CiError, Transient, WrongState
from rlctl_ci.core.service import Service
from rlctl_ci.core.stages import seconds
from rlctl_ci.core.states import ACTIVE
from rlctl_ci.git.refs import HEADS, fault, is_sha
from rlctl_ci.store.reading import Reading
from rlctl_ci.store.records import Build, Push
from rlctl_ci.web import tail
from rlctl_ci.web.html import render
from rlctl_ci.web.limits.streams import Streams
from rlctl_ci.web.masked_reading import MaskedReading
from rlctl_ci.web.request_parts import document, number
from rlctl_ci.web.sessions import RequestRefused, Sessions

MAX_PAGE: Final = 200
_BUILD: Final = (
    "id", "project", "ref", "branch", "sha", "state", "terminal", "reason", "phase", "code", "author", "title",
    "source", "attempts", "created", "updated",
)  # fmt: skip
_DEPLOY: Final = ("run", "state", "before_revision", "revision", "note", "started", "updated")


def build_document(reading: Reading, build: Build, *, full: bool = False) -> dict[str, Any]:
    """One build as a JSON object."""
    found: dict[str, Any] = {name: getattr(build, name) for name in _BUILD}
    if full:
        deploy = reading.deploy(build.id)
        events = reading.events(build.id)
        found["events"] = [{"at": at, "state": state, "note": note} for at, state, note in events]
        found["seconds"] = seconds(events)
        found["artifacts"] = [asdict(one) for one in reading.artifacts(build.id)]
        found["deploy"] = None if deploy is None else {name: getattr(deploy, name) for name in _DEPLOY}
    return found


def projects_document(config: Config, reading: Reading) -> list[dict[str, Any]]:
    """All projects as JSON objects, with their pauses and pins."""
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
    """JSON API of the service.

    Args:
        service: the service.
        sessions: authenticate requests.
        streams: open streams of logs.
    """

    def __init__(self, service: Service, sessions: Sessions, streams: Streams) -> None:
        self.service, self.sessions, self.reading = service, sessions, MaskedReading(service)
        self._streams = streams

    async def projects(self, request: Request) -> Response:
        self.sessions.require(request, "read")
        limit, after = _limit(request), request.query_params.get("after", "")

        def found() -> dict[str, Any]:
            known = sorted(projects_document(self.service.config, self.reading), key=lambda one: one["name"])
            later = [one for one in known if one["name"] > after]
            return {
                "projects": later[:limit],
                "next_after": later[limit - 1]["name"] if len(later) > limit else None,
            }

        return JSONResponse(await run_in_threadpool(found))

    async def builds(self, request: Request) -> Response:
        if request.method == "POST":
            return await self._trigger(request)
        self.sessions.require(request, "read")
        limit, before, project = _limit(request), _before(request), request.query_params.get("project")

        def found() -> dict[str, Any]:
            builds = self.reading.builds(project=project, before=before, limit=limit)
            return {
                "builds": [build_document(self.reading, build) for build in builds],
                "next_before": builds[-1].id if len(builds) == limit else None,
            }

        return JSONResponse(await run_in_threadpool(found))

    async def deploys(self, request: Request) -> Response:
        self.sessions.require(request, "read")
        limit, before, project = _limit(request), _before(request), request.query_params.get("project")

        def found() -> dict[str, Any]:
            rows = self.reading.deploys(project=project, before=before, limit=limit)
            return {
                "deploys": [
                    {name: getattr(one, name) for name in ("build", "project", "ref", *_DEPLOY)} for one in rows
                ],
                "next_before": rows[-1].build if len(rows) == limit else None,
            }  # fmt: skip

        return JSONResponse(await run_in_threadpool(found))

    async def build(self, request: Request) -> Response:
        self.sessions.require(request, "read")
        build = self._build(request)
        return JSONResponse(await run_in_threadpool(lambda: build_document(self.reading, build, full=True)))

    async def log(self, request: Request) -> Response:
        self.sessions.require(request, "read")
        return await tail.answer(self.service, self.reading, request, self._build(request), self._streams)

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

    async def act(self, request: Request, verb: str) -> Response:
        """cancel and retry of a build."""
        person = self.sessions.require(request, "trigger", request.headers.get("x-csrf-token"))
        build = self._build(request)
        done = await run_in_threadpool(act_on_build, self.service, person.name, build, verb)
        return JSONResponse(done, 202)

    async def act_on_project(self, request: Request, verb: str) -> Response:
        """pause, resume and rollback of a project."""
        person = self.sessions.require(request, "deploy", request.headers.get("x-csrf-token"))
        name = request.path_params["project"]
        done = await run_in_threadpool(act_on_project, self.service, person.name, name, verb)
        return JSONResponse(done, 202)

    def _build(self, request: Request) -> Build:
        try:
            return self.reading.build(request.path_params["number"])
        except Busy:  # the database, not the build
            raise
        except CiError as error:
            raise RequestRefused(404, "there is no such build") from error


def decides(reading: Reading, build: Build) -> bool:
    """Whether the build is changing its run: its deployment is verified or rolled back, even if it is cancelled."""
    deploy = reading.deploy(build.id) if build.state in ACTIVE else None
    return deploy is not None and deploy.state in ("planned", "applied", "rolling_back")


def act_on_build(service: Service, who: str, build: Build, verb: str) -> dict[str, Any]:
    """Cancel or retry a build.

    Raises:
        WrongState: it is over and cannot be cancelled, or not over and cannot be retried.
    """
    if verb == "cancel":
        state = service.queue.cancel(build.id, f"cancelled by {who}")
        service.people.audit(who, "cancel", f"build {build.id}")
        service.wake()
        said = state.replace("_", " ")
        if state != "cancelled":
            begun = decides(service.reading, build)
            said += ", its deployment has begun and goes on to its end" if begun else ", ends at its next step"
        return {"build_id": build.id, "state": state, "said": said}
    if not build.terminal:
        raise WrongState(f"build {build.id} is not over: {build.state}")
    again = service.trigger(build.project, Push(build.ref, build.sha, build.author, build.title))
    service.people.audit(who, "retry", f"build {build.id} as {again}")
    return {"build_id": again, "retry_of": build.id}


def act_on_project(service: Service, who: str, name: str, verb: str) -> dict[str, Any]:
    """Pause or resume a project, or roll it back.

    Raises:
        RequestRefused: there is no such project.
        RlctlError: it cannot be rolled back.
    """
    project = service.config.projects.get(name)
    if project is None:
        raise RequestRefused(404, "there is no such project")
    service.people.audit(who, verb, name)
    if verb == "pause":
        service.people.pause(name, f"paused by {who}")
        return {"project": name, "paused": True}
    if verb == "resume":
        lifted = service.people.resume(name)
        service.wake()
        return {"project": name, "paused": False, "lifted": lifted}
    return service.roll_back(name, who)


def _limit(request: Request) -> int:
    return number(request, "limit", 50, least=1, most=MAX_PAGE)


def _before(request: Request) -> int | None:
    return number(request, "before", 0) or None


async def refused(request: Request, error: Exception) -> Response:
    """Reply to a request that failed: JSON for machines, a page for a browser."""
    headers: Mapping[str, str] | None = None
    hint = ""
    if isinstance(error, HTTPException):  # no such path, or no such method of it
        status, message, headers = error.status_code, error.detail, error.headers
    elif isinstance(error, RequestRefused):
        status, message, hint = error.status, error.message, error.hint
        headers = {401: {"www-authenticate": "Bearer"}, 429: {"retry-after": "10"}}.get(status)
    else:
        assert isinstance(error, RlctlError)
        message, hint = error.message, error.hint
        away = (Busy, Transient, BackendUnreachable)
        status = 409 if isinstance(error, WrongState) else 503 if isinstance(error, away) else 400
    if "text/html" in request.headers.get("accept", "") and not request.url.path.startswith("/api/"):
        words = f"{message[:1].upper()}{message[1:]}"
        title = f"{message} · rlctl ci"
        notice = render("notice.html.j2", title=title, live=None, icon="none", message=words, hint=hint)
        return HTMLResponse(notice, status, headers)
    return JSONResponse({"error": message, "hint": hint}, status, headers)
