"""The table of mutations fits the code, and its harness tells a test that notices from one that does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mutations.__main__ import check
from tests.mutations.table import ROOT, Edit, Mutation, apply, load

MUTATIONS = load()


def stale(mutation: Mutation) -> Iterator[str]:
    """Names of a mutation that are not there."""
    texts = {edit.file: (ROOT / edit.file).read_text() for edit in mutation.edits}
    try:
        if apply(mutation, texts) == texts:
            yield f"{mutation.name}: changes nothing"
    except ValueError as error:
        yield str(error)
    for test in mutation.tests:
        path, *names = test.split("::")
        text = (ROOT / path).read_text() if (ROOT / path).is_file() else ""
        if not (ROOT / path).exists() or not all(name.partition("[")[0] in text for name in names):
            yield f"{mutation.name}: no {test}"


def test_mutations_change_the_code_as_it_stands_and_name_tests_that_exist() -> None:
    assert [fault for mutation in MUTATIONS for fault in stale(mutation)] == []


def test_names_are_different() -> None:
    assert len({one.name for one in MUTATIONS}) == len(MUTATIONS)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "double.py").write_text("def double(x):\n    return 2 * x\n")
    (tmp_path / "test_double.py").write_text(
        "from double import double\n"
        "def test_notices():\n    assert double(3) == 6\n"
        "def test_does_not():\n    assert double(0) == 0\n"
        "def test_is_red():\n    assert double(1) == 1\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p no:schemathesis\n")  # seconds of each of seven starts
    return tmp_path


def mutation(test: str) -> Mutation:
    return Mutation(test, "0", (Edit("double.py", "2 * x", "3 * x"),), (f"test_double.py::{test}",))


@pytest.mark.processes
@pytest.mark.timeout(600)
def test_the_harness_tells_tests_that_notice_from_those_that_do_not(tree: Path) -> None:
    said: list[str] = []
    names = ("test_notices", "test_does_not", "test_is_red", "test_is_not_there")
    failed = check(tree, [mutation(name) for name in names], said.append)
    assert failed == ["test_does_not", "test_is_red", "test_is_not_there"]
    assert said[0].startswith("killed")
    assert (tree / "double.py").read_text() == "def double(x):\n    return 2 * x\n", "the copy is as it was"


def test_a_text_that_is_not_there_once_is_refused() -> None:
    with pytest.raises(ValueError, match="0 times"):
        apply(mutation("a"), {"double.py": "nothing"})
    with pytest.raises(ValueError, match="2 times"):
        apply(mutation("a"), {"double.py": "2 * x 2 * x"})
