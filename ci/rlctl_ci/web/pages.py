"""The status page, and a page for each build: complete without JavaScript, each with a twin in JSON."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from typing import Any, Final
from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse

from rlctl_ci.core import logs
from rlctl_ci.core.errors import CiError
from rlctl_ci.core.service import Service
from rlctl_ci.core.states import ACTIVE, WAITING
from rlctl_ci.store.people import Scope
from rlctl_ci.store.records import Build
from rlctl_ci.web.api import act_on_build, act_on_project, build_document, decides, projects_document
from rlctl_ci.web.asked import address, number
from rlctl_ci.web.feed import feed
from rlctl_ci.web.html import MARKS, Html, ago, clip, document, join, line, state, table, tag
from rlctl_ci.web.limits.streams import Streams
from rlctl_ci.web.sessions import COOKIE, VALID_S, Refused, Sessions
from rlctl_ci.web.shown import Shown

SHOWN: Final = 50
LOG_SHOWN: Final = 96 << 10
BEAT_S: Final = 15.0
SVG: Final = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><circle cx="8" cy="8" r="6" fill="{}"/></svg>'
ICONS: Final = {"good": "#10693c", "bad": "#b3261e", "busy": "#0b57a4", "none": "#60646c", "warn": "#8a5300"}


class Pages:
    """Args:
    service: what is shown.
    sessions: who looks.
    streams: that go on.
    secure: cookies only over HTTPS.
    """

    def __init__(self, service: Service, sessions: Sessions, streams: Streams, *, secure: bool) -> None:
        self.service, self.sessions, self._streams, self._secure = service, sessions, streams, secure
        self.reading = Shown(service)

    async def overview(self, request: Request) -> Response:
        """Of everything, or of one project; the newest builds, or those below `before`."""
        if (gate := self._gate(request)) is not None:
            return gate
        name, before = request.path_params.get("project"), number(request, "before", 0) or None
        if name is not None and name not in self.service.config.projects:
            raise Refused(404, "there is no such project")
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
        data = {
            "time": now, "projects": projects, "builds": [build_document(self.reading, one) for one in builds],
            "deploys": [{"build": one.build, "run": one.run, "state": one.state, "note": one.note} for one in deploys],
            "ignored": [dict(zip(("at", "project", "event", "why"), one, strict=True)) for one in ignored],
            "next_before": builds[-1].id if len(builds) == SHOWN else None,
        }  # fmt: skip
        busy = [one for one in builds if one.state in (*ACTIVE, *WAITING)]
        bad = next((one for one in builds if one.terminal and one.state not in ("superseded", "ignored")), None)
        icon = "busy" if busy else "bad" if bad is not None and bad.state in ("failed", "rolled_back") else "good"
        word = f"{len(busy)} under way" if busy else "idle"
        pages = [tag("a", "newest builds", href=request.url.path)] if before is not None else []
        if data["next_before"] is not None:
            pages.append(tag("a", "older builds", href=f"{request.url.path}?before={data['next_before']}"))
        body = [
            tag("h1", name or "Projects"),
            tag("section", *self._projects(request, projects), id="facts"),
            tag(
                "section",
                tag("h2", "Builds"),
                table(("Build", "State", "Project", "Branch", "Commit", "What", "When"),
                      [self._row(one, now) for one in builds],
                      "No further builds." if before is not None else
                      "No push has come yet. docs/ci.md says how to tell a forge where to send it; "
                      "`rlctl ci test-hook` sends one.", "builds"),
                tag("p", *pages, class_="pages"),
                tag("h2", "Deployments"),
                table(("Build", "Run", "State", "Revision", "Note", "When"),
                      [(link(one.build), one.run, state(one.state),
                        f"{one.before_revision or '-'} → {one.revision or '…'}", clip(one.note),
                        ago(one.started, now)) for one in deploys],
                      "Nothing has been deployed yet.", "deploys"),
                *([tag("h2", "Ignored deliveries"), table(("Project", "Event", "Why", "When"), [
                    (clip(of), clip(event), clip(why), ago(at, now)) for at, of, event, why in ignored
                ], "", "ignored")] if ignored else []),
                id="live",
            ),
        ]  # fmt: skip
        trail = [] if name is None else [tag("a", name, href=f"/projects/{name}")]
        title = " · ".join([word, *filter(None, [name]), "rlctl ci"])
        return document(title, body, live=f"/live?since={mark}", icon=icon, who=self._who(request), trail=trail), data

    def _projects(self, request: Request, projects: list[dict[str, Any]]) -> list[Html]:
        found, rows = [], []
        for one in projects:
            name, where = one["name"], f"/projects/{one['name']}"
            resume = self._button(request, f"{where}/resume", "Resume", "deploy")
            if one["paused"]:
                found.append(banner(f"{name} is paused: {line(one['paused'])}", resume))
            for pin in one["pins"]:
                words = f"{name}: {line(pin['branch'])} is pinned, because {pin['sha'][:12]} was rolled back"
                found.append(banner(f"{words} ({line(pin['why'])}). A newer commit goes on.", resume))
            pause = Html("") if one["paused"] else self._button(request, f"{where}/pause", "Pause", "deploy")
            sure = f"Roll {one['run']} back to the revision before its newest deployment?"
            back = self._button(request, f"{where}/rollback", "Roll back", "deploy", sure=sure)
            branches = ", ".join(map(line, one["branches"]))
            rows.append((tag("a", name, href=where), f"{one['run']} ({one['target']})", branches, one["builder"],
                         join([pause, back])))  # fmt: skip
        return [*found, table(("Project", "Run", "Branches", "Builder", ""), rows, "None.", "projects")]

    def _row(self, build: Build, now: float) -> tuple[object, ...]:
        who = f" · {line(build.author)}" if build.author else ""
        what = tag("span", line(build.title) or "-", tag("span", who, class_="soft"), class_="clip")
        why = clip(build.reason, "soft")
        return (
            link(build.id), state(build.state), clip(build.project), clip(build.branch), build.sha[:12],
            join([what, why]), ago(build.created, now),
        )  # fmt: skip

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
            (state(name, past=end is not None), "" if end is None else f"{end - at:.1f} s", line(note), ago(at, now))
            for (at, name, note), end in zip(events, ends, strict=True)
        ]
        facts = [("Branch", line(build.branch)), ("Commit", tag("code", build.sha)), ("By", line(build.author) or "-"),
                 ("Attempts", build.attempts)]  # fmt: skip
        facts += [(one.name, tag("code", one.reference)) for one in self.reading.artifacts(build.id)]
        deploy = self.reading.deploy(build.id)
        if deploy is not None:
            note = f", {line(deploy.note)}" if deploy.note else ""
            facts.append(("Deployed", f"{deploy.run}: {deploy.state.replace('_', ' ')}{note}"))
        kind = MARKS[build.state][1] if build.terminal else "soft"
        words, verb = ("Build again", "retry") if build.terminal else ("Cancel", "cancel")
        pressed = self._button(request, f"/builds/{build.id}/{verb}", words, "trigger")
        source = f"/api/v1/builds/{build.id}/log"
        logged = tag(
            "pre", content.decode("utf-8", "replace"), id="log", tabindex="0", role="log", aria_label="Log",
            data_source=source, data_from=None if build.terminal else after,
        )  # fmt: skip
        rows = (tag("tr", tag("th", name, scope="row"), tag("td", value)) for name, value in facts)
        shown = f"the last {LOG_SHOWN >> 10} KiB of {size / (1 << 20):.1f} MiB; " if begin else ""
        body = [
            tag(
                "section",
                tag("div", tag("h1", f"Build {build.id} ", state(build.state)),
                    Html("") if decides(self.reading, build) else pressed, class_="head"),
                tag("p", line(build.title), class_="lead"),
                tag("p", line(build.reason), class_=kind),
                tag("table", tag("tbody", *rows), class_="facts"),
                tag("h2", "Steps"),
                table(("State", "Took", "Note", "When"), steps, "None yet.", "steps"),
                id="live",
            ),
            tag("div", tag("h2", "Log"), tag("p", shown, tag("a", "the whole log", href=source), class_="soft"),
                class_="head"),
            logged,
        ]  # fmt: skip
        icon = {"succeeded": "good", "failed": "bad", "rolled_back": "bad"}.get(
            build.state, "none" if build.terminal else "busy"
        )
        title = f"{build.state.replace('_', ' ')} · build {build.id}"
        trail = [build.project, link(build.id)]
        if build.project in self.service.config.projects:
            trail[0] = tag("a", build.project, href=f"/projects/{build.project}")
        live = None if build.terminal else f"/live?since={mark}"
        return document(title, body, live=live, icon=icon, who=self._who(request), trail=trail)

    def _found(self, request: Request) -> Build:
        try:
            return self.reading.build(request.path_params["number"])
        except CiError as error:
            raise Refused(404, error.message) from error

    async def live(self, request: Request) -> Response:
        """Tells a page that something has changed since it was made, and that we are there."""
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
        return Response(feed(builds, home, self.service.started), media_type="application/atom+xml")

    async def badge(self, request: Request) -> Response:
        self.sessions.require(request, "read")
        name = request.path_params["project"]
        if name not in self.service.config.projects:
            raise Refused(404, "there is no such project")
        found = await run_in_threadpool(lambda: self.reading.builds(project=name, limit=20))
        last = next((one for one in found if one.state in ("succeeded", "failed", "rolled_back")), None)
        word = last.state.replace("_", " ") if last is not None else "none"
        color = ICONS["none" if last is None else "good" if last.state == "succeeded" else "bad"]
        text = (
            '<svg xmlns="http://www.w3.org/2000/svg" width="120" height="20" role="img"><title>build: {0}</title>'
            '<rect width="40" height="20" fill="#444"/><rect x="40" width="80" height="20" fill="{1}"/>'
            '<g fill="#fff" font-family="sans-serif" font-size="11"><text x="6" y="14">build</text>'
            '<text x="46" y="14">{0}</text></g></svg>'
        )
        public = {"cross-origin-resource-policy": "cross-origin"} if self.service.config.public_status else None
        return Response(text.format(word, color), headers=public, media_type="image/svg+xml")

    async def sign_in(self, request: Request) -> Response:
        if request.method != "POST":
            return HTMLResponse(_sign_in())
        opened = await run_in_threadpool(self.sessions.open, (await fields(request)).get("token", ""))
        if opened is None:
            return HTMLResponse(_sign_in("There is no such token, or it has expired."), 401)
        response = RedirectResponse("/", 303)
        response.set_cookie(
            COOKIE, opened[0], max_age=int(VALID_S), httponly=True, samesite="strict", secure=self._secure, path="/"
        )
        return response

    async def act(self, request: Request) -> Response:
        """A button: cancel, retry, pause, resume, rollback, sign-out."""
        form = await fields(request)
        verb = request.path_params.get("verb", "sign-out")
        scope: Scope | None = None  # to sign out
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
        """People without a session are shown where to begin, machines are told."""
        try:
            self.sessions.require(request, "read")
        except Refused as refusal:
            if refusal.status == 401 and "text/html" in request.headers.get("accept", ""):
                return RedirectResponse("/sign-in", 303)
            raise
        return None

    def _who(self, request: Request) -> Html:
        person, session = self.sessions.who(request), self.sessions.session(request)
        if person is None or session is None:
            return tag("a", "Sign in", href="/sign-in", class_="who")
        return tag("div", person.name, self._button(request, "/sign-out", "Sign out", None), class_="who soft")

    def _button(
        self, request: Request, action: str, words: str, scope: Scope | None, *, sure: str | None = None
    ) -> Html:
        """Nothing for those who may not press it."""
        session, person = self.sessions.session(request), self.sessions.who(request)
        if session is None or person is None or not (scope is None or person.may(scope)):
            return Html("")
        return tag("form", tag("input", type="hidden", name="csrf", value=session.csrf), tag("button", words),
                   method="post", action=action, data_sure=sure)  # fmt: skip


def _sign_in(why: str = "") -> str:
    scopes = "read to look, trigger to build and cancel, deploy to pause, resume and roll back; or admin, for all of it"
    token = tag("input", type="password", name="token", required=True, autocomplete="current-password")
    body = [
        tag("h1", "Sign in"),
        *([tag("p", why, class_="banner", role="alert")] if why else []),
        tag("form", tag("label", "Token ", token), tag("button", "Sign in"), method="post", action="/sign-in",
            class_="sign-in"),
        tag("p", tag("code", "rlctl ci token NAME --scope SCOPE"),
            f" makes one, with as many scopes as are named: {scopes}.", class_="soft"),
    ]  # fmt: skip
    return document("sign in · rlctl ci", body, live=None, icon="none", who="")


async def fields(request: Request) -> dict[str, str]:
    """Of a form as browsers send it; empty when it is anything else."""
    try:
        return dict(parse_qsl((await request.body()).decode("ascii"), max_num_fields=5))
    except ValueError:
        return {}


def banner(words: str, button: Html) -> Html:
    return tag("div", tag("span", words), button, class_="banner")


def link(build: int) -> Html:
    return tag("a", f"#{build}", href=f"/builds/{build}")
