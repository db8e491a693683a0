"""Asks a registry what it holds; it is written to by builders alone. HTTP, no further package."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rlctl.errors import BackendUnreachable
from rlctl.images.registry import redirects
from rlctl.images.registry.reference import HUB, Reference, host

TIMEOUT_S: Final = 20.0
MAX_BYTES: Final = 4 << 20
"""Of a manifest or a configuration: registries refuse larger ones."""
USUAL: Final = {"architecture": "amd64", "os": "linux"}
"""The kind of machine that most nodes are."""
_KINDS: Final = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_MOST_KINDS: Final = 64
"""Images of one list that are looked at."""
_HUB_LOGIN: Final = "https://index.docker.io/v1/"
"""What `docker login` without a name writes down."""
_CHALLENGE = re.compile(r'([a-z]+)="([^"]*)"')


@dataclass(frozen=True, slots=True)
class Layer:
    """As it is pulled."""

    digest: str
    size: int  # bytes, compressed


@dataclass(frozen=True, slots=True)
class Manifest:
    """One image in a registry. The list of an image for several kinds of machine has neither layers nor labels."""

    digest: str
    layers: tuple[Layer, ...] = ()
    config: str = ""  # digest
    kinds: tuple[str, ...] = ()  # digests of the images in such a list

    @property
    def size(self) -> int:
        """Bytes that a node without any of it pulls."""
        return sum(layer.size for layer in self.layers)


@dataclass(frozen=True, slots=True)
class Registry:
    """Reads manifests.

    Args:
        verify: certificates; False: they are not looked at, and plain HTTP will do.
        credentials: user and password for a registry, or None.
        timeout_s: of one request.
        plain: a registry that speaks plain HTTP, whatever holds for all others.
    """

    verify: bool = True
    credentials: Callable[[str], tuple[str, str] | None] = lambda _: None
    timeout_s: float = TIMEOUT_S
    plain: str | None = None

    def manifest(self, image: Reference) -> Manifest | None:
        """The manifest that a name stands for; None when there is none.

        Raises:
            BackendUnreachable: the registry does not answer, or refuses.
        """
        body = self._manifest(image)
        if body is None:
            return None
        return _parsed(image, body)

    def size(self, image: Reference) -> int | None:
        """Bytes that a node without any of it pulls; of an image for several kinds of machine, those of the usual one.

        Returns:
            None: there is none, or none for the usual kind of machine.

        Raises:
            BackendUnreachable: the registry does not answer, or refuses.
        """
        body = self._manifest(image)
        if body is None:
            return None
        content = _json(image, body)
        kinds = content.get("manifests") or []
        if not kinds:
            return _parsed(image, body).size
        usual = next((str(kind["digest"]) for kind in kinds if USUAL.items() <= kind.get("platform", {}).items()), None)
        found = self.manifest(image.by_digest(usual)) if usual else None
        return None if found is None else found.size

    def label(self, image: Reference, name: str) -> str | None:
        """A label of an image; of one for several kinds of machine, of the first of them that has it.

        Returns:
            Empty: it has no such label. None: there is no such image.

        Raises:
            BackendUnreachable: the registry does not answer, or refuses.
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
        """Labels of an image; none for the list of an image for several kinds of machine.

        Raises:
            BackendUnreachable: the registry does not answer, or refuses.
        """
        body = self._get(image, f"blobs/{manifest.config}", "*/*") if manifest.config else None
        return {} if body is None else _json(image, body).get("config", {}).get("Labels") or {}

    def _manifest(self, image: Reference) -> bytes | None:
        return self._get(image, f"manifests/{image.digest or image.tag or 'latest'}", ", ".join(_KINDS))

    def _get(self, image: Reference, path: str, accept: str) -> bytes | None:
        schemes = ("http",) if image.registry == self.plain else ("https",) if self.verify else ("https", "http")
        for scheme in schemes:
            url = f"{scheme}://{host(image.registry)}/v2/{image.repository}/{path}"
            try:
                return self._authorised(image, url, accept)
            except urllib.error.HTTPError as error:
                error.close()
                if error.code == 404:
                    return None
                raise _refused(image, f"{error.code} {error.reason}", "check who you are logged in as") from error
            except (OSError, ValueError) as error:  # URLError is an OSError
                if scheme == schemes[-1]:
                    reason = getattr(error, "reason", None) or error
                    hint = "check --registry and the network" + ("; plain HTTP: --no-tls-verify" if self.verify else "")
                    raise _refused(image, str(reason), hint) from error
        raise AssertionError("unreachable")

    def _authorised(self, image: Reference, url: str, accept: str) -> bytes:
        """The body; asked for once more with what the registry's challenge demands."""
        headers = {"Accept": accept}
        try:
            return self._open(url, headers)
        except urllib.error.HTTPError as error:
            challenge = error.headers.get("WWW-Authenticate", "")
            if error.code != 401 or not challenge:
                raise
            error.close()
        known = self.credentials(image.registry)
        basic = {}
        if known is not None:
            basic["Authorization"] = f"Basic {base64.b64encode(':'.join(known).encode()).decode()}"
        if challenge.lower().startswith("basic"):
            return self._open(url, headers | basic)
        fields = dict(_CHALLENGE.findall(challenge))
        query = urllib.parse.urlencode({key: fields[key] for key in ("service", "scope") if key in fields})
        realm = urllib.parse.urlsplit(fields.get("realm", ""))
        asked_by = urllib.parse.urlsplit(url).scheme
        if not redirects.trusted(realm.scheme, realm.hostname, asked_by, any_http=not self.verify):
            raise ValueError("its realm is no address that proves who it is")
        answer = _json(image, self._open(f"{realm.geturl()}?{query}", basic, image.registry))
        token = answer.get("token") or answer.get("access_token") or ""
        return self._open(url, headers | {"Authorization": f"Bearer {token}"})

    def _open(self, url: str, headers: Mapping[str, str], registry: str = "") -> bytes:
        """Args:
        registry: that has named the address; empty: it is its own.
        """
        if not url.startswith(("https://", "http://")):
            raise ValueError(f"not an address of a registry: {url}")
        request = urllib.request.Request(url)
        for key, value in headers.items():
            request.add_unredirected_header(key, value)  # storage that a blob lies in is not told who we are
        context = redirects.certificates() if self.verify else _blind()
        home = host(registry) or request.host
        opener = redirects.opener(home, context, any_http=not self.verify)
        with opener.open(request, timeout=self.timeout_s) as answer:
            body: bytes = answer.read(MAX_BYTES + 1)
        if len(body) > MAX_BYTES:
            raise ValueError(f"longer than {MAX_BYTES >> 20} MiB: {url}")
        return body


