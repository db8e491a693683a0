"""Whatever a file or `--set` holds, the answer is a spec or a SpecError, never another exception."""

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from rlctl.errors import Problem, SpecError
from rlctl.spec import load
from rlctl.spec.fields import everywhere
from rlctl.spec.words import dotted
from rlctl.spec.yaml import read
from tests.spec.conftest import ROOMY

SETTINGS = settings(max_examples=100, deadline=None, database=None)
KEYS = sorted({path[-1] for path in everywhere()})
MARKS = [
    *"{}[],:-?&*!|>'\"%@`#~=<\\",
    "\n",
    "\n  ",
    "\n    ",
    "\t",
    " ",
    ": ",
    "- ",
    "---\n",
    "...\n",
    "<<: ",
    "&a ",
    "*a",
]
WORDS = [
    *KEYS,
    "1e-4",
    "010",
    ".inf",
    "yes",
    "null",
    "impala",
    "a:B",
    "9" * 30,
    "2Gi",
    "5m",
    "é",
    "\0",
    "\ufeff",
    "\u2028",
]
SNIPPETS = st.lists(st.sampled_from(MARKS + WORDS), max_size=40).map("".join)

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 70), st.floats(), st.sampled_from(WORDS), st.text(max_size=4)
)
VALUES = st.recursive(
    SCALARS,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.sampled_from(WORDS), below, max_size=4),
    max_leaves=12,
)


def flow(value: object) -> str:
    """A value as YAML in one line, not always right."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {flow(below)}" for key, below in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(flow, value)) + "]"
    return "" if value is None else str(value)


def survives(text: bytes, *sets: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "spec.yaml")
        path.write_bytes(text)
        problems: list[Problem] = []
        try:
            load([path], sets, machine=ROOMY)
        except SpecError as error:
            problems = error.problems or [Problem("", "")]
    for problem in problems:
        assert problem.message
        assert str(problem).isprintable() or sets
        assert problem.line <= text.count(b"\n") + 1


@SETTINGS
@given(st.text(max_size=60) | SNIPPETS)
def test_any_text_is_read_or_has_problems(text: str) -> None:
    tree = read(text, "f")
    assert tree.value is None or tree.places[()]
    assert not tree.broken or tree.problems


@SETTINGS
@given(st.binary(max_size=60) | SNIPPETS.map(str.encode))
def test_any_file_is_a_spec_or_a_spec_error(text: bytes) -> None:
    survives(text)


@SETTINGS
@given(
    st.dictionaries(
        st.sampled_from(["run", "env", "algorithm", "policies", "roles", "stop", *KEYS]), VALUES, max_size=5
    )
)
def test_any_mapping_of_known_keys_is_a_spec_or_a_spec_error(values: dict[str, object]) -> None:
    survives(flow({"run": "a", "env": {"id": "b"}, **values}).encode("utf-8", "replace"))


@SETTINGS
@given(st.sampled_from([dotted(path) for path in everywhere()]), VALUES.map(flow) | st.text(max_size=8))
def test_any_set_of_a_known_path_is_a_spec_or_a_spec_error(path: str, value: str) -> None:
    survives(b"run: a\nenv: {id: b}\nroles: {replay: {}}\n", f"{path}={value}", "policies.main.population=1")
