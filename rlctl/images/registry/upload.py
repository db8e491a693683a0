"""Writes to a registry by the OCI distribution API: blobs and manifests, each under the digest of its content."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, Final

from rlctl.errors import BackendUnreachable
from rlctl.images.registry import redirects
from rlctl.images.registry.reference import Reference, host

TIMEOUT_S: Final = 60.0
MAX_DOCUMENT: Final = 4 << 20
MAX_BLOB: Final = 8 << 30
MANIFESTS: Final = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_CHALLENGE = re.compile(r'([a-z]+)="([^"]*)"')
_PART: Final = 1 << 20
_PAGE: Final = 1000
_PAGES: Final = 1000
_NEXT = re.compile(r'<([^>]*)>\s*;\s*rel="?next')


@dataclass
class Uploader:
    """One registry.

    Args:
        registry: as in the names of its images.
        scheme: https, or http on loopback.
        credentials: user and password for it, or None.
    """

    registry: str
    scheme: str = "https"
    credentials: Callable[[str], tuple[str, str] | None] = lambda _: None
    _tokens: dict[str, str] = field(default_factory=dict)  # scope -> Authorization

    def document(self, image: Reference, digest: str = "", *, blob: bool = False) -> tuple[bytes, str] | None:
        """A manifest or a configuration with its media type; None when it is not there.

        Raises:
            BackendUnreachable: the registry does not answer or refuses, or the content is not what its digest says.
        """
        name = digest or image.digest or image.tag or "latest"
        path = f"{image.repository}/{'blobs' if blob else 'manifests'}/{name}"
        found = self._call("GET", path, image, accept="*/*" if blob else ", ".join(MANIFESTS), missing=True)
        if found is None:
            return None
        body, headers = found
        if name.startswith("sha256:") and sha256(body) != name:
            raise _refused(image, f"{name} has another content")
        return body, headers.get("Content-Type", "")

    def has(self, image: Reference, digest: str) -> bool:
        """Whether a blob is there."""
        return self._call("HEAD", f"{image.repository}/blobs/{digest}", image, missing=True) is not None

    def mount(self, image: Reference, digest: str, origin: Reference) -> bool:
        """Take a blob over from another repository of this registry; False when it has to be sent."""
        query = urllib.parse.urlencode({"mount": digest, "from": origin.repository})
        found = self._call("POST", f"{image.repository}/blobs/uploads/?{query}", image, data=b"", also=origin)
        assert found is not None
        return found[1].get("rlctl-status") == "201"

    def send(self, image: Reference, content: bytes) -> str:
        """A blob, unless it is there; returns its digest."""
        digest = sha256(content)
        if not self.has(image, digest):
            self._send(image, digest, content)
        return digest

    def send_file(self, image: Reference, path: Path, digest: str) -> None:
        """A blob that is a file, unless it is there."""
        if not self.has(image, digest):
            with path.open("rb") as file:
                self._send(image, digest, file)

    def copy(self, image: Reference, digest: str, origin: Reference, source: Uploader) -> None:
        """A blob of another repository, which may lie in another registry; it holds gigabytes, so it passes a file."""
        if self.has(image, digest) or (self.registry == source.registry and self.mount(image, digest, origin)):
            return
        with tempfile.TemporaryFile() as file:
            source._call("GET", f"{origin.repository}/blobs/{digest}", origin, accept="*/*", most=MAX_BLOB, into=file)
            file.seek(0)
            if f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}" != digest:
                raise _refused(origin, f"{digest} has another content")
            self._send(image, digest, file)

    def _send(self, image: Reference, digest: str, content: bytes | IO[bytes]) -> None:
        found = self._call("POST", f"{image.repository}/blobs/uploads/", image, data=b"")
        assert found is not None
        location = urllib.parse.urljoin(f"{self.scheme}://{host(self.registry)}/v2/", found[1].get("Location", ""))
        if urllib.parse.urlsplit(location).netloc != host(self.registry):
            raise _refused(image, "it wants the upload elsewhere")
        separator = "&" if "?" in location else "?"
        where = f"{location}{separator}{urllib.parse.urlencode({'digest': digest})}"
        self._call("PUT", where, image, data=content, kind="application/octet-stream")

    def put(self, image: Reference, manifest: bytes, kind: str) -> str:
        """A manifest, under the tag of the name; returns its digest."""
        digest = sha256(manifest)
        self._call("PUT", f"{image.repository}/manifests/{image.tag or digest}", image, data=manifest, kind=kind)
        return digest

    def remove(self, image: Reference) -> None:
        """A manifest by digest; the registry's own collector frees the space."""
        self._call("DELETE", f"{image.repository}/manifests/{image.digest}", image, missing=True)

    def tags(self, image: Reference) -> list[str]:
        """Of a repository, page by page."""
        tags: list[str] = []
        path = f"{image.repository}/tags/list?n={_PAGE}"
        for _ in range(_PAGES):
            found = self._call("GET", path, image, accept="application/json", missing=True)
            if found is None:
                break
            tags += [str(tag) for tag in json.loads(found[0]).get("tags") or ()]
            more = _NEXT.search(found[1].get("Link", ""))
            if more is None:
                break
            path = f"{image.repository}/tags/list?{urllib.parse.urlsplit(more[1]).query}"
        return tags

    def _call(
        self, method: str, path: str, image: Reference, *, data: bytes | IO[bytes] | None = None, accept: str = "",
        kind: str = "", missing: bool = False, most: int = MAX_DOCUMENT, also: Reference | None = None,
        into: IO[bytes] | None = None,
    ) -> tuple[bytes, HTTPMessage] | None:  # fmt: skip
        url = path if "://" in path else f"{self.scheme}://{host(self.registry)}/v2/{path}"
        writes = method not in ("GET", "HEAD")
        rights = "pull" if not writes else "pull,push,delete" if method == "DELETE" else "pull,push"
        scope = f"repository:{image.repository}:{rights}"
        scope += f" repository:{also.repository}:pull" if also is not None else ""
        for attempt in range(2):
            headers = {"Authorization": self._tokens[scope]} if scope in self._tokens else {}
            headers |= {"Accept": accept} if accept else {}
            headers |= {"Content-Type": kind} if kind else {}
            try:
                return self._open(method, url, headers, data, most, into)
            except urllib.error.HTTPError as error:
                with error:
                    challenge = error.headers.get("WWW-Authenticate", "")
                    said = error.read(500).decode("utf-8", "replace")
                if error.code == 404 and missing:
                    return None
                if error.code == 401 and challenge and not attempt:
                    self._tokens[scope] = self._authorise(image, challenge, scope)
                    continue
                raise _refused(image, f"{method} {error.code}: {' '.join(said.split())[:200]}") from error
            except (OSError, ValueError, HTTPException) as error:
                raise _refused(image, str(getattr(error, "reason", None) or error)) from error
        raise AssertionError("unreachable")

    def _authorise(self, image: Reference, challenge: str, scope: str) -> str:
        known = self.credentials(self.registry)
        basic = "" if known is None else f"Basic {base64.b64encode(':'.join(known).encode()).decode()}"
        if challenge.lower().startswith("basic"):
            return basic
        fields = dict(_CHALLENGE.findall(challenge))
        realm = fields.get("realm", "")
        where = urllib.parse.urlsplit(realm)
        if not redirects.trusted(where.scheme, where.hostname, self.scheme):
            raise _refused(image, "its realm is no address that proves who it is")
        query = urllib.parse.urlencode(
            [
                *([("service", fields["service"])] if "service" in fields else []),
                *(("scope", one) for one in scope.split(" ")),
            ]
        )
        known_as = {"Authorization": basic} if basic else {}
        try:
            answer = json.loads(self._open("GET", f"{realm}?{query}", known_as, None, MAX_DOCUMENT)[0])
        except (OSError, ValueError, HTTPException) as error:
            raise _refused(image, f"no token: {getattr(error, 'reason', None) or error}") from error
        return f"Bearer {answer.get('token') or answer.get('access_token') or ''}"

    def _open(
        self, method: str, url: str, headers: Mapping[str, str], data: bytes | IO[bytes] | None, most: int,
        into: IO[bytes] | None = None,
    ) -> tuple[bytes, HTTPMessage]:  # fmt: skip
        """The body, empty where it goes `into` a file."""
        if not url.startswith(f"{self.scheme}://") and not url.startswith("https://"):
            raise ValueError(f"not an address of a registry: {url}")
        request = urllib.request.Request(url, data=data, method=method)
        if data is not None and not isinstance(data, bytes):
            request.add_unredirected_header("Content-Length", str(data.seek(0, os.SEEK_END)))
            data.seek(0)
        for key, value in headers.items():
            request.add_unredirected_header(key, value)  # storage that a blob lies in is not told who we are
        with redirects.opener(host(self.registry), redirects.certificates()).open(request, timeout=TIMEOUT_S) as answer:
            found: HTTPMessage = answer.headers
            found["rlctl-status"] = str(answer.status)
            body: bytes = b"" if into is not None else answer.read(most + 1)
            size = len(body)
            while into is not None and size <= most and (part := answer.read(_PART)):
                size += into.write(part)
            if size > most:
                raise ValueError(f"longer than {most >> 20} MiB: {url}")
            return body, found


def sha256(content: bytes) -> str:
    """`sha256:<64 hex digits>`."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _refused(image: Reference, why: str) -> BackendUnreachable:
    return BackendUnreachable(
        f"registry {image.registry}: {image.repository}: {why}",
        hint="check the registry, its credentials and the network",
        objects=(str(image),),
    )
