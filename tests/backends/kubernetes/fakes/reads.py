"""An API server of which a test says everything: objects by kind, logs, raw answers, rights; nothing can be written."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

from rlctl.backends.base import RunState
from rlctl.backends.kubernetes.api.interface import ApiError, Key, Object, Page
from rlctl.backends.kubernetes.run_state import record
from rlctl.spec import names
from tests.backends.kubernetes.fakes.requests import Requests
from tests.backends.kubernetes.fakes.selectors import matches

UID = "5f3c2a1b9d8e4f60a1b2c3d4e5f60718"
NOW = datetime(2026, 11, 21, 4, 10, tzinfo=UTC)


def run_state(phase: str = "running", **replicas: int) -> RunState:
    """A run called pong."""
    count = replicas or {"manager": 1, "learner": 1, "actor": 10}
    return RunState(
        run="pong", uid=UID, target="kubernetes", phase=phase, rlctl_version="0", revision=1,  # type: ignore[arg-type]
        created=datetime(2026, 11, 21, 4, 0, tzinfo=UTC), storage="claim pong-volume:/runs/pong-5f3c2a1b", spec={},
        hashes={}, replicas=count, spec_replicas=count,
    )  # fmt: skip


def state_object(state: RunState) -> Object:
    return {**record.document_of(record.Record(state, (), "a@b")), "kind": "ConfigMap"}


class Reads:
    """Satisfies `rlctl.backends.kubernetes.api.interface.Api` as far as reading goes."""

    def __init__(self, *objects: Object) -> None:
        self.context, self.namespace, self.server = "test", "team-a", "https://127.0.0.1:6443"
        self.requests = Requests()
        self.objects = [*objects]
        self.lists: list[str] = []  # "Pod labels fields most"
        self.logs: dict[str, list[str]] = {}  # "pod" or "pod previous"
        self.answers: dict[str, Any] = {}  # path -> answer of `raw`, or what it raises
        self.refused: set[str] = set()  # kinds that may not be listed
        self.forbidden: set[str] = set()  # "create roles"
        self.mute = False  # rights cannot be asked for
        self.serve: Callable[[socket.socket, str, int], None] | None = None
        self.server_version = "v1.34.1"
        self.server_time = NOW

    def get(self, key: Key) -> Object | None:
        self.requests.count("GET")
        found = (each for each in self.objects if (each["kind"], each["metadata"]["name"]) == key)
        return next(found, None)

    def list(self, kind: str, *, labels: str = "", fields: str = "", most: int | None = None) -> Page:
        self.requests.count("GET")
        self.lists.append(f"{kind} {labels} {fields}".strip())
        if kind in self.refused:
            raise ApiError(f"may not list {kind}", status=403)
        found = [each for each in self.objects if each["kind"] == kind and matches(each, labels, fields)]
        read = found if most is None else found[:most]
        for _ in range(500, len(read), 500):
            self.requests.count("GET")
        return Page(read, "1", len(found) - len(read))

    def pod_log(self, pod: str, *, within_s: float, previous: bool = False, tail: int | None = None) -> Iterator[str]:
        self.requests.count("GET")
        lines = self.logs.get(f"{pod} previous" if previous else pod, [])
        yield from lines if tail is None else lines[-tail:]

    @contextmanager
    def forward(self, pod: str, port: int) -> Iterator[socket.socket]:
        self.requests.count("GET")
        if self.serve is None:
            raise ApiError(f"pod {pod} does not listen on {port}", status=500)
        near, far = socket.socketpair()
        thread = threading.Thread(target=self._answer, args=(far, pod, port), daemon=True)
        thread.start()
        try:
            with near:
                yield near
        finally:
            with suppress(OSError):
                far.shutdown(socket.SHUT_RDWR)
            thread.join(timeout=60)

    def _answer(self, far: socket.socket, pod: str, port: int) -> None:
        assert self.serve is not None
        with far, suppress(OSError):
            self.serve(far, pod, port)

    def may(self, verb: str, resource: str, *, group: str = "", subresource: str = "") -> bool | None:
        self.requests.count("POST")
        whole = f"{resource}/{subresource}" if subresource else resource
        return None if self.mute else f"{verb} {whole}" not in self.forbidden

    def version(self) -> str:
        self.requests.count("GET")
        return self.server_version

    def raw(self, path: str) -> Any:
        self.requests.count("GET")
        answer = self.answers.get(path)
        if answer is None:
            raise ApiError(f"{path}: not found", status=404)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def apply(self, document: Object, *, manager: str, force: bool = False, dry_run: bool = False,
              uid: str | None = None) -> Object:  # fmt: skip
        self.requests.count("PATCH")
        assert dry_run, "nothing is written here"
        stamp = self.server_time.strftime("%Y-%m-%dT%H:%M:%SZ")
        return {**document, "metadata": {**document["metadata"], "creationTimestamp": stamp}}

    def create(self, document: Object) -> Object:
        raise AssertionError("nothing is written here")

    replace = create

    def delete(self, key: Key, **how: Any) -> bool:
        raise AssertionError("nothing is written here")

    def watch(self, kind: str, **how: Any) -> Iterator[Any]:
        raise AssertionError("nothing is watched here")


def labelled(role: str, **more: str) -> dict[str, str]:
    return {**names.labels("pong", role), names.UID: UID, **more}
