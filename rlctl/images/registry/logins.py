"""Logins of registries, from the files where builders keep them."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from rlctl.image_names import HUB

_HUB_LOGIN: Final = "https://index.docker.io/v1/"
"""Key that `docker login` without a name writes."""


def logins(environ: Mapping[str, str]) -> Callable[[str], tuple[str, str] | None]:
    """Look-up of user and password by registry, in the files of buildah, podman and docker; keychains are not read.

    Args:
        environ: environment, which names the folders.
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
    """Passwords in a file of logins, encoded and decoded; none if it cannot be read."""
    try:
        values = [value for one in json.loads(path.read_bytes())["auths"].values() for value in one.values()]
        coded = [value.encode() for value in values if isinstance(value, str)]
        return [*coded, *(base64.b64decode(one).partition(b":")[2] for one in coded)]
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return []
