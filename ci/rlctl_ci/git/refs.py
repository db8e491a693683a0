"""Names of branches, as git allows them and as we handle them: always one argument, never a path or a label."""

from __future__ import annotations

import hashlib
import re
from typing import Final

HEADS: Final = "refs/heads/"
MAX_BYTES: Final = 512
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//")
_SHA = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


def fault(ref: str) -> str:
    """Fault of a full name of a branch, by the rules of git-check-ref-format; empty when there is none."""
    if not ref.startswith(HEADS) or ref == HEADS:
        return "not below refs/heads/"
    if len(ref.encode("utf-8", "replace")) > MAX_BYTES:
        return f"longer than {MAX_BYTES} bytes"
    if _FORBIDDEN.search(ref) or any(0xD800 <= ord(sign) <= 0xDFFF for sign in ref):
        return "holds what git does not allow"
    if any(part.startswith(".") or part.endswith((".lock", ".")) or not part for part in ref.split("/")):
        return "a part begins or ends as git does not allow"
    return ""


def is_sha(text: str) -> bool:
    """Whether a text is a full commit name, and not the zero of a deleted branch."""
    return _SHA.fullmatch(text) is not None and set(text) != {"0"}


def is_zero(text: str) -> bool:
    return _SHA.fullmatch(text) is not None and set(text) == {"0"}


def slug(ref: str) -> str:
    """A branch as part of a tag, a file name or a label: two branches never have the same."""
    name = ref.removeprefix(HEADS)
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:24] or "branch"
    return f"{plain}-{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"
