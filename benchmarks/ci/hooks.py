"""Signed hooks at a steady rate against a real service, which builds all the while.

Every hook names another commit, so every one is stored; every build looks at a real repository. The load is an open
loop: a hook is sent when it is due, however late the answers to those before are, and its time counts from that moment.
One thread sends them all, from bytes made before, and its own CPU is told, because it runs on the same cores.
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.ci import world
from benchmarks.shared import processes

TIMEOUT_S = 30.0


def hooks(rate: float, seconds: float) -> dict[str, Any]:
    """So many a second, for so long; answers by status, milliseconds, CPU.

    Raises:
        TimeoutError: the service does not listen.
    """
    with tempfile.TemporaryDirectory(prefix="rlb-", dir="/tmp") as name:
        folder = Path(name)
        repository = world.Repository(folder / "repository")
        repository.commit({"spec.yaml": "run: bench\nenv: {id: CartPole-v1}\nstop: {agent_steps: 10}\n"})
        with world.serving(folder, world.environ(folder), repository.folder, "bench") as service:
            asyncio.run(load(service.port, rate, 1.0))  # every thread has its connection to the database
            before, ours = processes.cpu_s([service.pid]), time.process_time()
            times, answers = asyncio.run(load(service.port, rate, seconds))
            ours = time.process_time() - ours
            used = processes.cpu_s([service.pid]) - before
        return {
            "hooks": len(times),
            **{f"p{share:g}_ms": at(times, share) * 1e3 for share in (50, 95, 99)},
            "max_ms": max(times) * 1e3,
            "accepted": answers.pop(202, 0),
            "refused": sum(count for status, count in answers.items() if status >= 500 or status == 0),
            "other": sum(count for status, count in answers.items() if 0 < status < 500),
            "cpu_ms_per_hook": used / len(times) * 1e3,
            "sender_cpu_ms_per_hook": ours / len(times) * 1e3,
        }


async def load(port: int, rate: float, seconds: float) -> tuple[list[float], Counter[int]]:
    """Seconds from when each hook was due until its whole answer had come, sorted; answers by status, 0: none."""
    count = int(rate * seconds)
    due = [world.request(port, secrets.token_hex(20), secrets.token_hex(8)) for _ in range(count)]
    times: list[float] = []
    answers: Counter[int] = Counter()

    async def send(data: bytes, at_s: float) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                status = await answer(port, data)
        except (OSError, TimeoutError, ValueError):
            status = 0
        times.append(time.perf_counter() - at_s)
        answers[status] += 1

    begun = time.perf_counter() + 0.05
    async with asyncio.TaskGroup() as group:
        for number, data in enumerate(due):
            at_s = begun + number / rate
            await asyncio.sleep(max(0.0, at_s - time.perf_counter()))
            group.create_task(send(data, at_s))
    return sorted(times), answers


async def answer(port: int, data: bytes) -> int:
    """The status of the answer to one request, which has come to its end.

    Raises:
        OSError: the connection broke.
        ValueError: that is no answer.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        return int((await reader.read()).split(b" ", 2)[1])
    except IndexError as error:
        raise ValueError("no status") from error
    finally:
        writer.close()


def at(times: Sequence[float], percent: float) -> float:
    """A percentile of sorted values: the smallest that so many percent do not exceed.

    Example:
        `at([1, 2, 3, 4], 50)` is 2, `at([1, 2, 3, 4], 99)` is 4.
    """
    return times[max(0, -int(-len(times) * percent // 100) - 1)]
