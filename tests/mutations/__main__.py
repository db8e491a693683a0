"""Proof that tests can fail: `python -m tests.mutations` takes a promise back in a copy of the tree and tests the copy.

Each `tests/mutations/*.toml` lists mutations: edits that take one promise back, and the tests that hold it. A mutation
is killed when its tests pass on the copy as it is and at least one of them fails after the edits.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.mutations.table import ROOT, Mutation, apply, load

COPIED = ("rlctl", "agents", "ci", "templates", "specs", "tests", "benchmarks", "docs", "scripts", ".ci")
TIMEOUT_S = 600.0
ENDED_RED = 1  # pytest: tests were run, and some failed


def copy_tree(folder: Path) -> None:
    """Copy all that tests read, without environments, caches and history."""
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.iterdir():
        if path.is_file() and path.name != ".git":
            shutil.copy2(path, folder / path.name)
    # the tests of a commit's links, of the SBOM and of others ask git; a copy is a checkout of its own
    subprocess.run(["git", "init", "-q", str(folder)], check=True)


def passes(tree: Path, tests: Iterable[str]) -> tuple[int, str]:
    """Exit code of pytest in a tree, and the end of what it printed."""
    path = os.pathsep.join(str(tree / part) for part in ("", "agents", "ci"))
    environ = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(
            command, cwd=tree, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return -1, f"no end after {TIMEOUT_S:.0f} s"
    return done.returncode, done.stdout[-2000:] + done.stderr[-1000:]


def survived(tree: Path, mutation: Mutation) -> str:
    """Reason for which a mutation is not killed; empty when it is."""
    originals = {edit.file: (tree / edit.file).read_text() for edit in mutation.edits}
    try:
        for name, text in apply(mutation, originals).items():
            (tree / name).write_text(text)
        code, said = passes(tree, mutation.tests)
    finally:
        for name, text in originals.items():
            (tree / name).write_text(text)
    return "" if code == ENDED_RED else f"pytest ends with {code} after the edit, {ENDED_RED} is wanted\n{said}"


def check(tree: Path, mutations: Iterable[Mutation], say: Callable[[str], object]) -> list[str]:
    """Names of the mutations with tests that do not tell right from wrong."""
    chosen = list(mutations)
    whole, _ = passes(tree, sorted({test for mutation in chosen for test in mutation.tests}))
    failed = []
    for mutation in chosen:
        began = time.monotonic()
        code, said = (0, "") if whole == 0 else passes(tree, mutation.tests)
        why = f"its tests do not pass as it is (exit {code})\n{said}" if code else survived(tree, mutation)
        verdict = "NOT KILLED" if why else "killed"
        say(f"{verdict:10} {time.monotonic() - began:5.1f} s  {mutation.item:>4}  {mutation.name}")
        if why:
            failed.append(mutation.name)
            say(why)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("words", nargs="*", help="mutations whose name, item or file of tests holds one of these")
    parser.add_argument("--list", action="store_true", help="name them, run nothing")
    options = parser.parse_args()
    chosen = [one for one in load() if not options.words or any(one.matches(word) for word in options.words)]
    if options.list:
        print("\n".join(f"{one.item:>4}  {one.name}" for one in chosen))
        return 0
    with tempfile.TemporaryDirectory(prefix="rlctl-mutations-") as folder:
        copy_tree(Path(folder))
        failed = check(Path(folder), chosen, lambda line: print(line, flush=True))
    print(f"{len(chosen) - len(failed)} killed, {len(failed)} not")
    return 1 if failed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
