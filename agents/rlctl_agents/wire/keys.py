"""CURVE keys of a process, as files in a folder: a mounted Secret, or files written by hand."""

from __future__ import annotations

import hashlib
import hmac
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import zmq
from zmq.utils import z85

ACTOR, CORE = "actor", "core"
"""The key classes: of processes that only send experience and pull weights, and of all others."""

DOMAIN = "rlctl"
"""ZAP domain of every socket that listens. The handler's has to be the same string; `*` would match nothing."""
_CHARACTERS = 40  # of 32 bytes in z85
_Z85 = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]*")


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys of this process, of the processes that listen and, if it listens, of those it admits. In z85, 40 bytes each.

    A process that holds `server.key` can pretend to be any listening process of the run, so actors and evaluators,
    which only connect, are given the other files alone.
    """

    whose: str
    """Key class of this process."""
    public: bytes
    secret: bytes = field(repr=False)
    server_public: bytes
    """Public key of every process of the run that listens."""
    server_secret: bytes | None = field(default=None, repr=False)
    """Secret key of `server_public`; None: this process cannot listen."""
    admitted: Mapping[str, str] = field(default_factory=dict)
    """Public key -> key class, of the processes that may connect here."""

    @classmethod
    def read(cls, folder: Path | str) -> Keys:
        """Read the keys of a folder.

        A core process that listens holds `server.key`, `server.pub`, `core.key`, `core.pub`, `actor.pub`; an evaluator
        `server.pub`, `core.key`, `core.pub`; an actor `server.pub`, `actor.key`, `actor.pub`.

        Every file holds one key in z85; white space around it does no harm. The files' modes are not checked: in a
        mounted Secret every user of the container may read them.

        Raises:
            ValueError: lists every fault of every file, and shows no key.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise ValueError(f"{folder}: no such folder; it must hold the keys of this process")
        faults: list[str] = []
        found: dict[str, bytes] = {}
        for name in _needed(folder, faults):
            key = _read(folder / name, faults)
            if key is not None:
                found[name] = key
        faults += _mismatches(folder, found)
        if faults:
            raise ValueError("; ".join(faults))
        whose = CORE if f"{CORE}.key" in found else ACTOR
        listens = "server.key" in found
        return cls(
            whose=whose,
            public=found[f"{whose}.pub"],
            secret=found[f"{whose}.key"],
            server_public=found["server.pub"],
            server_secret=found["server.key"] if listens else None,
            admitted={found[f"{one}.pub"].decode(): one for one in (ACTOR, CORE)} if listens else {},
        )

    def ticket(self, run: str, boot: str, made_s: int) -> str:
        """Ticket: proof that the manager leased this boot at unix time `made_s`. `server.key` makes and checks it.

        Raises:
            ValueError: this process does not hold `server.key`.
        """
        if self.server_secret is None:
            raise ValueError("a ticket cannot be made without server.key, which is not among the keys of this process")
        said = f"rlctl lease {run} {boot} {made_s}".encode()
        return f"{made_s}.{hmac.new(self.server_secret, said, hashlib.sha256).hexdigest()[:32]}"

    def made_s(self, ticket: str, run: str, boot: str) -> int:
        """Unix time at which a ticket of this boot was made.

        Raises:
            ValueError: the manager of this run has not made it, or not for this boot.
        """
        stated = ticket.partition(".")[0]
        made_s = int(stated) if stated.isascii() and stated.isdigit() and len(stated) < 16 else 0
        if not hmac.compare_digest(ticket.encode(), self.ticket(run, boot, made_s).encode()):
            raise ValueError(f"boot {boot} shows no lease of this run's manager")
        return made_s


def _needed(folder: Path, faults: list[str]) -> list[str]:
    """Files that must be there, inferred from those that are."""
    own = [one for one in (ACTOR, CORE) if (folder / f"{one}.key").exists()]
    needed = ["server.pub", *(f"{one}.{half}" for one in own for half in ("key", "pub"))]
    if not own:
        faults.append(f"{folder}: holds neither actor.key nor core.key, so this process has no key of its own")
    if len(own) == 2:
        faults.append(f"{folder}: holds actor.key and core.key, and a process has one of them")
    if (folder / "server.key").exists():
        if own == [ACTOR]:
            faults.append(f"{folder}: holds server.key beside actor.key, and actors do not listen")
        needed += ["server.key", *(f"{one}.pub" for one in (ACTOR, CORE) if one not in own)]
    return needed


def _read(path: Path, faults: list[str]) -> bytes | None:
    try:
        text = path.read_bytes().strip().decode("ascii")
    except FileNotFoundError:
        faults.append(f"{path}: no such file")
    except OSError as error:
        faults.append(f"{path}: {error.strerror}")
    except UnicodeDecodeError:
        faults.append(f"{path}: not a key in z85, which is ASCII; perhaps it holds 32 raw bytes")
    else:
        if not _Z85.fullmatch(text):
            faults.append(f"{path}: not a key in z85: holds characters that z85 does not have")
        elif len(text) != _CHARACTERS:
            faults.append(f"{path}: a key in z85 has {_CHARACTERS} characters, got {len(text)}")
        elif not _decodes(text):
            faults.append(f"{path}: not a key in z85: five characters in it stand for more than 32 bits")
        else:
            return text.encode()
    return None


def _decodes(text: str) -> bool:
    try:
        z85.decode(text)
    except struct.error:
        return False
    return True


def _mismatches(folder: Path, found: Mapping[str, bytes]) -> list[str]:
    """Faults: key pairs with halves that do not belong together, and classes with the same key."""
    faults = [
        f"{folder / pair}.pub is not the public half of {pair}.key"
        for pair in ("server", ACTOR, CORE)
        if {f"{pair}.pub", f"{pair}.key"} <= found.keys()
        and zmq.curve_public(found[f"{pair}.key"]) != found[f"{pair}.pub"]
    ]
    publics = [name for name in ("server.pub", f"{ACTOR}.pub", f"{CORE}.pub") if name in found]
    for index, name in enumerate(publics):
        faults += [
            f"{folder / name} and {other} hold the same key"
            for other in publics[index + 1 :]
            if found[name] == found[other]
        ]
    return faults
