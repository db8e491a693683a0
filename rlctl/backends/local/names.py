"""Names of processes: the supervisor's `actor-3`, a user's `actor/3`."""

from __future__ import annotations

import re

from rlctl.spec.base import ROLES


def split_name(name: str) -> tuple[str, int]:
    """("actor", 3) of "actor-3"; ("watch", 0) of a process that is no role's."""
    match = re.fullmatch(r"([a-z]+)-([0-9]{1,6})", name)
    return (match[1], int(match[2])) if match and match[1] in ROLES else (name, 0)


def is_role(name: str) -> bool:
    """Whether a process is a replica of a role, and not the watch."""
    return split_name(name)[0] != name


def in_order(name: str) -> tuple[int, int]:
    """Sort key: by role in start order, then by index; a process that is no role's comes first."""
    role, index = split_name(name)
    return next((place for place, known in enumerate(ROLES) if known == role), -1), index


def shown(name: str) -> str:
    """The name of a process as a user knows it: actor/3."""
    role, index = split_name(name)
    return f"{role}/{index}" if role != name else name
