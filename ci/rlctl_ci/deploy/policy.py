"""Roles that a push reaches: `on_push` of each, on documents that are rendered already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rlctl.plan import Document, Plan
from rlctl.spec.names import live_name
from rlctl.spec.schema import Spec

HELD = ("next-run", "manual")


@dataclass(frozen=True, slots=True)
class DeployScope:
    """Documents to apply, and the roles that keep theirs."""

    plan: Plan
    documents: list[Document]
    held: dict[str, str]  # role -> its policy


def reach(
    spec: Spec, plan: Plan, documents: Sequence[Document], before: Sequence[Document], hashes: Mapping[str, str]
) -> DeployScope:
    """Documents of a push: new ones, but for roles with a policy that keeps them, as they were applied last.

    Args:
        spec: of the commit; its policies count.
        plan, documents: of the commit.
        before: as applied last.
        hashes: role -> hash that it runs with.
    """
    live = ("live.json", f"configmap-{live_name(plan.run)}.yaml")  # for a manager that goes on running
    known = {one.name: one.text for one in before if one.name not in live}
    there = {one.role for one in before}
    held: dict[str, str] = {
        role.role: policy
        for role in plan.roles
        if (policy := getattr(spec.roles, role.role).on_push) in HELD
        and role.role in hashes
        and role.role in there
        and (hashes[role.role] != role.hash or _differs(role.role, documents, known))
    }
    if not held:
        return DeployScope(plan, list(documents), {})
    kept = [one for one in before if one.role in held and one.name not in live]
    fresh = [one for one in documents if one.role not in held or one.name in live]
    names = {one.name for one in fresh}
    roles = tuple(replace(role, hash=hashes[role.role]) if role.role in held else role for role in plan.roles)
    return DeployScope(replace(plan, roles=roles), [*fresh, *(one for one in kept if one.name not in names)], held)


def _differs(role: str, documents: Sequence[Document], known: Mapping[str, str]) -> bool:
    """Whether a document of a role has another text, by a patch or a newer template.

    More or fewer documents of the same kind are only another number of replicas.
    """
    return any(known.get(one.name, one.text) != one.text for one in documents if one.role == role)
