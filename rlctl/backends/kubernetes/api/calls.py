"""The calls of `api.Api` over HTTP: paths, queries, pages, retries and refusals, over a connection passed in."""

from __future__ import annotations

import json
import random
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final, Literal
from urllib.parse import quote, urlencode

from rlctl.backends.kubernetes.api.exchange import Answer, Connection, NoAnswer, lines, refusal, seconds
from rlctl.backends.kubernetes.api.interface import KINDS, ApiError, Event, Expired, Key, Object, Page, key_of
from rlctl.backends.kubernetes.api.retries import Retries, Tries
from rlctl.spec.names import MANAGER

PAGE: Final = 500
READ_TIMEOUT_S: Final = 15.0
LIST_TIMEOUT_S: Final = 60.0
SOON_S: Final = 0.5
"""Seconds; a watch that ends sooner, for whatever reason, is followed by a pause."""
TELLS_MORE: Final = " `rlctl doctor -t kubernetes` tells more."
_APPLY: Final = "application/apply-patch+yaml"  # JSON is YAML
_JSON: Final = "application/json"

_Objects = list[Object]  # `list` is a method below


class Calls:
    """`rlctl.backends.kubernetes.api.interface.Api` over a connection."""

    def __init__(
        self, connection: Connection, *, clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep, jitter: Callable[[], float] = random.random,
    ) -> None:  # fmt: skip
        self._connection = connection
        self._patience = Retries(clock, sleep, jitter)
        self._clock = clock
        self._short = 0  # watches in a row that ended too soon
        self.context, self.namespace, self.server = connection.context, connection.namespace, connection.server
        self._where = f"{self.server} (context {self.context})"

    def get(self, key: Key) -> Object | None:
        try:
            return self._json("GET", self._path(key.kind, key.name), key=key)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def list(self, kind: str, *, labels: str = "", fields: str = "", most: int | None = None) -> Page:
        for _ in range(3):
            with suppress(Expired):  # between two pages
                return self._list(kind, labels, fields, most)
        raise ApiError(f"a list of {kind}s has expired three times", status=410)

    def _list(self, kind: str, labels: str, fields: str, most: int | None) -> Page:
        query = _selectors(labels, fields)
        query["limit"] = str(PAGE if most is None else min(PAGE, most))
        if most is None:
            query["resourceVersion"] = "0"
        items: _Objects = []
        while True:
            found = self._json("GET", self._path(kind), query, read_timeout_s=LIST_TIMEOUT_S)
            items += [{"apiVersion": KINDS[kind].api_version, "kind": kind, **item} for item in found["items"] or []]
            metadata = found["metadata"]
            token = metadata.get("continue")
            if not token or (most is not None and len(items) >= most):
                remaining = int(metadata.get("remainingItemCount") or 1) if token else 0
                return Page(items, str(metadata.get("resourceVersion", "")), remaining)
            query.pop("resourceVersion", None)
            query["continue"] = token

    def apply(
        self, document: Object, *, manager: str, force: bool = False, dry_run: bool = False, uid: str | None = None
    ) -> Object:  # fmt: skip
        key = key_of(document)
        if uid is not None:
            document = {**document, "metadata": {**document["metadata"], "uid": uid}}
        query = {"fieldManager": manager, "force": "true" if force else "false", "fieldValidation": "Strict"}
        if dry_run:
            query["dryRun"] = "All"
        return self._json("PATCH", self._path(key.kind, key.name), query, document, _APPLY, key=key)

    def create(self, document: Object) -> Object:
        key = key_of(document)
        query = {"fieldManager": MANAGER, "fieldValidation": "Strict"}
        return self._once("POST", self._path(key.kind), query, document, key)

    def replace(self, document: Object) -> Object:
        key = key_of(document)
        query = {"fieldManager": MANAGER, "fieldValidation": "Strict"}
        return self._once("PUT", self._path(key.kind, key.name), query, document, key)

    def _once(self, method: str, path: str, query: dict[str, str], document: Object, key: Key) -> Object:
        """Send a write that the server refuses the second time; if its first reply is lost, compare the live object."""
        tries = self._patience.begin()
        try:
            return self._json(method, path, query, document, key=key, tries=tries)
        except ApiError as error:
            if error.status != 409 or not tries.lost:
                raise
            there = self.get(key)
            if there is None or any(there.get(name) != document[name] for name in document if name != "metadata"):
                raise
            return there

    def delete(
        self, key: Key, *, uid: str | None = None, grace_s: int | None = None,
        propagation: Literal["Background", "Foreground"] = "Background",
    ) -> bool:  # fmt: skip
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        tries = self._patience.begin()
        try:
            self._json("DELETE", self._path(key.kind, key.name), {}, options, key=key, tries=tries)
        except ApiError as error:
            if error.status == 404 or (error.status == 409 and uid is not None):  # that object is gone
                return tries.lost
            raise
        return True

    def watch(
        self, kind: str, *, labels: str = "", fields: str = "", resource_version: str, timeout_s: float
    ) -> Iterator[Event]:
        query = {
            **_selectors(labels, fields),
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(max(1, round(timeout_s))),
        }
        began, heard = self._clock(), False
        answer = self._open("GET", self._path(kind), query, read_timeout_s=timeout_s + READ_TIMEOUT_S)
        try:
            for line in lines(answer.chunks):
                event = json.loads(line)
                heard = True
                thing = event["object"]
                if event["type"] == "ERROR":
                    raise refusal(int(thing.get("code") or 500), json.dumps(thing).encode(), None, self._where)
                yield Event(event["type"], {"apiVersion": KINDS[kind].api_version, "kind": kind, **thing})
        except (NoAnswer, ValueError):  # the connection broke: the caller continues from the last event
            pass
        finally:
            answer.close()
        if self._clock() - began >= SOON_S:
            self._short = 0
            return
        self._short += 1
        self._patience.rest(self._short)
        if not heard:  # a proxy on the way to the server blocks watches
            raise Expired("the watch was closed at once")

    def pod_log(self, pod: str, *, within_s: float, previous: bool = False, tail: int | None = None) -> Iterator[str]:
        query = {"previous": "true" if previous else "", "tailLines": "" if tail is None else str(tail)}
        query = {name: value for name, value in query.items() if value}
        try:
            answer = self._open("GET", self._path("Pod", pod, "log"), query, read_timeout_s=within_s, again=False)
        except ApiError as error:
            if error.status in (400, 404):  # no such container, or nothing written yet
                return
            raise
        try:
            for line in lines(answer.chunks):
                yield line.decode("utf-8", "replace")
        except NoAnswer:
            return
        finally:
            answer.close()

    @contextmanager
    def forward(self, pod: str, port: int) -> Iterator[socket.socket]:
        try:
            with self._connection.forward(pod, port) as opened:
                yield opened
        except NoAnswer as error:
            raise ApiError(
                f"port {port} of Pod {pod} cannot be reached: {error}", status=error.status, key=Key("Pod", pod)
            ) from error

    def may(self, verb: str, resource: str, *, group: str = "", subresource: str = "") -> bool | None:
        asked = {"namespace": self.namespace, "verb": verb, "resource": resource, "group": group}
        asked |= {"subresource": subresource} if subresource else {}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": asked},
        }
        try:
            found = self._json("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", {}, review)
        except ApiError as error:
            if error.status in (401, 403):
                return None
            raise
        return bool((found.get("status") or {}).get("allowed"))

    def version(self) -> str:
        return str(self.raw("/version").get("gitVersion", ""))

    def raw(self, path: str) -> Any:
        return self._json("GET", path)

    def _path(self, kind: str, name: str = "", subresource: str = "") -> str:
        version, plural = KINDS[kind].api_version, KINDS[kind].plural
        parts = ["apis" if "/" in version else "api", version, "namespaces", self.namespace, plural, name, subresource]
        return "/" + "/".join(quote(part, safe="/") for part in parts if part)

    def _json(
        self, method: str, path: str, query: Mapping[str, str] | None = None, body: Object | None = None,
        content_type: str = _JSON, *, key: Key | None = None, read_timeout_s: float = READ_TIMEOUT_S,
        tries: Tries | None = None,
    ) -> Object:  # fmt: skip
        tries = tries or self._patience.begin()
        while True:
            answer = self._open(
                method, path, query, body, content_type, key=key, read_timeout_s=read_timeout_s, tries=tries
            )
            try:
                content = answer.body()
            except NoAnswer as error:
                tries.lost = True
                self._pause(error, tries, key)
                continue
            try:
                found: Object = json.loads(content)
                return found
            except ValueError as error:
                raise ApiError(
                    f"{self.server} answered {method} {path} with something else than JSON",
                    status=answer.status,
                    key=key,
                ) from error

    def _open(
        self, method: str, path: str, query: Mapping[str, str] | None = None, body: Object | None = None,
        content_type: str = _JSON, *, key: Key | None = None, read_timeout_s: float,
        tries: Tries | None = None, again: bool = True,
    ) -> Answer:  # fmt: skip
        """Send a request until the server accepts or refuses it, or the retries are used up; without `again` once.

        Raises:
            ApiError: refused; status 0: no reply.
            Expired: the list or watch continues from a version that the server has dropped.
        """
        tries = tries or self._patience.begin()
        target = f"{path}?{urlencode(query)}" if query else path
        data = None if body is None else json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
        while True:
            tries.count += 1
            after_s: float | None = None
            failure: NoAnswer | ApiError
            try:
                answer = self._connection.send(
                    method, target, body=data, content_type=content_type, read_timeout_s=read_timeout_s
                )  # fmt: skip
                busy = answer.status == 429 or answer.status >= 500
                self._patience.heard(well=not busy)
                if 200 <= answer.status < 300:
                    return answer
                failure = refusal(answer.status, answer.body(), key, self._where)
                if not again or not (failure.status == 429 or failure.status >= 500):
                    raise failure
                after_s = seconds(answer.headers.get("retry-after"))
            except NoAnswer as error:
                if not again:
                    raise ApiError(f"no answer: {error}", status=0, key=key) from error
                tries.lost = True
                failure = error
            self._pause(failure, tries, key, after_s)

    def _pause(
        self, failure: NoAnswer | ApiError, tries: Tries, key: Key | None, after_s: float | None = None
    ) -> None:  # fmt: skip
        """Wait before a retry.

        Raises:
            ApiError: the retries of this call, or the budget of this command, are used up.
        """
        if self._patience.pause(tries, after_s):
            return
        if isinstance(failure, ApiError):
            raise failure
        raise ApiError(
            f"the API server {self._where} does not answer: {failure}",
            status=0,
            key=key,
            hint=f"Is the cluster up, and the way to it (VPN, proxy)?{TELLS_MORE}",
        ) from failure


def _selectors(labels: str, fields: str) -> dict[str, str]:
    return {name: value for name, value in (("labelSelector", labels), ("fieldSelector", fields)) if value}
