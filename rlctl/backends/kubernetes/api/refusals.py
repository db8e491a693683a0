"""Refusals of an API server in words: which right is missing, which quota is exceeded, which manager owns a field."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from rlctl.backends.kubernetes.api.interface import Api, ApiError, Key, kubectl
from rlctl.backends.kubernetes.api.quantity import parse
from rlctl.errors import BackendUnreachable, Conflict, PartlyApplied, RlctlError

GO_ON: Final = "Run the same command again: it goes on where this one stopped."
FORWARD_RIGHT: Final = "it takes the right pods/portforward: docs/operations.md"
_AFTERWARDS: Final = "Once that is done, the same command: it goes on where this one stopped."
"""Hint in place of GO_ON where the same command alone would fail the same way."""
_USER: Final = re.compile(r'User "([^"]*)" cannot')
QUOTA: Final = re.compile(r"exceeded quota: ([^,]+), requested: (.*?), used: (.*?), limited: (.*)", re.DOTALL)
REPLICAS_FIELD: Final = ".spec.replicas"
_WAYS_OUT: Final = {
    False: "Drop the field from your patch, or take it over (rlctl up SPEC --force-conflicts), or ask its owner to let "
    "go of it",
    True: "Leave the number to its owner, or end that (an autoscaler is an object of its own), or write yours into the "
    "spec and take it over: rlctl up SPEC --force-conflicts",
}
_GRANT: Final = "is attempting to grant"
"""Sign of a 403 for a missing right, beside `_USER`; any other 403 is a rule of the cluster."""
_FIXED: Final = ("field is immutable", "updates to statefulset spec for fields other than", "cannot change roleRef")
_VOLUME: Final = ("pvc can be resized", "field can not be less than")
"""Signs of a claim whose class does not grow, and of one that would shrink."""
_FOR_A_WHILE: Final = (0, 408, 409, 429)
"""Statuses that may pass, as may 5xx; any other is the same at the next attempt."""


class Refusal(Conflict):
    """Conflict that is the API server's answer, not caused by another command.

    Args:
        message, objects: as in Conflict.
        remedy: what the user can do.
        hint: what the user can do, while nothing was written.
    """

    def __init__(self, message: str, *, remedy: str, hint: str = "", objects: tuple[str, ...] = ()) -> None:
        super().__init__(message, hint=hint or remedy, objects=objects)
        self.remedy = remedy


class Row(NamedTuple):
    """One field that another field manager has set to another value."""

    object: str
    field: str
    owner: str
    theirs: str
    ours: str


def shown_value(value: Any) -> str:
    """Value in a table: JSON, shortened."""
    if value is None:
        return "-"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def conflict(rows: Iterable[Row], *, run: str) -> Refusal:
    """One error for all fields of all objects that other managers own."""
    rows = list(dict.fromkeys(rows))
    table = [Row("object", "field", "owner", "theirs", "ours"), *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    lines = [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table
    ]
    what = "a field belongs" if len(rows) == 1 else f"{len(rows)} fields belong"
    remedy = _WAYS_OUT[all(row.field == REPLICAS_FIELD for row in rows)]
    return Refusal(
        f"{what} to other field managers, with other values; nothing was taken over:\n" + "\n".join(lines),
        remedy=f"{remedy}.",
        hint=f"{remedy}; run {run} is otherwise as it was.",
        objects=tuple(dict.fromkeys(row.object for row in rows)),
    )


def in_words(error: ApiError, verb: str, key: Key, api: Api, *, written: bool) -> RlctlError:
    """Error for the user from an error of the API server.

    Args:
        verb: verb of the request, as rights name it: create, patch, delete.
        api: server of the request.
        written: whether this command has written something already.
    """
    if any(sign in error.message for sign in _VOLUME):
        return Refusal(
            f"{key}: the volume cannot take this size: {error.message}",
            remedy="Put storage.size back to what it was; a volume never shrinks, and grows if its class says "
            f"allowVolumeExpansion: true ({kubectl(api, namespaced=False)} get storageclass).",
            objects=(str(key),),
        )
    if error.status == 403:
        quota = QUOTA.search(error.message)
        return _quota(key, quota, api, written=written) if quota else _forbidden(error, verb, key, api.namespace)
    if error.status == 422 and any(sign in error.message for sign in _FIXED):
        return Refusal(
            f"{key}: this change is not possible while the object exists: {error.message}",
            remedy=f"Take the run down and start it again, its data stays: rlctl down, then rlctl up SPEC; or this "
            f"object: {kubectl(api)} delete {key.kind.lower()} {key.name} --cascade=orphan, then rlctl up SPEC.",
            objects=(str(key),),
        )
    if written and (error.status in (0, 429) or error.status >= 500):
        return PartlyApplied(f"{key} was not written: {error.message}", hint=GO_ON, objects=(str(key),))
    if error.status == 404 and error.message.startswith("namespaces "):
        return ApiError(
            f"{key}: there is no namespace {api.namespace}", status=404, key=key,
            hint=f"Is -n, or --context, another one? Else: {kubectl(api, namespaced=False)} create namespace "
            f"{api.namespace}",
        )  # fmt: skip
    return ApiError(
        f"{key}: {error.message}", status=error.status, key=key,
        hint=error.hint or ("" if lasting(error) else GO_ON), conflicts=error.conflicts,
    )  # fmt: skip


def partly(error: BackendUnreachable | Refusal) -> PartlyApplied:
    """The same refusal, once something was written: its message, its remedy, and that the same command resumes."""
    remedy = error.remedy if isinstance(error, Refusal) else error.hint
    remedy = remedy.replace(GO_ON, "").strip()
    if not isinstance(error, Refusal) and not lasting(error):
        return PartlyApplied(error.message, hint=f"{remedy} {GO_ON}".strip(), objects=error.objects, remedy=remedy)
    remedy = remedy or "Change what it names: the spec, or a patch of it."
    return PartlyApplied(error.message, hint=f"{remedy} {_AFTERWARDS}", objects=error.objects, remedy=remedy)


def lasting(error: RlctlError) -> bool:
    """Whether the same request would fail again."""
    return isinstance(error, ApiError) and error.status < 500 and error.status not in _FOR_A_WHILE


def is_invalid(error: ApiError) -> bool:
    """Whether the server never takes such an object; a webhook without support for dry runs proves nothing."""
    if any(sign in error.message for sign in (*_FIXED, *_VOLUME, "does not support dry run")):
        return False
    return error.status in (400, 422) and not error.conflicts


def lacks_right(error: ApiError) -> bool:
    """Whether a 403 is for a missing right, not by a rule of the cluster."""
    return error.status == 403 and (_USER.search(error.message) is not None or _GRANT in error.message)


def unread(error: ApiError) -> str:
    """Why something could not be read, in a word for a check that goes on without it."""
    return "forbidden" if error.status in (401, 403) else error.message


def _forbidden(error: ApiError, verb: str, key: Key, namespace: str) -> ApiError:
    user = _USER.search(error.message)
    if "because it is being terminated" in error.message:
        return ApiError(
            f"namespace {namespace} is being deleted: nothing can be created in it",
            status=403,
            key=key,
            hint="Wait until it is gone, or choose another with -n.",
        )
    if not lacks_right(error):  # a webhook, a policy, a LimitRange
        return ApiError(
            f"{key} was refused in namespace {namespace}: {error.message}",
            status=403,
            key=key,
            hint="No right lacks: a rule of the cluster forbids it. Change what it names by a patch, or ask the "
            "author of the rule.",
        )
    who = f" as {user[1]}" if user else ""
    admin = f"rlctl render --admin -n {namespace} --user {shlex.quote(user[1]) if user else 'NAME'}"
    hint = f"An administrator grants it with what `{admin}` prints; `rlctl doctor -t kubernetes` lists what lacks."
    if verb in ("get", "list"):
        hint = f"Is that the namespace (-n) and the cluster (--context) that is meant? {hint}"
    why = "" if user else f": {error.message}"
    return ApiError(
        f"may not {verb} {key} in namespace {namespace}{who}{why}",
        status=403,
        key=key,
        hint=hint,
    )


def _quota(key: Key, found: re.Match[str], api: Api, *, written: bool) -> Refusal | PartlyApplied:
    name, requested, used, limited = (part.strip() for part in found.groups())
    sums = []
    limits, before = pairs(limited), pairs(used)
    for resource, asked in pairs(requested).items():
        limit, had = limits.get(resource, "?"), before.get(resource, "0")
        one, two, most = parse(asked), parse(had), parse(limit)
        if one is None or two is None or most is None or one + two > most:
            sums.append(f"{resource}: {had} used + {asked} asked > {limit}")
    remedy = f"Ask for less, or have the quota raised ({kubectl(api)} describe quota {name})."
    refusal = Refusal(
        f"{key}: quota {name} exceeded: {'; '.join(sums) or requested}", remedy=remedy, objects=(str(key),)
    )
    return partly(refusal) if written else refusal


def pairs(text: str) -> dict[str, str]:
    """Parse `a=1, b=2` into {a: 1, b: 2}."""
    parts = (part.strip().partition("=") for part in text.rstrip(".").split(","))
    return {name: value for name, equals, value in parts if equals}
