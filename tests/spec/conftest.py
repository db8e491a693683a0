from collections.abc import Callable
from pathlib import Path

import pytest

from rlctl.errors import SpecError
from rlctl.spec import Loaded, Machine, load

ROOMY = Machine(cores=1000, memory_mib=1e9)
Load = Callable[..., Loaded]
Lint = Callable[..., list[str]]


@pytest.fixture
def load_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Loads a spec given as text; its file is called spec.yaml, further texts over-0.yaml, over-1.yaml."""
    monkeypatch.chdir(tmp_path)

    def load_text(text: str, *over: str, sets: tuple[str, ...] = (), machine: Machine = ROOMY) -> Loaded:
        paths = [Path("spec.yaml"), *(Path(f"over-{number}.yaml") for number in range(len(over)))]
        for path, content in zip(paths, (text, *over), strict=True):
            path.write_text(content, encoding="utf-8")
        return load(paths, sets, machine=machine)

    return load_text


@pytest.fixture
def lint(load_text: Load) -> Lint:
    """Problems, or findings when there are no problems, as `lint` prints them."""

    def lint(text: str, *over: str, sets: tuple[str, ...] = (), machine: Machine = ROOMY) -> list[str]:
        try:
            return [str(finding) for finding in load_text(text, *over, sets=sets, machine=machine).findings]
        except SpecError as error:
            return [str(problem) for problem in error.problems]

    return lint
