"""The benchmark of the webhook service: its load, and what it says of made-up figures."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from benchmarks.ci import bench, world
from benchmarks.ci.hooks import at, load
from benchmarks.shared.store import Row
from rlctl_ci.forges.github import GitHub


def test_a_percentile_is_a_value_that_was_measured() -> None:
    assert [at([1, 2, 3, 4], percent) for percent in (1, 25, 50, 75, 99, 100)] == [1, 1, 2, 3, 4, 4]
    assert at(list(range(1, 3001)), 99) == 2970


def test_a_request_is_what_the_forge_would_send() -> None:
    head, _, body = world.request(8710, "a" * 40, "d-1").partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    assert first == b"POST /hooks/github/bench HTTP/1.1"
    headers = [(name.lower(), value) for name, _, value in (line.partition(b": ") for line in lines)]
    assert (b"content-length", str(len(body)).encode()) in headers
    assert GitHub().verify(headers, body, [world.SECRET.encode()], 0.0)
    assert GitHub().read(headers, body).push is not None


@pytest.mark.timeout(60)
def test_an_answer_that_is_late_does_not_hold_up_the_hooks_after_it_and_counts_from_when_it_was_due() -> None:
    async def slow() -> tuple[list[float], dict[int, int], list[float]]:
        came: list[float] = []

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            came.append(time.perf_counter())
            await reader.readuntil(b"\r\n\r\n")
            while len(came) < 10:  # nobody is answered before everybody has asked
                await asyncio.sleep(0.001)
            writer.write(b"HTTP/1.1 202 Accepted\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            times, answers = await load(server.sockets[0].getsockname()[1], 100.0, 0.1)
        return times, dict(answers), came

    times, answers, came = asyncio.run(slow())
    assert answers == {202: 10}
    assert len(came) == 10
    assert times[-1] >= 0.09, "the first was due nine hundredths of a second before the last"


def test_the_table_tells_hooks_and_pushes_and_what_was_discarded(tmp_path: Path) -> None:
    rows: list[Row] = [
        {"what": "hooks", "hooks": "3000", "accepted": "3000", "refused": "0", "p99_ms": "31.25", "kept": "1"},
        {"what": "cold", "redeployed_s": "7.5", "verified_s": "12.5", "kept": "1"},
        {"what": "warm", "redeployed_s": "5.5", "verified_s": "10.5", "kept": "1"},
        {"what": "warm", "redeployed_s": "50", "verified_s": "60", "kept": "0"},
    ]
    lines = bench.table(rows)
    assert any(line.startswith("| p99_ms | 31.2 ") for line in lines)
    assert "| redeployed_s | 7.5 (7.5-7.5; n 1) | 5.5 (5.5-5.5; n 1, 1 discarded) |" in lines
    bench.plot(rows, tmp_path / "plot.svg")
    assert (tmp_path / "plot.svg").stat().st_size > 0
