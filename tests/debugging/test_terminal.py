"""The folder in which the user's code is looked for."""

from __future__ import annotations

import bdb
import io
import json
import os
import pdb
import subprocess
import sys
from pathlib import Path

import pytest

from rlctl_agents.debugging.terminal import DebugOutput, go_to, is_quit
from rlctl_agents.envs.base import EnvError

LOOK = "import json, sys\nprint(json.dumps(sys.path))\n"
GO = """
import sys
from pathlib import Path
from rlctl_agents.debugging.terminal import DebugOutput, go_to
go_to(Path(sys.argv[1]), DebugOutput(sys.stdout, False, True))
"""


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """`code.path`, and one that only the shell's PYTHONPATH names."""
    code, other = tmp_path / "code", tmp_path / "other"
    for folder in (code, other):
        folder.mkdir()
    (code / "look.py").write_text(LOOK)
    (other / "go.py").write_text(GO + LOOK)
    return code, other


def searched(folder: Path, module: str, *arguments: str, path: str) -> list[str]:
    """Folders in which a program that is started there looks for modules."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: list[str] = json.loads(done.stdout)
    return list(dict.fromkeys(found))


@pytest.mark.processes
def test_code_is_looked_for_where_a_role_looks_whatever_the_shell_has_on_its_path(folders: tuple[Path, Path]) -> None:
    code, other = folders
    ours = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
    shell = os.pathsep.join([str(other), str(code.parent), *ours])
    assert searched(other, "go", str(code), path=shell) == searched(code, "look", path=str(code))


def test_folders_that_are_left_out_are_noted_and_those_of_installed_packages_stay(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, other = folders
    installed = next(one for one in sys.path if one.endswith("site-packages"))
    monkeypatch.chdir(other)
    monkeypatch.setattr(sys, "path", [str(other), str(code), str(other), installed])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(code), str(other), installed]))
    go_to(code, DebugOutput(io.StringIO(), False, False))
    assert sys.path == [str(code), installed]
    assert (os.environ["PYTHONPATH"], Path.cwd()) == (str(code), code)
    note = "note: as in a run, code.path is in the place of PYTHONPATH:"
    assert capsys.readouterr().err == f"{note} {other} left out\n"


def test_without_code_the_path_of_the_shell_counts(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    _, other = folders
    monkeypatch.chdir(other)
    monkeypatch.setattr(sys, "path", [str(other), str(other), "x"])
    monkeypatch.setenv("PYTHONPATH", str(other))
    go_to(None, DebugOutput(io.StringIO(), False, False))
    assert (sys.path, os.environ["PYTHONPATH"]) == ([str(other), "x"], str(other))


def wrapped(error: BaseException, file: str) -> BaseException:
    """An error made of one that is raised in a file."""
    try:
        eval(compile("fail()", file, "eval"), {"fail": lambda: (_ for _ in ()).throw(error)})
    except (Exception, SystemExit) as cause:
        made = EnvError("step raised it")
        made.__cause__ = cause
        return made
    raise AssertionError("it was raised")


@pytest.mark.parametrize(
    ("error", "file", "quits"),
    [(bdb.BdbQuit(), "mine.py", True), (SystemExit(), pdb.__file__, True), (SystemExit(), "mine.py", False)],
)
def test_the_debuggers_q_is_known_through_the_error_that_was_made_of_it(
    error: BaseException, file: str, quits: bool
) -> None:
    assert is_quit(wrapped(error, file)) == quits
