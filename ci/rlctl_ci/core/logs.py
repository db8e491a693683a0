"""Logs of builds: one file each, without secrets and without control characters."""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final
from urllib.parse import quote, quote_plus

from rlctl.spec.words import plain

MASK: Final = "***"
_ESCAPED = re.compile("%[0-9A-F]{2}")
_PIECE: Final = 256 << 10
_OWN_BYTES: Final = 256 << 10
"""Bytes beyond the limit for lines of the service itself: later attempts, a rollback, the end."""


class Masker:
    """Masks secrets of 6 or more characters: in clear, in base64 at every offset, in URLs and in JSON."""

    def __init__(self, secrets: Iterable[bytes]) -> None:
        forms: set[str] = set()
        for secret in secrets:
            word = secret.decode("utf-8", "replace")
            if len(word) < 6:
                continue
            coded = {quote(word, safe=""), quote(word), quote_plus(word)}
            forms |= {word, *coded, *(_ESCAPED.sub(lambda found: found[0].lower(), one) for one in coded)}
            for as_it_is in (True, False):
                text = json.dumps(word, ensure_ascii=as_it_is)[1:-1]
                forms |= {text, text.replace("/", "\\/")}
            for offset in range(3):  # base64 depends on the offset of the bytes in a longer text
                packed = base64.b64encode(b"\0" * offset + secret).decode()
                inner = packed[0 if offset == 0 else 4 : len(packed) - 4]
                if len(inner) >= 8:
                    forms |= {inner, inner.replace("+", "-").replace("/", "_")}
        longest = sorted(forms, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest))) if longest else None

    def __call__(self, text: str) -> str:
        return self._pattern.sub(MASK, text) if self._pattern is not None else text


class Log:
    """Append-only log file with a size limit; byte offsets in it stay valid.

    Args:
        path: appended to, also by a later attempt.
        most_bytes: size limit for the output of programs; lines beyond it are dropped, and a line says so.
        mask: applied to every line.
    """

    def __init__(self, path: Path, most_bytes: int, mask: Masker) -> None:
        self.path, self._most, self._mask = path, most_bytes, mask
        self._guard = threading.Lock()
        self._full = set[int]()  # limits that were reached
        self._lost = 0  # lines that could not be written

    def __call__(self, text: str) -> None:
        """Append a line of the service itself."""
        self._append(text, self._most + _OWN_BYTES)

    def output(self, text: str) -> None:
        """Append a line that a program has written."""
        self._append(text, self._most)

    def _append(self, text: str, most: int) -> None:
        kept = self._mask(plain(text.rstrip("\n")))[:4000] + "\n"
        with self._guard:
            try:
                self._write(kept, most)
            except OSError:  # a full disk is no fault of the commit
                self._lost += 1

    def _write(self, kept: str, most: int) -> None:
        with self.path.open("ab") as file:
            if file.tell() >= most:
                if most not in self._full:
                    file.write(f"... the log is longer than {self._most >> 20} MiB; the rest is left out\n".encode())
                    self._full.add(most)
                return
            gap = f"... {self._lost} lines could not be stored\n" if self._lost else ""
            file.write((gap + kept).encode("utf-8", "replace"))
        self._lost = 0


def read(path: Path, offset: int, most: int = 1 << 20) -> tuple[bytes, int]:
    """Bytes of a log from an offset on, whole lines where `most` bytes hold one; and the offset to go on from."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, offset))
            found = file.read(most)
    except FileNotFoundError:
        return b"", max(0, offset)
    found = found[: found.rfind(b"\n") + 1] or found
    return found, max(0, offset) + len(found)


def size(path: Path) -> int:
    """Bytes of a log; 0: nothing has been written yet."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def pieces(path: Path, begin: int, end: int) -> Iterator[bytes]:
    """The bytes between two offsets in chunks of up to 256 KiB, because a log may be larger than memory allows."""
    if begin == end:
        return
    with path.open("rb") as file:
        file.seek(begin)
        while begin < end and (found := file.read(min(_PIECE, end - begin))):
            begin += len(found)
            yield found
