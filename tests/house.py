"""Figures of the layout: `python -m tests.house` prints them, test_layers holds them below their ceilings."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PACKAGES = ("rlctl", "agents/rlctl_agents", "ci/rlctl_ci")
ALIKE = {
    "agents/rlctl_agents/algorithms", "agents/rlctl_agents/roles", "rlctl/cli/verbs", "ci/rlctl_ci/forges",
}  # fmt: skip
"""Folders of like things: as long as the list is."""
RIDDLE = re.compile(r"\b(any|every|no|some)body\b|\b(any|some)one\b|\bwho(m)?ever\b", re.IGNORECASE)


class Ceiling(NamedTuple):
    """The most that a figure may be."""

    what: str
    before: int
    """In release 0.1."""
    most: int


def modules(folder: Path) -> list[Path]:
    """Python files of one folder, without `__init__` and what is below it."""
    return [path for path in folder.glob("*.py") if path.name != "__init__.py"]


def folders() -> Iterator[Path]:
    """Every folder of the three packages that holds modules."""
    for package in PACKAGES:
        for path in [ROOT / package, *(ROOT / package).rglob("*")]:
            if path.is_dir() and modules(path):
                yield path


def largest_folder() -> int:
    """Modules in the largest folder of unlike things."""
    return max(len(modules(folder)) for folder in folders() if str(folder.relative_to(ROOT)) not in ALIKE)


def sources() -> list[Path]:
    """Every module of the three packages."""
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def lines_of_code(path: Path) -> int:
    """Lines without docstrings, comments and blank lines."""
    text = path.read_text()
    kept: set[int] = set()
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skipped:
            kept.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):  # a string that stands alone documents what is above it
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            kept.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(kept)


def attributes(path: Path, name: str) -> int:
    """Attributes that the methods of a class assign on self."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef) and node.name == name:
            for inner in ast.walk(node):
                written = isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store)
                if written and ast.unparse(inner).startswith("self.") and ast.unparse(inner).count(".") == 1:
                    found.add(inner.attr)
    if not found:
        raise LookupError(f"{path} has no class {name} with attributes")
    return len(found)


def class_names() -> dict[str, list[str]]:
    """Public class names that mean several things within a top-level package -> where."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found[package, node.name].append(str(path.relative_to(ROOT)))
    return {name: where for (_, name), where in sorted(found.items()) if len(where) > 1}


def riddles() -> int:
    """Count the lines in which an indefinite pronoun stands for a process or a user."""
    return sum(bool(RIDDLE.search(line)) for path in sources() for line in path.read_text().splitlines())


def headless() -> int:
    """Count the docstrings that begin with a heading instead of a line that says what it is."""
    trees = (ast.walk(ast.parse(path.read_text())) for path in sources())
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    said = (ast.get_docstring(node) or "" for tree in trees for node in tree if isinstance(node, kinds))
    return sum(text.startswith(("Args:", "Raises:", "Returns:")) for text in said)


def figures() -> dict[Ceiling, Callable[[], int]]:
    """Each ceiling with the function that measures what is; it reads and parses the sources."""
    agents = ROOT / "agents/rlctl_agents"
    roots = {"agents/rlctl_agents/roles": (91, 9), "rlctl/backends/kubernetes": (51, 3), "rlctl/cli": (38, 6),
             "ci/rlctl_ci": (20, 3)}  # fmt: skip
    return {
        Ceiling("modules in the largest folder of unlike things", 91, 15): largest_folder,
        **{
            Ceiling(f"modules in {folder}", before, most): lambda folder=folder: len(modules(ROOT / folder))
            for folder, (before, most) in roots.items()
        },
        Ceiling("lines of code", 36_500, CODE): lambda: sum(map(lines_of_code, sources())),
        Ceiling("attributes of the learner", 32, LEARNER): lambda: attributes(agents / "roles/learner.py", "Learner"),
        Ceiling("attributes of the coordinator", 29, COORDINATOR): lambda: attributes(
            agents / "manager/coordinator.py", "Coordinator"
        ),
        Ceiling("lines with somebody, nobody, whoever and the like", 343, RIDDLES): riddles,
        Ceiling("public class names with several meanings", 60, NAMES): lambda: len(class_names()),
    }


CODE, LEARNER, COORDINATOR, NAMES, RIDDLES = 55_201, 15, 15, 1, 2
"""CODE is what there is: a change that needs more lines raises it by these and says what for, one that deletes lowers
it. The others only go down."""


def main() -> None:
    """Print the figures, and the names with several meanings."""
    print("| | 0.1 | today | at most |\n|---|---|---|---|")
    for ceiling, measure in figures().items():
        print(f"| {ceiling.what} | {ceiling.before:,} | {measure():,} | {ceiling.most:,} |")
    for name, where in class_names().items():
        print(f"{name}: {', '.join(where)}")


if __name__ == "__main__":
    main()
