"""Check of a built site: every script, style, font and image is its own.

python -m scripts.pages.local build/site
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

ASKS = {
    "link": "href",
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "object": "data",
}
"""Elements that a browser loads something for, and the attribute that says what."""
_ELSEWHERE = re.compile(r"^(https?:)?//", re.IGNORECASE)
_IN_STYLES = re.compile(r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')\s;]+)""", re.IGNORECASE)


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        of = dict(attrs)
        asked = of.get(ASKS.get(tag, "")) or ""
        self.found += [asked] if _ELSEWHERE.match(asked) else []
        self.found += _IN_STYLES.findall(of.get("style") or "")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "style":
            self.found += _IN_STYLES.findall(data)


def third_parties(folder: Path) -> Iterator[str]:
    """`PAGE: URL` for everything that a page or a style loads from another host."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.suffix == ".html":
            page = _Page()
            page.feed(path.read_text())
            yield from (f"{name}: {url}" for url in page.found)
        elif path.suffix == ".css":
            yield from (f"{name}: {url}" for url in _IN_STYLES.findall(path.read_text()))


def main(arguments: list[str]) -> int:
    """1 when something is loaded from elsewhere, 2 when there is no site."""
    folder = Path(arguments[0])
    if not (folder / "index.html").is_file():
        print(f"{folder} holds no site", file=sys.stderr)
        return 2
    found = list(third_parties(folder))
    print("\n".join(found), end="\n" if found else "")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
