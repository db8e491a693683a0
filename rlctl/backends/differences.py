"""Differences between applied and new documents, for targets whose documents are files."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator

from rlctl.backends.base import Difference, Document

_HASH = re.compile(r"-[0-9a-f]{12}(?=\.)")


def differences(old: Iterable[Document], new: Iterable[Document]) -> Iterator[Difference]:
    """One difference for every document of either side; documents whose names differ only in the hash count as one."""
    before = {_HASH.sub("", document.name): document for document in old}
    after = {_HASH.sub("", document.name): document for document in new}
    for key in dict.fromkeys([*before, *after]):
        was, now = before.get(key), after.get(key)
        lines = tuple(
            difflib.unified_diff(
                was.text.splitlines() if was else [],
                now.text.splitlines() if now else [],
                was.name if was else "/dev/null",
                now.name if now else "/dev/null",
                lineterm="",
            )
        )
        if was is None and now is not None:
            yield Difference(now.name, "add", lines)
        elif now is None and was is not None:
            yield Difference(was.name, "remove", lines)
        elif was is not None and now is not None:
            same = was.name == now.name and not lines
            yield Difference(now.name, "same" if same else "change", lines)
