"""Replacement of a whole template by the user's own, `templates/kubernetes/<name>.yaml.j2`: the last resort.

It states the release it was copied from, so that a newer one does not run with an old template unnoticed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import jinja2

from rlctl import __version__
from rlctl.errors import Problem, SpecError
from rlctl.render.engine import templates
from rlctl.spec.words import closest, either

FOLDER = "kubernetes"
_COPIED = re.compile(r"# copied from rlctl (\S+)\s*")


def loader(folders: Sequence[Path]) -> jinja2.BaseLoader:
    """Template loader: the user's templates first, then ours.

    Args:
        folders: those whose `templates/` are searched; a later one wins.

    Raises:
        SpecError: a template that replaces nothing, or was copied from another release.
    """
    ours = templates()
    known = sorted(path.name for path in (ours / FOLDER).glob("*.j2"))
    problems: list[Problem] = []
    roots: list[str] = []
    for folder in reversed(folders):
        found = sorted((folder / "templates" / FOLDER).glob("*.j2"))
        if found and (folder / "templates").resolve() != ours.resolve():
            problems += [problem for path in found if (problem := _fault(path, known))]
            roots.append(str(folder / "templates"))
    if problems:
        raise SpecError(problems, hint=f"ours lie in {ours / FOLDER}")
    return jinja2.FileSystemLoader([*roots, str(ours)])


def _fault(path: Path, known: list[str]) -> Problem | None:
    if path.name not in known:
        near = closest(path.name, known)
        return Problem("", f"replaces nothing; {f'did you mean `{near}`?' if near else either(known)}", str(path))
    try:
        first = path.read_text(encoding="utf-8").partition("\n")[0]
    except (OSError, ValueError):
        first = ""
    copied = _COPIED.fullmatch(first)
    if copied is None:
        return Problem("", f"must say what it copies: `# copied from rlctl {__version__}`", str(path), 1, 1)
    if copied[1] != __version__:
        message = f"copied from rlctl {copied[1]}, this is {__version__}; compare it with ours, then change this line"
        return Problem("", message, str(path), 1, 1)
    return None
