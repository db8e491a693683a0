"""The log of a build: whole, a range of its bytes, lines from an offset on, or events while it grows."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from rlctl_ci.core import logs
from rlctl_ci.core.service import Service
from rlctl_ci.store.reading import Reading
from rlctl_ci.store.records import Build
from rlctl_ci.web.limits.streams import Streams
from rlctl_ci.web.request_parts import address, number

FOLLOW_S: Final = 0.5
PING_S: Final = 15.0
_RANGE = re.compile(r"bytes=(?:([0-9]{1,15})-([0-9]{0,15})|-([0-9]{1,15}))")


def part(asked: str, size: int) -> tuple[int, int] | None:
    """First byte of a `Range:` and the one after its last; equal: there are no such bytes.

    None: several ranges, or an invalid one; HTTP allows to send the whole log then.
    """
    found = _RANGE.fullmatch(asked)
    if found is None:
        return None
    first, last, newest = found.groups()
    if newest is not None:
        return max(0, size - int(newest)), size
    if last and int(last) < int(first):
        return None
    return min(int(first), size), min(int(last) + 1, size) if last else size


async def answer(service: Service, reading: Reading, request: Request, build: Build, streams: Streams) -> Response:
    """Reply with a log or a part of it; see static/openapi.json.

    Raises:
        CiError: `offset` is no number.
    """
    path = service.log(build.id)
    offset = number(request, "offset", 0)
    if "text/event-stream" in request.headers.get("accept", ""):
        last = request.headers.get("last-event-id", "")
        offset = int(last) if re.fullmatch(r"[0-9]{1,15}", last) else offset
        said = _events(service, reading, request, build.id, offset, streams)
        return StreamingResponse(said, media_type="text/event-stream")
    headers = {"x-build-state": build.state, "accept-ranges": "bytes"}
    size = await run_in_threadpool(logs.size, path)
    wanted = part(request.headers.get("range", ""), size)
    if wanted is None and "offset" in request.query_params:
        found, after = await run_in_threadpool(logs.read, path, offset)
        return PlainTextResponse(found, headers={**headers, "x-next-offset": str(after)})
    begin, end = wanted or (0, size)
    headers |= {"x-next-offset": str(end), "content-length": str(end - begin)}
    if wanted is not None:
        if begin == end:
            headers["content-range"] = f"bytes */{size}"
            return PlainTextResponse(b"", 416, headers)
        headers["content-range"] = f"bytes {begin}-{end - 1}/{size}"
    pieces = logs.pieces(path, begin, end)
    return StreamingResponse(pieces, 206 if wanted else 200, headers, media_type="text/plain")


async def _events(
    service: Service, reading: Reading, request: Request, build: int, offset: int, streams: Streams
) -> AsyncIterator[str]:
    quiet_s = 0.0
    with streams.one(address(request)) as goes_on:
        while request.method == "GET" and goes_on() and not await request.is_disconnected():
            state = await run_in_threadpool(reading.build, build)
            found, after = await run_in_threadpool(logs.read, service.log(build), offset)
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
