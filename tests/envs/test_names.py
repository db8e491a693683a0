"""From a name in a spec to a user's own code: environments, networks and algorithms are told the same words."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlctl_agents import algorithms, envs
from rlctl_agents.algorithms.base import AlgorithmError
from rlctl_agents.envs import EnvRefused
from rlctl_agents.envs.names import attribute
from rlctl_agents.types.by_name import LoadError, load

HERE = __name__


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Makes a module of the user's own; it is forgotten after the test."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def written(name: str, text: str) -> None:
        monkeypatch.delitem(sys.modules, name, raising=False)
        (tmp_path / f"{name}.py").write_text(text)

    return written


def test_a_name_leads_to_what_the_module_holds() -> None:
    assert load(f"{HERE}:HERE") == HERE
    assert load("pathlib:Path") is attribute("pathlib:Path") is Path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import not_installed_here", "users_own_code imports not_installed_here, which is not installed"),
        ("1 / 0", "importing users_own_code: ZeroDivisionError: division by zero"),
        ("Wrold = 3", "users_own_code has no World; did you mean Wrold?"),
    ],
)
def test_a_fault_of_a_users_module_is_told_alike_wherever_it_is_named(
    write: Callable[[str, str], None], text: str, words: str
) -> None:
    path = "users_own_code:World"
    write("users_own_code", f"{text}\n")
    with pytest.raises(LoadError) as loaded:
        load(path)
    with pytest.raises(EnvRefused) as made:
        envs.make(path, envs=1, seeds=[0])
    with pytest.raises(AlgorithmError) as found:
        algorithms.find(path)
    assert str(loaded.value) == str(made.value) == f"{path}: {words}"
    assert str(found.value) == f"algorithm {path}: {words}"


def test_an_environment_that_imports_a_missing_simulator_is_told_the_extra_that_brings_it(
    write: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    write("users_own_code", "import Box2D\n")
    monkeypatch.setitem(sys.modules, "Box2D", None)  # as Python sees a package that is not installed
    with pytest.raises(EnvRefused) as caught:
        envs.make("users_own_code:World", envs=1, seeds=[0])
    said = 'users_own_code:World: users_own_code needs the package Box2D: pip install "rlctl[box2d]"'
    assert str(caught.value) == said


@pytest.mark.parametrize("id", ["CartPole-v1", "tests.envs.tiny:TinyClock-v0", "ALE/Pong-v5"])
def test_an_id_of_gymnasiums_is_nobodys_attribute(id: str) -> None:
    assert attribute(id) is None


def test_the_cause_of_a_failed_import_is_kept(write: Callable[[str, str], None]) -> None:
    write("users_own_code", "raise LookupError('no map')\n")
    with pytest.raises(LoadError) as caught:
        load("users_own_code:World")
    cause: Any = caught.value.__cause__
    assert isinstance(cause, LookupError)
