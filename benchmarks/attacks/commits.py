"""A pushed commit with a .dockerignore that would block the webhook service: refused in words, or ended by `cancel`."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.ci import world
from benchmarks.shared import processes
from rlctl_ci.client import Client

SPEC = "run: bench\nenv: {id: CartPole-v1}\ncode: {path: .}\nstop: {agent_steps: 10}\n"
LARGE = {".dockerignore": "a\n" * 12_000_000}
MANY = {".dockerignore": "a\n" * 20_000, **{f"d/f{number}": "" for number in range(3000)}}
ENDLESS = {".dockerignore": f"{'**/a/' * 30}b\n" * 700, **{f"{'a/' * 60}f{number}": "" for number in range(2000)}}
"""Each pattern and each path is allowed; together they take hours."""
MOST_MORE_MIB = 64.0
CANCELLED_S = 15.0
"""The service checks every ten seconds for requests to cancel a build."""
BUILDS_WITHIN_S = 120.0


@contextmanager
def pushed(files: Mapping[str, str]) -> Iterator[tuple[world.Serving, int, float]]:
    """A service that has heard of a commit with these files, the build, and MiB that the service had before.

    Raises:
        TimeoutError: the service does not listen.
    """
    with tempfile.TemporaryDirectory(prefix="rlb-", dir="/tmp") as name:
        folder = Path(name)
        repository = world.Repository(folder / "repository")
        sha = repository.commit({"spec.yaml": SPEC, **files})
        with world.serving(folder, world.environ(folder), repository.folder, "bench") as service:
            service.ended(service.hook("1" * 40), 60.0)  # of no commit: what a build loads is loaded
            before_mib = processes.reset_peak(service.pid)
            yield service, service.hook(sha), before_mib


def refused(files: Mapping[str, str]) -> dict[str, Any]:
    """Push a commit with these files; seconds until its build has failed, and memory of the service itself.

    Raises:
        TimeoutError: the build has no end.
    """
    with pushed(files) as (service, build, before_mib):
        ended = service.ended(build, 300.0)
        most_mib = processes.peak_mib(service.pid)
        return {
            "seconds": sum(ended["seconds"]["stages"].values()),
            "reading_s": ended["seconds"]["stages"].get("building"),
            "before_mib": before_mib,
            "most_mib": most_mib,
            "held": ended["state"] == "failed" and ".dockerignore:" in ended["reason"]
            and most_mib < before_mib + MOST_MORE_MIB,
        }  # fmt: skip


def cancelled() -> dict[str, Any]:
    """Push a commit that takes hours to be read, and cancel its build; seconds from `cancel` until it has ended.

    Raises:
        TimeoutError: the build does not begin, or has no end.
    """
    with pushed(ENDLESS) as (service, build, before_mib):
        until = time.monotonic() + BUILDS_WITHIN_S
        while service.build(build)["state"] != "building":
            if time.monotonic() > until:
                raise TimeoutError(f"build {build} is not read after {BUILDS_WITHIN_S:g} s")
            time.sleep(0.05)
        time.sleep(2.0)  # it is well under way
        client = Client(f"http://127.0.0.1:{service.port}", (service.folder / "token").read_text().strip())
        began = time.monotonic()
        client.post(f"/api/v1/builds/{build}/cancel")
        ended = service.ended(build, 300.0)
        seconds, most_mib = time.monotonic() - began, processes.peak_mib(service.pid)
        return {
            "seconds": seconds,
            "before_mib": before_mib,
            "most_mib": most_mib,
            "held": ended["state"] == "cancelled" and seconds < CANCELLED_S and most_mib < before_mib + MOST_MORE_MIB,
        }
