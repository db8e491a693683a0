from typing import Any

import pytest

from rlctl.spec.yaml import MAX_BYTES, Location, Tree, plain, read


def faults(text: str) -> list[str]:
    return [str(problem) for problem in read(text, "f").problems]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("1E5", 1e5),
        ("1e5", 1e5),
        (".5", 0.5),
        ("-.5e+1", -5.0),
        ("5.", 5.0),
        ("0.1", 0.1),
        ("42", 42),
        ("-7", -7),
        ("+7", 7),
        ("010", 10),
        ("0o10", 8),
        ("0x1F", 31),
        ("18446744073709551615", 2**64 - 1),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("yes", "yes"),
        ("no", "no"),
        ("on", "on"),
        ("Off", "Off"),
        ("y", "y"),
        ("1_000", "1_000"),
        ("12:30:45", "12:30:45"),
        ("2026-11-21", "2026-11-21"),
        ("0b11", "0b11"),
        ("1e", "1e"),
        ("0.0.1", "0.0.1"),
        ("=", "="),
    ],
)
def test_plain_scalars_are_read_as_yaml_1_2_core_says(text: str, value: Any) -> None:
    assert plain(text) == value
    assert type(plain(text)) is type(value)
    assert read(f"key: {text}", "f").value == {"key": value}


@pytest.mark.parametrize(
    "text", [".inf", "-.Inf", ".nan", ".NaN", "1e999", "99999999999999999999", "9" * 5000, "0xfffffffffffffffff"]
)
def test_numbers_that_a_spec_cannot_hold_are_refused_with_their_place(text: str) -> None:
    (fault,) = faults(f"a: 1\nkey: {text}")
    assert fault.startswith("f:2:6: key: ")


def test_quoted_scalars_stay_text() -> None:
    assert read("a: '1'\nb: \"true\"\nc: |\n  2\n", "f").value == {"a": "1", "b": "true", "c": "2\n"}


def test_every_value_has_the_place_of_its_key_or_of_its_entry() -> None:
    places = read("run: x\nroles:\n  actor:\n    envs: 4\nmodel: {hidden: [64,\n   32]}\n", "f").places
    assert places == {
        (): Location("f", 1, 1),
        ("run",): Location("f", 1, 1),
        ("roles",): Location("f", 2, 1),
        ("roles", "actor"): Location("f", 3, 3),
        ("roles", "actor", "envs"): Location("f", 4, 5),
        ("model",): Location("f", 5, 1),
        ("model", "hidden"): Location("f", 5, 9),
        ("model", "hidden", 0): Location("f", 5, 18),
        ("model", "hidden", 1): Location("f", 6, 4),
    }


def test_columns_count_characters_not_bytes() -> None:
    assert read("{ä: 1, b: 2}", "f").places["b",] == Location("f", 1, 8)


def test_a_key_given_twice_is_refused_naming_both_lines() -> None:
    assert faults("algorithm:\n  lr: 1\n  name: impala\n  lr: 2\n") == [
        "f:4:3: algorithm.lr: given twice, in line 2 and in line 4; keep one"
    ]


