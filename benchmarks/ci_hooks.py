"""Signed hooks at a steady rate against a real service: `python benchmarks/ci_hooks.py --rate 50 --seconds 60`.

Every hook names another commit, so every one is stored; builds look at a real repository all the while. Prints answers
by status, and percentiles of the time from the first byte sent to the whole answer.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from rlctl_ci.forges.github import GitHub
from rlctl_ci.store.records import Push

SECRET = "a secret for the benchmark"


def repository(folder: Path) -> Path:
    """A repository with one commit."""
    who = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a"}
    made = folder / "repository"
    made.mkdir()
    (made / "spec.yaml").write_text("run: bench\nenv: {id: CartPole-v1}\nstop: {rows: 10}\n")
    for arguments in (["init", "-q", "--initial-branch=main"], ["add", "-A"], ["commit", "-qm", "x"]):
        subprocess.run(["git", *arguments], cwd=made, env={**os.environ, **who}, check=True)
    return made


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float, default=50.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rlctl-bench-") as name, socket.socket() as probe:
        folder = Path(name)
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        (folder / "secret").write_text(SECRET)
        project = {"forge": "github", "repository": str(repository(folder)), "secret_file": "secret", "run": "bench"}
        config = {
            "listen": f"127.0.0.1:{port}", "state": "state", "hooks_per_minute": 1_000_000, "projects": {"p": project}
        }  # fmt: skip
        (folder / "ci.yaml").write_text(json.dumps(config))
        environ = {**os.environ, "XDG_STATE_HOME": str(folder / "home"), "XDG_RUNTIME_DIR": str(folder)}
        service = subprocess.Popen([sys.executable, "-m", "rlctl", "ci", "serve", "-q"], cwd=folder, env=environ)
        try:
            measure(port, options.rate, options.seconds)
        finally:
            service.terminate()
            service.wait(30)
        used = os.times()
        print(f"CPU of the service and its programs: {used.children_user + used.children_system:.1f} s")


def measure(port: int, rate: float, seconds: float) -> None:
    for _ in range(600):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.1)
    times: list[float] = []
    answers: Counter[int] = Counter()
    guard, forge = threading.Lock(), GitHub()

    def send() -> None:
        body = json.dumps(forge.example(Push("refs/heads/main", secrets.token_hex(20), "ana", "x"))).encode()
        headers = dict(forge.sign(body, SECRET.encode(), delivery=secrets.token_hex(8), now=0.0))
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        begun = time.perf_counter()
        try:
            connection.request("POST", "/hooks/github/p", body, headers)
            status = connection.getresponse().status
        except OSError:
            status = 0
        took = time.perf_counter() - begun
        connection.close()
        with guard:
            times.append(took)
            answers[status] += 1

    threads = []
    begun = time.perf_counter()
    for number in range(int(rate * seconds)):
        time.sleep(max(0.0, begun + number / rate - time.perf_counter()))
        threads.append(threading.Thread(target=send))
        threads[-1].start()
    for thread in threads:
        thread.join()
    times.sort()
    shown = ", ".join(f"p{share:g} {times[min(len(times) - 1, int(len(times) * share / 100))] * 1e3:.0f} ms"
                      for share in (50, 95, 99, 100))  # fmt: skip
    print(f"{len(times)} hooks in {time.perf_counter() - begun:.1f} s: {dict(answers)}; {shown}")


if __name__ == "__main__":
    main()
