"""Strangers at the status page of a run, and slow clients at a probe listener.

`python -m benchmarks.attacks.pages` is the listener in a process of its own: it prints its port.
"""

from __future__ import annotations

import http.client
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

from benchmarks.shared import product
from rlctl_agents.runtime.health import ProbeListener, Pulse

SPEC: dict[str, Any] = {
    "run": "shown",
    "env": {"id": "CartPole-v1"},
    "algorithm": {"name": "impala"},
    "roles": {"actor": {"envs": 1}, "evaluator": {"replicas": 0}},
    "stop": {"wall_time": "1h"},
}
EXPECTED = {"no_token": 403, "wrong_host": 421, "token": 303, "cookie": 200, "token_again": 403, "wrong_cookie": 403}
"""Answers, in the order in which they are asked for; the cookie is what the token became."""
SLOW, MORE, PROBES = 150, 32, 6
WITHIN_S, LATE_MS, MOST_LATE = 5.0, 1000.0, 2
"""Wait of a probe; and how many may take more than the second that a kubelet waits by default: on a machine with other
load one does."""
SHOWN_WITHIN_S = 120.0


def strangers() -> dict[str, Any]:
    """Statuses of a page of a real run: for clients with the link, with the cookie, or with neither.

    Raises:
        RuntimeError: the run does not come up.
        TimeoutError: it says nothing of itself.
    """
    with product.running(SPEC) as run:
        until = time.monotonic() + SHOWN_WITHIN_S
        while not run.stored():  # then the manager has its pages
            if time.monotonic() > until:
                raise TimeoutError(f"the run has no status after {SHOWN_WITHIN_S:g} s")
            time.sleep(0.2)
        words = [sys.executable, "-m", "rlctl", "open", "status", run.name, "--no-browser"]
        with subprocess.Popen(words, cwd=run.folder, env=run.env, stdout=subprocess.PIPE, text=True) as opened:
            try:
                assert opened.stdout is not None
                link = urlsplit(opened.stdout.readline().strip())
                assert link.port is not None
                token, own = f"{link.path}?{link.query}", f"127.0.0.1:{link.port}"
                seen = {
                    "no_token": asked(link.port, link.path, Host=own)[0],
                    "wrong_host": asked(link.port, token, Host=f"rebound.example:{link.port}")[0],
                }
                seen["token"], cookie = asked(link.port, token, Host=own)
                seen["cookie"], _ = asked(link.port, link.path, Host=own, Cookie=cookie)
                seen["token_again"], _ = asked(link.port, token, Host=own)
                seen["wrong_cookie"], _ = asked(link.port, link.path, Host=own, Cookie=f"{cookie[:-1]}-")
            finally:
                opened.terminate()
        return {**seen, "held": seen == EXPECTED}


def asked(port: int, target: str, **headers: str) -> tuple[int, str]:
    """Status of an answer, and the cookie that came with it."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", target, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.getheader("Set-Cookie", "").partition(";")[0]
    finally:
        connection.close()


def slow_clients() -> dict[str, Any]:
    """Probes beside clients that begin a request and never end it; with each probe more of them come."""
    with (
        ExitStack() as held,
        subprocess.Popen([sys.executable, "-m", __name__], stdout=subprocess.PIPE, text=True) as listening,
    ):
        try:
            assert listening.stdout is not None
            port = int(listening.stdout.readline())
            times, answered = [], 0
            for number in range(PROBES):
                for _ in range(MORE if number else SLOW):
                    slow = held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
                    slow.sendall(b"GET /healthz HTTP/1.1\r\nX-Slow: ")  # and no more
                began = time.perf_counter()
                answered += probed(port) == 200
                times.append((time.perf_counter() - began) * 1e3)
        finally:
            listening.terminate()
        late = sum(ms > LATE_MS for ms in times)
        return {"clients": SLOW, "probes": PROBES, "answered": answered, "late": late, "min_ms": min(times),
                "max_ms": max(times), "held": answered == PROBES and late <= MOST_LATE}  # fmt: skip


def probed(port: int) -> int:
    """Status of a probe; 0: none in time."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WITHIN_S)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()


if __name__ == "__main__":
    listener = ProbeListener("tcp:127.0.0.1:0", Pulse(), lambda: b"")
    print(listener.address.rpartition(":")[2], flush=True)
    time.sleep(600)
