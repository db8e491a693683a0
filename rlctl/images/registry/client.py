"""Client of the OCI distribution API: manifests and blobs are read and written under the digest of their content."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import ssl
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

from rlctl.errors import BackendUnreachable
from rlctl.image_names import Reference, host
from rlctl.images.registry import redirects

TIMEOUT_S: Final = 20.0
_TRANSFER_S: Final = 60.0
"""Timeout of a request that writes, or reads a layer."""
MAX_BYTES: Final = 4 << 20
"""Bytes of a manifest or a configuration, at most: registries refuse larger ones."""
_MAX_BLOB: Final = 8 << 30
USUAL: Final = {"architecture": "amd64", "os": "linux"}
"""Platform of most nodes."""
_KINDS: Final = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_MOST_KINDS: Final = 64
"""Images of one index that are read, at most."""
_CHALLENGE: Final = re.compile(r'([a-z]+)="([^"]*)"')
_NEXT: Final = re.compile(r'<([^>]*)>\s*;\s*rel="?next')
_PART: Final = 1 << 20
_PAGE: Final = 1000
_PAGES: Final = 1000


class Blob(NamedTuple):
    """A layer as it is pulled."""

    digest: str
    size: int  # bytes, compressed


@dataclass(frozen=True, slots=True)
class Manifest:
    """Manifest of an image in a registry. An index, of an image for several platforms, has no layers and no labels."""

    digest: str
    layers: tuple[Blob, ...] = ()
    config: str = ""  # digest
    kinds: tuple[str, ...] = ()  # digests of the images of an index

    @property
    def size(self) -> int:
        """Bytes that a node without any of the layers pulls."""
        return sum(layer.size for layer in self.layers)


class _Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Registry:
    """Client of image registries; the name of an image says which one.

    Every method raises BackendUnreachable if a registry does not answer, refuses, or sends content that does not match
    its digest.

    Args:
        verify: verify certificates; False: accept any, and plain HTTP.
        credentials: user and password for a registry, or None.
        timeout_s: timeout of one request that reads a manifest or a configuration.
        plain: a registry that speaks plain HTTP, whatever `verify` says.
    """

    verify: bool = True
    credentials: Callable[[str], tuple[str, str] | None] = lambda _: None
    timeout_s: float = TIMEOUT_S
    plain: str | None = None
    _tokens: dict[tuple[str, str], str] = field(default_factory=dict)  # registry, scope -> Authorization

    def manifest(self, image: Reference) -> Manifest | None:
        """The manifest of an image; None if there is none."""
        found = self.document(image)
        return None if found is None else _parsed(image, found[0])

    def size(self, image: Reference) -> int | None:
        """Bytes that a node without any of the layers pulls; of an image for several platforms, those for USUAL.

        Returns:
            None: there is no such image, or none for USUAL.
        """
        read = self.document(image)
        if read is None:
            return None
        kinds = _json(image, read[0]).get("manifests") or []
        if not kinds:
            return _parsed(image, read[0]).size
        usual = next((str(kind["digest"]) for kind in kinds if USUAL.items() <= kind.get("platform", {}).items()), None)
        found = self.manifest(image.by_digest(usual)) if usual else None
        return None if found is None else found.size

    def label(self, image: Reference, name: str) -> str | None:
        """A label of an image; for an index, of its first image that has it.

        Returns:
            Empty: it has no such label. None: there is no such image.
        """
        manifest = self.manifest(image)
        if manifest is None:
            return None
        if len(manifest.kinds) > _MOST_KINDS:
            raise _refused(image, f"it lists more than {_MOST_KINDS} images", "name one of them")
        for kind in manifest.kinds:
            if said := self.label(image.by_digest(kind), name):
                return said
        return str(self.labels(image, manifest).get(name, ""))

    def labels(self, image: Reference, manifest: Manifest) -> Mapping[str, str]:
        """Labels of an image; none for an index."""
        found = self.document(image, manifest.config, blob=True) if manifest.config else None
        return {} if found is None else _json(image, found[0]).get("config", {}).get("Labels") or {}

    def document(self, image: Reference, digest: str = "", *, blob: bool = False) -> tuple[bytes, str] | None:
        """A manifest or a configuration with its media type; None if it does not exist."""
        name = digest or image.digest or image.tag or "latest"
        path, accept = f"{'blobs' if blob else 'manifests'}/{name}", "*/*" if blob else ", ".join(_KINDS)
        found = self._call("GET", image, path, {"Accept": accept})
        if found is None:
            return None
        if name.startswith("sha256:") and sha256(found.body) != name:
            raise _refused(image, f"{name} has another content")
        return found.body, found.headers.get("Content-Type", "")

    def has(self, image: Reference, digest: str) -> bool:
        """Whether a blob exists."""
        return self._call("HEAD", image, f"blobs/{digest}") is not None

    def send(self, image: Reference, content: bytes) -> str:
        """Upload a blob unless it exists; returns its digest."""
        digest = sha256(content)
        if not self.has(image, digest):
            self._send(image, digest, content)
        return digest

    def send_file(self, image: Reference, path: Path, digest: str) -> None:
        """Upload a file as a blob unless it exists."""
        if not self.has(image, digest):
            with path.open("rb") as file:
                self._send(image, digest, file)

    def copy(self, image: Reference, digest: str, origin: Reference) -> None:
        """Copy a blob from another repository: mounted if it is in the same registry, else sent through a file."""
        if self.has(image, digest) or (image.registry == origin.registry and self._mount(image, digest, origin)):
            return
        with tempfile.TemporaryFile() as file:
            if self._call("GET", origin, f"blobs/{digest}", {"Accept": "*/*"}, into=file) is None:
                raise _refused(origin, f"{digest} is not there")
            file.seek(0)
            if f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}" != digest:
                raise _refused(origin, f"{digest} has another content")
            self._send(image, digest, file)

    def put(self, image: Reference, manifest: bytes, kind: str) -> str:
        """Write a manifest under the image's tag, else its digest; returns the digest."""
        digest = sha256(manifest)
        self._call("PUT", image, f"manifests/{image.tag or digest}", {"Content-Type": kind}, manifest)
        return digest

    def remove(self, image: Reference) -> None:
        """Delete a manifest by digest; the registry's garbage collection frees the space."""
        self._call("DELETE", image, f"manifests/{image.digest}")

    def tags(self, image: Reference) -> list[str]:
        """Tags of a repository, page by page."""
        tags: list[str] = []
        path = f"tags/list?n={_PAGE}"
        for _ in range(_PAGES):
            found = self._call("GET", image, path, {"Accept": "application/json"})
            if found is None:
                break
            tags += [str(tag) for tag in json.loads(found.body).get("tags") or ()]
            more = _NEXT.search(found.headers.get("Link", ""))
            if more is None:
                break
            path = f"tags/list?{urllib.parse.urlsplit(more[1]).query}"
        return tags

    def _mount(self, image: Reference, digest: str, origin: Reference) -> bool:
        """Mount a blob of another repository of this registry; False if it has to be sent."""
        query = urllib.parse.urlencode({"mount": digest, "from": origin.repository})
        found = self._call("POST", image, f"blobs/uploads/?{query}", data=b"", also=origin)
        return found is not None and found.status == 201

    def _send(self, image: Reference, digest: str, content: bytes | IO[bytes]) -> None:
        begun = self._call("POST", image, "blobs/uploads/", data=b"")
        assert begun is not None
        to = urllib.parse.urlsplit(begun.headers.get("Location", ""))
        if to.netloc not in ("", host(image.registry)):
            raise _refused(image, "it wants the upload elsewhere")
        query = f"{to.query}&" if to.query else ""
        path = urllib.parse.urljoin("/v2/", f"{to.path}?{query}{urllib.parse.urlencode({'digest': digest})}")
        self._call("PUT", image, path, {"Content-Type": "application/octet-stream"}, content)

    def _call(
        self, method: str, image: Reference, path: str, headers: Mapping[str, str] | None = None,
        data: bytes | IO[bytes] | None = None, *, also: Reference | None = None, into: IO[bytes] | None = None,
    ) -> _Answer | None:  # fmt: skip
        """Send a request, with the schemes that this registry may speak.

        Args:
            path: below the repository of the image, or from the root of the registry.
            also: a further repository that the request reads.
            into: file that takes the body.

        Returns:
            None: 404 to a request that reads or deletes.
        """
        where = path if path.startswith("/") else f"/v2/{image.repository}/{path}"
        plain = image.registry == self.plain
        for scheme in ("http",) if plain else ("https",) if self.verify else ("https", "http"):
            url, said = f"{scheme}://{host(image.registry)}{where}", ""
            try:
                return self._authorised(method, image, url, headers or {}, data, also, into)
            except urllib.error.HTTPError as error:
                with error, suppress(OSError, HTTPException):
                    said = " ".join(error.read(500).decode("utf-8", "replace").split())[:200]
                if error.code == 404 and method in ("GET", "HEAD", "DELETE"):
                    return None
                why = f"{error.code} {error.reason}" + (f": {said}" if said else "")
                hint = "check who you are logged in as" if error.code in (401, 403) else "try again later"
                raise _refused(image, why, hint, method) from error
            except (OSError, ValueError, HTTPException) as error:  # URLError is an OSError
                if scheme == "http" or self.verify:
                    reason = str(getattr(error, "reason", None) or error)
                    hint = "check --registry and the network" + ("; plain HTTP: --no-tls-verify" if self.verify else "")
                    raise _refused(image, reason, hint, method) from error
        raise AssertionError("unreachable")

    def _authorised(
        self, method: str, image: Reference, url: str, headers: Mapping[str, str], data: bytes | IO[bytes] | None,
        also: Reference | None, into: IO[bytes] | None,
    ) -> _Answer:  # fmt: skip
        """Send a request; once more with the authorisation that the registry's challenge demands."""
        rights = {"GET": "pull", "HEAD": "pull", "DELETE": "pull,push,delete"}.get(method, "pull,push")
        scope = f"repository:{image.repository}:{rights}"
        scope += f" repository:{also.repository}:pull" if also is not None else ""
        known = image.registry, scope
        for again in (True, False):
            given = {**headers, "Authorization": self._tokens[known]} if self._tokens.get(known) else headers
            try:
                return self._open(url, given, image.registry, method, data, into)
            except urllib.error.HTTPError as error:
                challenge = error.headers.get("WWW-Authenticate", "")
                if not again or error.code != 401 or not challenge:
                    raise
                error.close()
            self._tokens[known] = self._authorise(image, challenge, scope, urllib.parse.urlsplit(url).scheme)
        raise AssertionError("unreachable")

    def _authorise(self, image: Reference, challenge: str, scope: str, scheme: str) -> str:
        known = self.credentials(image.registry)
        basic = "" if known is None else f"Basic {base64.b64encode(':'.join(known).encode()).decode()}"
        if challenge.lower().startswith("basic"):
            return basic
        fields = dict(_CHALLENGE.findall(challenge))
        realm = urllib.parse.urlsplit(fields.get("realm", ""))
        if not redirects.trusted(realm.scheme, realm.hostname, scheme, any_http=not self.verify):
            raise ValueError("its realm is no address that proves who it is")
        asked = [(key, fields[key]) for key in ("service",) if key in fields]
        query = urllib.parse.urlencode([*asked, *(("scope", one) for one in scope.split(" "))])
        headers = {"Authorization": basic} if basic else {}
        try:
            answer = _json(image, self._open(f"{realm.geturl()}?{query}", headers, image.registry).body)
        except urllib.error.HTTPError as error:
            with error:
                raise _refused(image, f"no token: {error.code} {error.reason}") from error
        return f"Bearer {answer.get('token') or answer.get('access_token') or ''}"

    def _open(
        self, url: str, headers: Mapping[str, str], registry: str, method: str = "GET",
        data: bytes | IO[bytes] | None = None, into: IO[bytes] | None = None,
    ) -> _Answer:  # fmt: skip
        """Send a request to a URL.

        Args:
            registry: registry that named the URL.
        """
        if not url.startswith(("https://", "http://")):
            raise ValueError(f"not an address of a registry: {url}")
        request = urllib.request.Request(url, data=data, method=method)
        if data is not None and not isinstance(data, bytes):
            request.add_unredirected_header("Content-Length", str(data.seek(0, os.SEEK_END)))
            data.seek(0)
        for key, value in headers.items():
            request.add_unredirected_header(key, value)  # storage that a blob is in gets no credentials
        context = redirects.certificates() if self.verify else _blind()
        opener = redirects.opener(host(registry), context, any_http=not self.verify)
        timeout_s = self.timeout_s if data is None and into is None else _TRANSFER_S
        with opener.open(request, timeout=timeout_s) as answer:
            most = MAX_BYTES if into is None else _MAX_BLOB
            body: bytes = b"" if into is not None else answer.read(most + 1)
            size = len(body)
            while into is not None and size <= most and (part := answer.read(_PART)):
                size += into.write(part)
            if size > most:
                raise ValueError(f"longer than {most >> 20} MiB: {url}")
            return _Answer(answer.status, answer.headers, body)


