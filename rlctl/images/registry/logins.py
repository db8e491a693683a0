"""Logins of registries, from the files where builders keep them."""

from __future__ import annotations

import base64
import json
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from rlctl.image_names import HUB

_HUB_LOGIN: Final = "https://index.docker.io/v1/"
"""Key that `docker login` without a name writes."""
_SECRETS: Final = ("auth", "password", "identitytoken", "registrytoken")
"""Keys of a login that hold a secret; others hold names, which a log may show."""


def logins(environ: Mapping[str, str]) -> Callable[[str], tuple[str, str] | None]:
    """Look-up of user and password by registry, in the files of buildah, podman and docker; keychains are not read.

    Args:
        environ: environment, which names the folders.
    """

    def known(registry: str) -> tuple[str, str] | None:
        keys = [registry, f"https://{registry}", f"https://{registry}/v1/", *([_HUB_LOGIN] if registry == HUB else [])]
        for auths in _found(environ):
            with suppress(ValueError, AttributeError, TypeError):
                for key in keys:
                    if auths.get(key, {}).get("auth"):
                        user, _, password = base64.b64decode(auths[key]["auth"]).decode().partition(":")
                        return user, password
        return None

    return known


def merged(environ: Mapping[str, str]) -> str:
    """Content of one file with all logins that `logins` finds, for a program with another home."""
    return json.dumps({"auths": dict(ChainMap(*_found(environ)))})


def _found(environ: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Logins of each file that can be read, those that come first before the others."""
    home = Path(environ.get("HOME", "/"))
    places = [
        environ.get("REGISTRY_AUTH_FILE"),
        f"{environ['XDG_RUNTIME_DIR']}/containers/auth.json" if "XDG_RUNTIME_DIR" in environ else None,
        str(Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "containers" / "auth.json"),
        str(Path(environ.get("DOCKER_CONFIG") or home / ".docker") / "config.json"),
    ]
    for place in filter(None, places):
        with suppress(OSError, ValueError, KeyError, TypeError):
            yield dict(json.loads(Path(place).read_bytes())["auths"])


def passwords(environ: Mapping[str, str]) -> list[bytes]:
    """Secrets of all logins that `logins` finds, `auth` also decoded."""
    logins = [one for auths in _found(environ) for one in auths.values() if isinstance(one, dict)]
    found = [value.encode() for one in logins for key in _SECRETS if isinstance(value := one.get(key), str)]
    for one in logins:
        with suppress(ValueError, TypeError, KeyError):
            found.append(base64.b64decode(one["auth"]).partition(b":")[2])
    return found
