"""HTTP client of the service, for the verbs of the command line. Uses the standard library alone."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rlctl.errors import BackendUnreachable, Conflict, RlctlError, UsageError
from rlctl.spec.layout import state_home

DEFAULT_URL: Final = "http://127.0.0.1:8710"
ADDRESS_FILE: Final = "address"
"""File beside the token of this machine's owner: the one address that this token is sent to."""
TIMEOUT_S: Final = 600.0  # the reply to a rollback comes when the run is back
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class Client:
    """Client of one service.

    Args:
        url: address of the service.
        token: bearer token of this person; empty: none is sent.
        token_file: file that the token was read from, for error messages.
        host: `Host:` header of hooks; empty: that of `url`.
        withheld: why the token of this machine's owner is not sent, and what to do.
    """

    url: str
    token: str = ""
    token_file: Path | None = None
    host: str = ""
    withheld: str = ""

    @classmethod
    def of(cls, environ: Mapping[str, str], url: str | None, token_file: Path | None) -> Client:
        """Client of the service that the command line, else the environment names; only that of this machine is told
        its owner's token, which never expires: another program may listen on loopback.

        Raises:
            UsageError: the token cannot be read.
        """
        usual, known = _own_service()
        where = (url or environ.get("RLCTL_CI_URL") or known or DEFAULT_URL).rstrip("/")
        if urllib.parse.urlsplit(where).scheme not in ("http", "https"):
            raise UsageError(f"{where} is no address of a service", hint="--url https://ci.example.org")
        named = token_file or (Path(environ["RLCTL_CI_TOKEN_FILE"]) if environ.get("RLCTL_CI_TOKEN_FILE") else None)
        withheld = ""
        if named is None and usual is not None:
            if where == known:
                named = usual
            else:
                where_it_is = f"--url {known}, or --token-file FILE" if known else "its next start says where that is"
                withheld = f"the token in {usual} goes to its own service alone: {where_it_is}"
        if named is None:
            return cls(where, withheld=withheld)
        try:
            return cls(where, named.read_text().strip(), named)
        except OSError as error:
            raise UsageError(f"{named} cannot be read: {(error.strerror or str(error)).lower()}") from error

    def get(self, path: str, **query: object) -> Any:
        """JSON reply to a GET request; query parameters that are None are left out.

        Raises:
            RlctlError: the service refuses the request.
            BackendUnreachable: no service answers, or the token is refused.
        """
        asked = {key: value for key, value in query.items() if value is not None}
        return self._json(self._call("GET", f"{path}?{urllib.parse.urlencode(asked)}" if asked else path)[0])

    def post(self, path: str) -> Any:
        """JSON reply to a POST request; raises as `get`."""
        return self._json(self._call("POST", path, b"{}")[0] or b"null")

    def log(self, build: int, offset: int) -> tuple[str, int, str]:
        """Log of a build from a byte offset on, the offset after it, and the state of the build."""
        body, headers = self._call("GET", f"/api/v1/builds/{build}/log?offset={offset}")
        try:
            offset, state = int(headers["x-next-offset"]), str(headers["x-build-state"])
        except (TypeError, ValueError) as error:
            raise self._foreign(error) from error
        return body.decode("utf-8", "replace"), offset, state

    def hook(self, path: str, headers: Sequence[tuple[str, str]], body: bytes) -> tuple[int, str]:
        """Send a delivery; returns status and text of the reply, whatever the status.

        Raises:
            BackendUnreachable: no service answers.
        """
        said = {**dict(headers), **({"Host": self.host} if self.host else {})}
        request = urllib.request.Request(f"{self.url}{path}", data=body, headers=said, method="POST")
        try:
            with self._open(request, 30) as answer:
                return int(answer.status), answer.read(4096).decode("utf-8", "replace").strip()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read(4096).decode("utf-8", "replace").strip()
        except OSError as error:
            raise self._silent(error) from error

    def _open(self, request: urllib.request.Request, timeout_s: float) -> Any:
        """Send a request; one to this machine goes through no proxy."""
        here = urllib.parse.urlsplit(self.url).hostname in _LOOPBACK
        direct = [urllib.request.ProxyHandler({})] if here else []
        return urllib.request.build_opener(*direct).open(request, timeout=timeout_s)

    def _call(self, method: str, path: str, data: bytes | None = None) -> tuple[bytes, Any]:
        request = urllib.request.Request(f"{self.url}{path}", data=data, method=method)
        request.add_header("Accept", "application/json, text/plain")
        if self.token:
            request.add_unredirected_header("Authorization", f"Bearer {self.token}")
        try:
            with self._open(request, TIMEOUT_S) as answer:
                return answer.read(), answer.headers
        except urllib.error.HTTPError as error:
            with error:
                raise self._error(error.code, error.read(65_536)) from error
        except OSError as error:
            raise self._silent(error) from error
        except http.client.HTTPException as error:
            raise self._foreign(error) from error

    def _json(self, text: bytes) -> Any:
        try:
            return json.loads(text)
        except ValueError as error:  # a login page, say
            raise self._foreign(error) from error

    def _foreign(self, error: Exception) -> BackendUnreachable:
        return BackendUnreachable(
            f"{self.url} does not answer as rlctl ci does: {type(error).__name__}", hint="--url", objects=(self.url,)
        )

    def _silent(self, error: OSError) -> BackendUnreachable:
        reason = getattr(error, "reason", None) or error
        return BackendUnreachable(
            f"no service answers at {self.url}: {reason}", hint="rlctl ci serve, or --url", objects=(self.url,)
        )

    def _error(self, status: int, body: bytes) -> RlctlError:
        try:
            told = json.loads(body)
            message, hint = str(told["error"]), str(told.get("hint") or "")
        except (ValueError, KeyError, TypeError):
            message, hint = body.decode("utf-8", "replace").strip()[:200] or f"HTTP {status}", ""
        if status in (401, 403):
            used = f" (of {self.token_file})" if self.token_file is not None else ""
            return BackendUnreachable(
                f"{self.url} refuses: {message}{used}",
                hint=self.withheld or hint or "--token-file, or RLCTL_CI_TOKEN_FILE",
            )
        if status == 409:
            return Conflict(message, hint=hint)
        if status in (400, 404):
            return UsageError(message, hint=hint)
        return BackendUnreachable(f"{self.url}: {message}", hint=hint)


def _own_service() -> tuple[Path | None, str]:
    """Token file of this user's service, and the address that it is for; None and "" where there is none."""
    try:
        token = state_home() / "ci" / "token"
        address = token.with_name(ADDRESS_FILE)
        return token if token.is_file() else None, address.read_text().strip() if address.is_file() else ""
    except (OSError, UsageError):  # no home, or one that may not be entered
        return None, ""