def sha256(content: bytes) -> str:
    """Digest of content: `sha256:<64 hex digits>`."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _blind() -> ssl.SSLContext:
    """TLS without verification of certificates."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _parsed(image: Reference, body: bytes) -> Manifest:
    content = _json(image, body)
    try:
        return Manifest(
            digest=sha256(body),
            layers=tuple(Blob(layer["digest"], layer["size"]) for layer in content.get("layers") or ()),
            config="" if "manifests" in content else content["config"]["digest"],
            kinds=tuple(str(kind["digest"]) for kind in content.get("manifests") or ()),
        )
    except (KeyError, TypeError) as error:
        raise _refused(image, "its answer is no manifest of an image", "check the name of the registry") from error


def _json(image: Reference, body: bytes) -> dict[str, Any]:
    try:
        content = json.loads(body)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise _refused(image, "its answer is no JSON object", "check --registry")
    return content


def _refused(image: Reference, why: str, hint: str = "", method: str = "GET") -> BackendUnreachable:
    reads = method in ("GET", "HEAD")
    return BackendUnreachable(
        f"registry {image.registry} does not {'say what' if reads else 'take'} {image}{' is' if reads else ''}: {why}",
        hint=hint or "check the registry, its credentials and the network",
        objects=(str(image),),
    )
