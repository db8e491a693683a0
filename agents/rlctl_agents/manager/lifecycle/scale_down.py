"""Release of the pods of a finished run: its manager scales every other workload to 0, and does no more.

It sends plain HTTPS requests to the API server with the pod's service account, which may patch the scale of exactly
these workloads. While that is denied, or there is no service account, the run stays as it is until `rlctl down`.
"""

from __future__ import annotations

import http.client
import json
import logging
import os
import re
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

FIELD_MANAGER = "rlctl-scale"
"""Field manager that owns `spec.replicas` of every workload, and nothing else."""
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TIMEOUT_S = 10.0
AGAIN_S = 15.0
DENIED_AGAIN_S = 60.0
"""Seconds between two tries while the API server denies them: one that starts denies at first what it grants later."""
TOLD_AFTER = 4
"""Failed tries in a row after which the delay is reported."""
CANCEL_S = 3.0
"""Longest wait, in seconds, for a request in flight when the release is cancelled."""
_WORKLOAD = re.compile(r"(deployments|statefulsets)/([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)")

log = logging.getLogger(__name__)


class Workload(NamedTuple):
    """Workload of a cluster, with replicas."""

    kind: str  # "deployments"
    name: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"


class Denied(OSError):
    """The service account lacks this permission now."""


def workloads(text: str) -> list[Workload]:
    """Parse `deployments/a,statefulsets/b`.

    Raises:
        ValueError: an entry is not a workload.
    """
    found = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        match = _WORKLOAD.fullmatch(entry)
        if match is None:
            raise ValueError(f"{entry!r}: must be deployments/NAME or statefulsets/NAME")
        found.append(Workload(match[1], match[2]))
    return found


@dataclass(frozen=True, slots=True)
class Cluster:
    """API server, as reached from a pod.

    Args:
        account: folder of the service account; its token is read again each time, because it changes every hour.
    """

    host: str
    port: int
    namespace: str
    account: Path

    @classmethod
    def found(cls, environment: Mapping[str, str] = os.environ, account: Path = ACCOUNT) -> Cluster | None:
        """The cluster on which this process runs with a service account; None: none."""
        host, port = environment.get("KUBERNETES_SERVICE_HOST", ""), environment.get("KUBERNETES_SERVICE_PORT", "443")
        try:
            namespace = (account / "namespace").read_text().strip()
            (account / "token").read_bytes()
        except OSError:
            return None
        return cls(host, int(port), namespace, account) if host and port.isdigit() and namespace else None

    def connect(self) -> http.client.HTTPConnection:
        """Create a connection that is not open yet.

        Raises:
            OSError: the cluster's certificate cannot be read.
        """
        context = ssl.create_default_context(cafile=str(self.account / "ca.crt"))
        return http.client.HTTPSConnection(self.host, self.port, timeout=TIMEOUT_S, context=context)

    def scale_to_zero(self, workload: Workload, connect: Callable[[], http.client.HTTPConnection]) -> bool:
        """Scale a workload to 0 replicas; False if there is no such workload.

        Raises:
            OSError: the API server was not reached, or failed; Denied if the service account lacks the permission.
        """
        path = f"/apis/apps/v1/namespaces/{quote(self.namespace)}/{workload.kind}/{workload.name}/scale"
        body = {
            "apiVersion": "autoscaling/v1",
            "kind": "Scale",
            "metadata": {"name": workload.name, "namespace": self.namespace},
            "spec": {"replicas": 0},
        }
        headers = {
            "Authorization": f"Bearer {(self.account / 'token').read_text().strip()}",
            "Content-Type": "application/apply-patch+yaml",
            "Accept": "application/json",
        }
        connection = connect()
        try:
            # forced: whichever client scaled it last, the run is over now
            where = f"{path}?fieldManager={FIELD_MANAGER}&force=true"
            connection.request("PATCH", where, json.dumps(body), headers)
            answer = connection.getresponse()
            said = answer.read(65_536)
        except http.client.HTTPException as error:
            raise OSError(f"{workload}: {type(error).__name__}: {error}") from error
        finally:
            connection.close()
        if answer.status == 404:
            return False
        if answer.status in (401, 403):
            raise Denied(_message(said) or f"{workload}: HTTP {answer.status}")
        if answer.status >= 300:
            raise OSError(f"{workload}: HTTP {answer.status}: {_message(said)}")
        return True


class Release:
    """Thread that scales workloads to 0, and retries until it has done so.

    Args:
        wanted: all workloads of the run but the manager's.
        cluster: cluster of this process; None: none.
        connect: replaces the connection to the API server.
        sleep: waits for a number of seconds; returns True to end the thread.
    """

    def __init__(
        self,
        wanted: list[Workload],
        cluster: Cluster | None,
        connect: Callable[[], http.client.HTTPConnection] | None = None,
        sleep: Callable[[float], bool] | None = None,
    ) -> None:
        self._left = list(wanted)
        self._cancelled = threading.Event()
        self._cluster, self._sleep = cluster, sleep or self._cancelled.wait
        self._connect = connect or (cluster.connect if cluster is not None else None)
        self._thread = threading.Thread(target=self.run, name="release", daemon=True)
        self.said = ""
        """Outcome in a sentence, once it is known, or why it is delayed; "" before."""
        self.done = False
        """Every workload has been scaled."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def cancel(self) -> None:
        """Scale no more workloads; waits CANCEL_S at most for a request in flight."""
        self._cancelled.set()
        if self._thread.is_alive():
            self._thread.join(CANCEL_S)

    def run(self) -> None:
        """Retry until every workload is scaled, or the release is cancelled or impossible."""
        if not self._left:
            return
        if self._cluster is None or self._connect is None:
            self.said = "the pods of this run stay until `rlctl down`: its manager has no service account"
            return
        count, told, failed = len(self._left), set[str](), 0
        while self._left:
            if self._cancelled.is_set():
                return
            try:
                self._cluster.scale_to_zero(self._left[0], self._connect)
            except OSError as error:
                new = str(error) not in told
                told.add(str(error))
                if new:
                    log.warning("cannot release the run's pods yet: %s", error)
                failed += 1
                self._left.append(self._left.pop(0))  # what this one lacks, the others may have
                denied = isinstance(error, Denied)
                if (denied and new) or failed == TOLD_AFTER:
                    self.said = self._stuck(error)
                if self._sleep(DENIED_AGAIN_S if denied else AGAIN_S):
                    return
                continue
            self._left.pop(0)
            failed = 0
        self.done = True  # before it is said: a reader of `said` asks for this next
        self.said = f"the run is over: its other {count} workloads were scaled to 0"

    def _stuck(self, error: OSError) -> str:
        """Reason for the delay, and advice."""
        if isinstance(error, Denied):
            return (
                f"the pods of this run stay for now: its manager may not scale them ({error}) and asks again every "
                f"{DENIED_AGAIN_S:.0f} s; `rlctl down` removes them"
            )
        text = (
            f"the pods of this run stay for now: its manager cannot scale them ({type(error).__name__}: {error}) and "
            f"tries again every {AGAIN_S:.0f} s; `rlctl down` removes them"
        )
        if isinstance(error, TimeoutError):
            text += "; is the API server on a port that the NetworkPolicy of the manager does not allow?"
        return text


def _message(said: bytes) -> str:
    """Message in a reply of the API server."""
    try:
        return str(json.loads(said).get("message", ""))[:500]
    except (ValueError, AttributeError):
        return said[:200].decode(errors="replace")
