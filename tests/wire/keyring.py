"""The keys of a run, as a backend makes them: folders as each role has them mounted."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import zmq

from rlctl_agents.wire.sockets import Wire

FILES = {
    "core": ("server.key", "server.pub", "core.key", "core.pub", "actor.pub"),
    "actor": ("server.pub", "actor.key", "actor.pub"),
    "evaluator": ("server.pub", "core.key", "core.pub"),
}


def pairs() -> dict[str, bytes]:
    """File name -> key, of three new pairs."""
    found: dict[str, bytes] = {}
    for name in ("server", "core", "actor"):
        found[f"{name}.pub"], found[f"{name}.key"] = (half.rstrip(b"\0") for half in zmq.curve_keypair())
    return found


@dataclass
class Keyring:
    """All keys of one run."""

    folder: Path
    keys: dict[str, bytes] = field(default_factory=pairs)

    def of(self, role: str, **changes: bytes | None) -> Path:
        """The folder of a role; `changes` replace a file, a double underscore standing for the dot, or leave it out."""
        place = self.folder / role
        place.mkdir(parents=True, exist_ok=True)
        for name in FILES[role]:
            (place / name).write_bytes(self.keys[name])
        for name, content in changes.items():
            path = place / name.replace("__", ".")
            path.unlink(missing_ok=True)
            if content is not None:
                path.write_bytes(content)
        return place


def ticket(wire: Wire, boot: str = "sender", made_s: int = 1000) -> str:
    """As the manager gives it to an actor."""
    assert wire.keys is not None
    return wire.keys.ticket("run", boot, made_s)