def logins(environ: Mapping[str, str]) -> Callable[[str], tuple[str, str] | None]:
    """Who `buildah login`, `podman login` or `docker login` has made known; what lies in a keychain is not found.

    Args:
        environ: names the folders.
    """
    home = Path(environ.get("HOME", "/"))
    places = [
        environ.get("REGISTRY_AUTH_FILE"),
        f"{environ['XDG_RUNTIME_DIR']}/containers/auth.json" if "XDG_RUNTIME_DIR" in environ else None,
        str(Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "containers" / "auth.json"),
        str(Path(environ.get("DOCKER_CONFIG") or home / ".docker") / "config.json"),
    ]

    def known(registry: str) -> tuple[str, str] | None:
        keys = [registry, f"https://{registry}", f"https://{registry}/v1/", *([_HUB_LOGIN] if registry == HUB else [])]
        for place in filter(None, places):
            try:
                auths = json.loads(Path(place).read_bytes())["auths"]
                for key in keys:
                    if auths.get(key, {}).get("auth"):
                        user, _, password = base64.b64decode(auths[key]["auth"]).decode().partition(":")
                        return user, password
            except (OSError, ValueError, KeyError, AttributeError, TypeError):
                continue
        return None

    return known


def passwords(path: Path) -> list[bytes]:
    """Every one in a file of logins, as it stands there and as it is meant; none where it cannot be read."""
    try:
        values = [value for one in json.loads(path.read_bytes())["auths"].values() for value in one.values()]
        coded = [value.encode() for value in values if isinstance(value, str)]
        return [*coded, *(base64.b64decode(one).partition(b":")[2] for one in coded)]
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return []


def _blind() -> ssl.SSLContext:
    """Looks at no certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _parsed(image: Reference, body: bytes) -> Manifest:
    content = _json(image, body)
    try:
        return Manifest(
            digest=f"sha256:{hashlib.sha256(body).hexdigest()}",
            layers=tuple(Layer(layer["digest"], layer["size"]) for layer in content.get("layers") or ()),
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


def _refused(image: Reference, why: str, hint: str) -> BackendUnreachable:
    return BackendUnreachable(
        f"registry {image.registry} does not say what {image} is: {why}", hint=hint, objects=(str(image),)
    )
