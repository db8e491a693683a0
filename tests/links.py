"""Part of `make lint`: `python -m tests.links` refuses links in git that lead out of the tree."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

LINK = "120000"


def strays(tree: Path) -> list[str]:
    """Every tracked link of a checkout that leads to a place outside it, as `path -> where`."""
    listed = subprocess.run(
        ["git", "ls-files", "--stage", "-z"], cwd=tree, capture_output=True, text=True, check=True
    ).stdout
    found = []
    for line in filter(None, listed.split("\0")):
        (mode, blob, _), path = line.split("\t")[0].split(), line.partition("\t")[2]
        if mode != LINK:
            continue
        leads = subprocess.run(["git", "cat-file", "blob", blob], cwd=tree, capture_output=True, text=True, check=True)
        target = os.path.normpath(os.path.join(os.path.dirname(path), leads.stdout))
        if os.path.isabs(target) or target.split(os.sep)[0] == os.pardir:
            found.append(f"{path} -> {leads.stdout}")
    return found


if __name__ == "__main__":
    outside = strays(Path.cwd())
    for stray in outside:
        print(f"{stray}: a tracked link that leads out of the tree exists on one machine only; git rm it")
    sys.exit(bool(outside))
