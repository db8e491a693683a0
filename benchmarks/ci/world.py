"""A repository on this machine, and `rlctl ci serve` beside it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rlctl_ci.forges.github import GitHub
from rlctl_ci.store.records import Push

SECRET = "a secret for the benchmark"
PROJECT = "bench"
FORGE = GitHub()


class Repository:
    """Repository to which commits are pushed.

    Args:
        folder: empty; becomes a work tree, which the service fetches from.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self._git("init", "--quiet", "--initial-branch=main")

    def commit(self, files: Mapping[str, str]) -> str:
        """Write these files; returns the new commit."""
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self._git("add", "-A")
        self._git("commit", "--quiet", "--allow-empty", "-m", "a push")
        return self._git("rev-parse", "HEAD").strip()

    def _git(self, *arguments: str) -> str:
        who = {f"GIT_{whose}_{what}": "bench" for whose in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        return subprocess.run(
            ["git", *arguments], cwd=self.folder, env={**os.environ, **who}, check=True, capture_output=True, text=True
        ).stdout


class Serving(NamedTuple):
    """A service that listens."""

    port: int
    pid: int
    folder: Path
    """Of its state."""

    def hook(self, sha: str) -> int:
        """Send a signed one of that commit; returns the number of its build."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.connect()
            connection.sock.sendall(request(self.port, sha, secrets.token_hex(8)))
            answer = http.client.HTTPResponse(connection.sock)
            answer.begin()
            return int(json.loads(answer.read())["build_id"])
        finally:
            connection.close()

    def ended(self, build: int, within_s: float, look_s: float = 0.05) -> dict[str, Any]:
        """A build that is over.

        Raises:
            TimeoutError: it has no end.
        """
        deadline = time.monotonic() + within_s
        while not (found := self.build(build))["terminal"]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"build {build} is {found['state']} after {within_s:g} s")
            time.sleep(look_s)
        return found

    def build(self, number: int) -> dict[str, Any]:
        """As `/builds/N.json` says."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/builds/{number}.json", timeout=30) as answer:
            found: dict[str, Any] = json.loads(answer.read())
        return found


def environ(folder: Path) -> dict[str, str]:
    """The environment of this process, with a state folder in that folder."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RLCTL_", "XDG_"))}
    return {**kept, "XDG_STATE_HOME": str(folder / "s"), "XDG_RUNTIME_DIR": str(folder)}


@contextlib.contextmanager
def serving(folder: Path, environ: Mapping[str, str], repository: Path, run: str, **project: Any) -> Iterator[Serving]:
    """The service of one project, with its configuration and state in that folder.

    Args:
        environ: of the service; says where runs are.
        run: that it redeploys.
        project: more fields of ci.yaml.

    Raises:
        TimeoutError: it does not listen.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (folder / "secret").write_text(SECRET)
    about = {"forge": "github", "repository": str(repository), "secret_file": "secret", "run": run, "poll_s": 0}
    config = {
        "listen": f"127.0.0.1:{port}", "state": "ci", "hooks_per_minute": 1_000_000,
        "projects": {PROJECT: {**about, **project}},
    }  # fmt: skip
    (folder / "ci.yaml").write_text(json.dumps(config))
    process = subprocess.Popen(
        [sys.executable, "-m", "rlctl", "ci", "serve", "-q"], cwd=folder, env=dict(environ), stdin=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 60.0
        while not _listens(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise TimeoutError("the service does not listen")
            time.sleep(0.05)
        yield Serving(port, process.pid, folder / "ci")
    finally:
        process.terminate()
        process.wait(30)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def request(port: int, sha: str, delivery: str) -> bytes:
    """A signed hook, as it goes over the wire; the connection ends with the answer."""
    body = json.dumps(FORGE.example(Push("refs/heads/main", sha, "ana", "x"))).encode()
    headers = {
        "host": f"127.0.0.1:{port}", "content-length": str(len(body)), "connection": "close",
        **dict(FORGE.sign(body, SECRET.encode(), delivery=delivery, now=0.0)),
    }  # fmt: skip
    lines = [f"POST /hooks/github/{PROJECT} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body