def test_keys_of_different_mappings_may_be_equal() -> None:
    assert faults("a: {x: 1}\nb: {x: 1}\nx: 1") == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a: &x 1", "f:1:4: a: anchors (&x) are not allowed; remove it"),
        ("a: &x {b: 1}", "f:1:4: a: anchors (&x) are not allowed; remove it"),
        ("a: !!str 3", "f:1:4: a: tags (!!str) are not allowed; remove it, and put text in quotes"),
        (
            "a: !!python/object/apply:os.system [ls]",
            "f:1:4: a: tags (!!python/object/apply:os.system) are not allowed; remove it, and put text in quotes",
        ),
        ("a: !mine {b: {c: [1]}}\nd: 1", "f:1:4: a: tags (!mine) are not allowed; remove it, and put text in quotes"),
        ("? [1, 2]\n: 3", "f:1:3: a key must be plain text"),
        ("? {a: b}\n: {c: d}", "f:1:3: a key must be plain text"),
        ("!!str a: 1", "f:1:1: a key must be plain text"),
        ("a: {1: x}", "f:1:5: a.1: a key must be text; put it in quotes: '1'"),
        ("true: x", "f:1:1: true: a key must be text; put it in quotes: 'true'"),
        ("<<: {a: 1}", "f:1:1: <<: merge keys are not allowed; give a second file instead"),
        ("a: 1\n---\nb: 2", "f:2:1: `---` starts a second document; a file holds one, give two files"),
        ("a: 1\nb: \x07", "f:2:4: the character '\\x07' is not allowed; remove it"),
        ("a: 1\rb: 2", "f:1:5: the character '\\r' is not allowed; remove it"),
        ("a: x\u2028y", "f:1:5: the character '\\u2028' is not allowed; remove it"),
        ("a: {", "f:1:5: not YAML: a value is missing"),
        ("a: b: c", "f:1:5: not YAML: `: ` does not fit here; start a new line, or put the value in quotes"),
        ("a:\n\tb: 1", "f:2:1: not YAML: a tab cannot indent; use spaces"),
        ("a: @b", "f:1:4: not YAML: a value cannot start with @; put it in quotes"),
        (
            "a:\n  b: 1\n c: 2",
            "f:3:2: not YAML: the indentation does not fit, or a `:` is missing (it begins in line 1)",
        ),
        ("a: 1\nb: [1,\n2", "f:2:4: not YAML: a `,` or the closing `]` is missing"),
        ("a: ['a' 'b',\n2]", "f:1:9: not YAML: a `,` or the closing `]` is missing"),
        ("a: {b: 1\nc: 2", "f:2:2: not YAML: a `,` or the closing `}` is missing (it begins in line 1)"),
        ("a: 'b\nc: 1", "f:1:4: not YAML: a quote is not closed"),
    ],
)
def test_what_a_spec_may_not_use_is_refused_in_words(text: str, fault: str) -> None:
    assert faults(text) == [fault]


def test_aliases_are_refused_and_their_value_counts_as_unreadable() -> None:
    tree = read("a: &x 1\nb: *x", "f")
    assert [problem.path for problem in tree.problems] == ["a", "b"]
    assert tree.value == {"a": 1}
    assert tree.broken == {("b",)}


def test_all_faults_of_a_document_are_reported_not_only_the_first() -> None:
    assert len(faults("a: &x 1\nb: *x\nc: !t 1\nd: .inf\na: 2\n{x: y}: 1\n---\n")) == 7


def test_a_fault_of_syntax_does_not_hide_the_faults_before_it() -> None:
    assert [fault.split(":")[1] for fault in faults("a: &x 1\nb: [1")] == ["1", "2"]


def test_deep_nesting_is_refused_before_python_runs_out_of_stack() -> None:
    for text in ("[" * 900 + "]" * 900, "{a: " * 900 + "}" * 900, "\n".join("  " * i + "a:" for i in range(500))):
        assert "nested deeper than 32 levels" in faults(text)[0]


def test_what_would_take_without_bounds_to_read_is_not_read_on() -> None:
    for text in ("[" * 500_000, "? " + "[" * 500_000, "{a: " * 100_000):
        assert "nested deeper than 32 levels" in faults(text)[-1]
    many = faults("".join(f"k{at}: !t 1\n" for at in range(20_000)))
    assert len(many) == 1001
    assert many[-1] == "f:1001:1: 1000 problems so far; the rest is not read"
    assert faults(f"? {'k' * 501}\n: 1") == [f"f:1:3: a key has at most 500 characters, got '{'k' * 57}...'"]


def test_a_long_document_is_refused() -> None:
    assert faults("a: " + "x" * MAX_BYTES) == ["f: must be at most 1 MiB long"]


def test_a_long_flat_document_is_read_in_time() -> None:
    tree = read("\n".join(f"key{i}: {i}" for i in range(20_000)), "f")
    assert len(tree.value) == 20_000


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n", "---\n...\n"])
def test_an_empty_document_is_nothing_and_no_fault(text: str) -> None:
    assert read(text, "f") == Tree(value=None, places=read(text, "f").places, texts=read(text, "f").texts)


def test_numbers_keep_the_text_they_were_written_with() -> None:
    assert read("a: 007\nb: '1'\nc: x", "f").texts == {("a",): "007"}
