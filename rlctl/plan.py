"""Who runs, how many, with which arguments and resources; and what a changed spec does to a live run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from rlctl.spec.base import Role


@dataclass(frozen=True, slots=True)
class Member:
    """What learner replica `index` trains: rank `rank` of member `member` of policy `policy`."""

    policy: str
    member: int
    rank: int


@dataclass(frozen=True, slots=True)
class RolePlan:
    """All replicas of one role. Nothing here but `replicas` changes when a run is scaled."""

    role: Role
    replicas: int
    cpu: float  # cores
    memory_mib: float
    gpu: int
    threads: int  # compute threads of one process: floor(cpu), at least 1
    run_file: dict[str, Any]  # what the role reads, and nothing else; see `run_files`
    hash: str  # 12 hex digits over run_file and resources: another hash is another process
    members: tuple[Member, ...] = ()  # learner: by index


@dataclass(frozen=True, slots=True)
class Plan:
    """One run, ready to be rendered for a target."""

    run: str
    uid: str  # 32 hex digits, minted at the first `up`
    rlctl_version: str
    target: Literal["local", "kubernetes"]
    roles: tuple[RolePlan, ...]  # in start order
    live: dict[str, Any]  # fields that apply live, by dotted path; the manager reads them again on request
    code_path: str | None  # absolute folder for PYTHONPATH


@dataclass(frozen=True, slots=True)
class Change:
    """What one changed field does to one role of a live run."""

    role: str  # a role, or "" when the backend or nobody has to act
    action: Literal["live", "restart", "refuse"]
    path: str  # dotted path of the field
    why: str  # "roles.actor.replicas: 4 -> 8"
