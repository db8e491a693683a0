"""The official client: kubeconfig, TLS, proxies, credentials and port-forwards.

Its generated calls are not used: they have a class for every kind, query the server for its kinds, and retry by rules
of their own.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final, TypeVar

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # warnings of the package itself
    import urllib3
    import yaml
    from kubernetes.client import ApiClient, Configuration
    from kubernetes.config import ConfigException, incluster_config, kube_config
    from kubernetes.stream import ws_client

from rlctl import __version__
from rlctl.backends.kubernetes.api.calls import Calls
from rlctl.backends.kubernetes.api.exchange import Answer, NoAnswer
from rlctl.backends.kubernetes.api.port_forward import Pipe
from rlctl.errors import BackendUnreachable
from rlctl.spec.names import IN_CLUSTER

T = TypeVar("T")
CONNECT_TIMEOUT_S: Final = 5.0
FORWARD_TIMEOUT_S: Final = 10.0
_KUBE: Final[Any] = kube_config  # without types
_POD: Final[Any] = incluster_config
_STREAM: Final[Any] = ws_client
_DEFAULT_CONFIG: Final = "~/.kube/config"
_POD_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_BLOCK_BYTES: Final = 1 << 16


def connect(context: str | None = None, namespace: str | None = None) -> Calls:
    """Connect to the namespace of a cluster that the kubeconfig, or the pod that we are in, names. Sends nothing.

    Args:
        context: context of the kubeconfig; None: its current one.
        namespace: namespace; None: the context's, else `default`.

    Raises:
        BackendUnreachable: there is no kubeconfig, no such context, or it is broken.
    """
    files = os.environ.get("KUBECONFIG") or _DEFAULT_CONFIG
    configuration = Configuration()
    there = any(Path(part).expanduser().exists() for part in files.split(os.pathsep) if part)
    if not there and context in (None, IN_CLUSTER) and os.environ.get("KUBERNETES_SERVICE_HOST"):
        return Calls(_in_cluster(configuration, namespace))
    if not there:
        raise BackendUnreachable(
            f"there is no kubeconfig: {files} does not exist",
            hint="Set KUBECONFIG to the file that leads to your cluster.",
            objects=(files,),
        )
    try:
        contexts, active = _KUBE.list_kube_config_contexts(files)
        chosen = active if context is None else next((each for each in contexts if each["name"] == context), None)
        if chosen is None:
            names = ", ".join(sorted(each["name"] for each in contexts)) or "none"
            raise BackendUnreachable(
                f"the kubeconfig {files} has no context {context}", hint=f"It has {names}.", objects=(context or "",)
            )
        with _credentials_of(chosen["name"]):
            _KUBE.load_kube_config(files, chosen["name"], client_configuration=configuration, persist_config=False)
    except (ConfigException, OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError) as error:
        raise BackendUnreachable(
            f"the kubeconfig {files} cannot be used: {' '.join(str(error).split())}",
            hint="kubectl config view",
            objects=(files,),
        ) from error
    usual = (chosen.get("context") or {}).get("namespace") or "default"

    def renewed() -> Any:
        other = Configuration()
        with _credentials_of(chosen["name"]):
            _KUBE.load_kube_config(files, chosen["name"], client_configuration=other, persist_config=False)
        return other

    return Calls(_Connection(configuration, chosen["name"], namespace or usual, renewed))


def _in_cluster(configuration: Any, namespace: str | None) -> _Connection:
    try:
        _POD.load_incluster_config(client_configuration=configuration)
        usual = _POD_NAMESPACE.read_text(encoding="ascii").strip()
    except (ConfigException, OSError, ValueError) as error:
        raise BackendUnreachable(f"this pod's own cluster cannot be reached: {error}") from error
    return _Connection(configuration, IN_CLUSTER, namespace or usual)


@contextmanager
def _credentials_of(context: str) -> Iterator[None]:
    """Make a failed credential plugin an error: the client only logs it, and continues without credentials.

    Raises:
        BackendUnreachable: a plugin has failed.
    """
    said: list[str] = []
    thread = threading.get_ident()

    def heard(record: logging.LogRecord) -> bool:
        if record.thread != thread or record.levelno < logging.ERROR:
            return True
        said.append(" ".join(record.getMessage().split()))
        return False

    root = logging.getLogger()
    root.addFilter(heard)
    try:
        yield
    finally:
        root.removeFilter(heard)
    if said:
        raise BackendUnreachable(
            f"there are no credentials for context {context}: its plugin in the kubeconfig failed: {'; '.join(said)}",
            hint="Log in again as your cluster asks for it, until this works: "
            f"kubectl --context {shlex.quote(context)} auth whoami",
            objects=(context,),
        )


class _Connection:
    """`calls.Connection` over kept-alive connections: one request at a time per thread.

    Args:
        renewed: reads the kubeconfig again, for credentials that the client does not renew by itself, as a token in a
            file, or certificates of a plugin. None: there is nothing to read.
    """

    def __init__(
        self, configuration: Any, context: str, namespace: str, renewed: Callable[[], Any] | None = None
    ) -> None:
        self._configuration, self._renewed = configuration, renewed
        self._client = ApiClient(configuration)
        self.context, self.namespace, self.server = context, namespace, str(configuration.host)

    def send(
        self, method: str, path: str, *, body: bytes | None, content_type: str, read_timeout_s: float
    ) -> Answer:  # fmt: skip
        answer = self._sent(method, path, body, content_type, read_timeout_s)
        if answer.status != 401 or self._renewed is None:
            return answer
        try:
            self._configuration = self._renewed()
        except (ConfigException, OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError):
            return answer
        self._client = ApiClient(self._configuration)
        answer.close()
        return self._sent(method, path, body, content_type, read_timeout_s)

    def _sent(self, method: str, path: str, body: bytes | None, content_type: str, read_timeout_s: float) -> Answer:
        headers = {"Accept": "application/json", "User-Agent": f"rlctl/{__version__}", **self._credentials()}
        if "/log" not in path and "watch=true" not in path:
            headers["Accept-Encoding"] = "gzip"
        if body is not None:
            headers["Content-Type"] = content_type
        try:
            response = self._client.rest_client.pool_manager.request(
                method,
                self.server + path,
                body=body,
                headers=headers,
                preload_content=False,
                redirect=False,
                retries=False,
                timeout=urllib3.Timeout(connect=CONNECT_TIMEOUT_S, read=read_timeout_s),
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise NoAnswer(_why(error)) from error

        def close() -> None:
            with suppress(urllib3.exceptions.HTTPError, OSError):
                if not response.closed:  # the rest of the reply is not wanted
                    response.close()
                response.release_conn()

        found = {name.lower(): value for name, value in response.headers.items()}
        return Answer(int(response.status), found, _chunks(response), close)

    def _credentials(self) -> dict[str, str]:
        """Current headers: the credentials of a plugin expire and are requested again."""
        found = {}
        with _credentials_of(self.context):
            settings = self._configuration.auth_settings()
        for each in settings.values():
            if each and each.get("in") == "header" and each.get("value"):
                found[str(each["key"])] = str(each["value"])
        return found

    @contextmanager
    def forward(self, pod: str, port: int) -> Iterator[socket.socket]:
        path = f"{self.server}/api/v1/namespaces/{self.namespace}/pods/{pod}/portforward"
        url = _STREAM.get_websocket_url(path, [("ports", str(port))])
        pipe = Pipe(_within(FORWARD_TIMEOUT_S, lambda: self._websocket(url)))
        try:
            yield pipe.near
        except (OSError, HTTPException) as error:
            if pipe.error:
                raise NoAnswer(pipe.error) from error
            raise
        finally:
            pipe.close()

    def _websocket(self, url: str) -> Any:
        try:
            return _STREAM.create_websocket(self._configuration, url, self._credentials())
        except Exception as error:  # from a package that only the client knows; no error of ours can come from here
            status = getattr(error, "status_code", 0)
            raise NoAnswer(_refused(error), 403 if status == 403 else 0) from error


def _within(seconds: float, act: Callable[[], T]) -> T:
    """Result of `act`, run in a thread of its own, since it has no timeout.

    Raises:
        NoAnswer: raised by `act`, or it does not return in time.
    """
    found: list[T] = []
    failed: list[NoAnswer] = []

    def run() -> None:
        try:
            found.append(act())
        except NoAnswer as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="open a forward", daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    if not found:
        raise NoAnswer(f"no answer within {seconds:g} s")
    return found[0]


def _refused(error: Exception) -> str:
    """Reason why a WebSocket was not opened: the server's message, else the connection's error."""
    body = getattr(error, "resp_body", None)
    with suppress(ValueError, TypeError, LookupError):
        return str(json.loads(body or b"")["message"])
    status = getattr(error, "status_code", None)
    return f"HTTP {status}" if status else _why(error)


def _chunks(response: Any) -> Iterator[bytes]:
    try:
        yield from response.stream(_BLOCK_BYTES, decode_content=True)
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise NoAnswer(_why(error)) from error


def _why(error: BaseException) -> str:
    """The innermost cause, on one line."""
    reason = getattr(error, "reason", None) or error
    lines = str(reason).strip().splitlines()
    text = lines[0] if lines else type(reason).__name__
    return text.rpartition("object at 0x")[2].partition(": ")[2] or text if "object at 0x" in text else text
