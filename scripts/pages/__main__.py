"""Sources of the site: the pages of docs/ with the README and the changelog, and reference pages from the code.

    python -m scripts.pages build/pages

`make site` runs it, then builds build/site from it (mkdocs.yml). Nothing of what it writes is committed.
"""

from __future__ import annotations

import argparse
import posixpath
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from scripts.pages import command_line, spec

ROOT = Path(__file__).resolve().parents[2]
RENAMED = {"README.md": "index.md", "CHANGELOG.md": "changelog.md"}
"""Pages from outside of docs/, by their path in the repository -> that in the site."""
SHOWN = {
    "rlctl/spec/schema.py": "reference/spec.md",
    "rlctl/spec/algorithms.py": "reference/spec.md#algorithm-impala",
    "rlctl/spec/roles.py": "reference/spec.md#roles",
    "rlctl/cli/app.py": "reference/command-line.md",
    "agents/rlctl_agents/types/spaces.py": "reference/python.md#spaces",
    "agents/rlctl_agents/algorithms/base.py": "reference/python.md#algorithms",
    "agents/rlctl_agents/experience/sources.py": "reference/python.md#sources-of-batches",
}
"""Sources with a page of reference: a link to one leads there in the site."""
IMAGES = (".svg", ".png", ".gif")
REFERENCE: dict[str, Callable[[], str]] = {
    "reference/spec.md": spec.page,
    "reference/command-line.md": command_line.page,
    "reference/python.md": Path(__file__).with_name("python.md").read_text,
}
_FENCE = re.compile(r"^\s*```")
_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^()\s]+)\)")


def place(path: str) -> str | None:
    """Path in the site of a file of the repository; None of one that the site does not have."""
    if path in RENAMED or path in SHOWN:
        return (RENAMED | SHOWN)[path]
    if path.rstrip("/") == "docs/decisions":
        return "decisions/index.md"
    if path.startswith("docs/") and path.endswith(".md"):
        return path.removeprefix("docs/")
    return f"images/{path}" if path.endswith(IMAGES) else None


def linked(text: str, source: str) -> str:
    """A page with its links as the site needs them: what is not in the site becomes its name.

    Args:
        text: Markdown.
        source: path of the page in the repository.

    Raises:
        ValueError: a link leads to a file that is not there.
    """
    here = posixpath.dirname(place(source) or "")

    def link(found: re.Match[str]) -> str:
        target, hash_, anchor = found["target"].partition("#")
        if not target or "://" in target or target.startswith("mailto:"):
            return found[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if not (ROOT / path).exists():
            raise ValueError(f"{source}: {found[0]}: there is no {path}")
        there = place(path)
        if there is None:
            return found["text"] if "`" in found["text"] else f"`{path}`" if found["text"] == target else found["text"]
        return f"{found['image']}[{found['text']}]({posixpath.relpath(there, here or '.')}{hash_}{anchor})"

    lines, code = [], False
    for line in text.splitlines():
        code ^= bool(_FENCE.match(line))
        lines.append(line if code else _LINK.sub(link, line))
    return "\n".join(lines) + "\n"


def decisions() -> str:
    """The page that lists them."""
    lines = ["# Decisions", "", "Why it is as it is: the question, what was measured, what was decided.", ""]
    for path in sorted((ROOT / "docs/decisions").glob("*.md")):
        lines.append(f"- [{path.read_text().partition(chr(10))[0].removeprefix('# ')}]({path.name})")
    return "\n".join(lines) + "\n"


def write(folder: Path) -> list[str]:
    """Write all pages anew; returns their paths in the site."""
    shutil.rmtree(folder, ignore_errors=True)
    pages = {"decisions/index.md": decisions()} | {name: make() for name, make in REFERENCE.items()}
    for path in [*map(ROOT.joinpath, RENAMED), *(ROOT / "docs").rglob("*.md")]:
        source = path.relative_to(ROOT).as_posix()
        pages[str(place(source))] = linked(path.read_text(), source)
    for image in [*(ROOT / "docs").rglob("*"), *(ROOT / "benchmarks/results").rglob("*")]:
        name = image.relative_to(ROOT).as_posix()
        if name.endswith(IMAGES) and any(f"images/{name}" in text for text in pages.values()):
            (folder / "images" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(image, folder / "images" / name)
    for name, text in pages.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    shutil.copyfile(Path(__file__).with_name("site.css"), folder / "site.css")
    return sorted(pages)


def main(arguments: list[str]) -> int:
    """2 when a link leads nowhere, or a page is not in the navigation of mkdocs.yml."""
    parser = argparse.ArgumentParser("python -m scripts.pages")
    parser.add_argument("folder", type=Path)
    try:
        pages = write(parser.parse_args(arguments).folder)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    shown = set(re.findall(r"\S+\.md", (ROOT / "mkdocs.yml").read_text()))
    numbered = {name for name in pages if re.match(r"decisions/\d", name)}
    if lost := sorted(shown ^ (set(pages) - numbered)):
        print(f"mkdocs.yml: in its navigation or in the site, not in both: {', '.join(lost)}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
