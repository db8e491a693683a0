"""Whole documents in block style: any reader of YAML gets back what went in."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rlctl.render.encode import to_document
from rlctl.spec.yaml import read
from tests.render.cluster import Run, rendered, spec_of

AWKWARD = [
    "", " ", "a: b", "- a", "---", "...", "# a", "a #b", "no", "ON", "y", "~", "null", "010", "1e5", "1_000",
    "12:30:45", "2026-01-01", "0x1F", ".inf", "a\nb", "a\n", "a\n\n", "\na\n", " a\n", "a \n", "a\n b\n",
    "a\n\nb\n", "a\n---\nb\n", "{{ x }}", "{a: b}", "[a]", "*a", "&a", "!a", "|", ">", "%a", "@a", "`a`", "'a'",
    '"a"', "a\tb", "\t", "é", "\u2028", "\x85", "\ufeff", "\x7f", "x\n  hostNetwork: true", "a:", ":a", "-", "--",
    "--a", "$(A)", "=", "<<",
]  # fmt: skip
TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",))) | st.sampled_from(AWKWARD)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=15,
)


@given(st.dictionaries(TEXT, VALUES, min_size=1, max_size=5))
def test_pyyaml_reads_back_what_was_written(value: dict[str, Any]) -> None:
    assert yaml.safe_load(to_document(value)) == value


@given(st.dictionaries(TEXT, VALUES, min_size=1, max_size=5))
def test_a_reader_of_yaml_1_2_reads_back_the_same(value: dict[str, Any]) -> None:
    tree = read(to_document(value), "f")
    # a key such as "no" is text to both; ours refuses none that is in quotes
    assert not tree.problems
    assert tree.value == value


@pytest.mark.parametrize("text", AWKWARD)
def test_awkward_text_stays_text_everywhere(text: str) -> None:
    value = {"a": text, "b": [text, {text or "k": text}], "c": {"d": text}}
    assert yaml.safe_load(to_document(value)) == value
    assert read(to_document(value), "f").value == value


def test_a_document_reads_as_a_person_writes_it() -> None:
    text = to_document({"a": {"b": "x", "c": [1, "no", {"d": [], "e": {}}]}, "f": "one\n  two\n"})
    assert text == (
        "a:\n"
        "  b: x\n"
        "  c:\n"
        "    - 1\n"
        '    - "no"\n'
        "    - d: []\n"
        "      e: {}\n"
        "f: |\n"
        "  one\n"
        "    two\n"
    )  # fmt: skip


STRINGS = [text for text in AWKWARD if text]


def with_texts(env_id: str, texts: list[str]) -> Run:
    """Wherever the schema takes any text it ends in a run file, or as one argument of the proxy."""
    return Run(
        spec_of(
            env={"id": env_id, "kwargs": {"x": texts}},
            algorithm={"name": "mine:Ours", "params": {"x": texts}},
            model={"torso": "mine:Net", "params": {"x": {"y": texts}}},
            kubernetes={
                "expose": "loadbalancer",
                "source_ranges": ["203.0.113.0/24"],
                "proxy": {"image": spec_of().images.core, "args": [*texts, "last"]},
            },
        )
    )


@pytest.mark.parametrize("env_id", ["x\n  hostNetwork: true", "a\n---\nkind: Pod\n", '"}}', "\u2028\x85\ufeff"])
def test_no_text_of_a_spec_adds_anything_to_a_document(env_id: str) -> None:
    awkward, usual = with_texts(env_id, STRINGS), with_texts("x", ["x"] * len(STRINGS))
    assert [_shape(it) for it in awkward.objects] == [_shape(it) for it in usual.objects]
    proxy = awkward.workload("proxy-status")["spec"]["template"]["spec"]["containers"][0]
    assert proxy["args"] == [*STRINGS, "last"]
    run_file = next(
        json.loads(it["data"]["run.json"]) for it in awkward.of("ConfigMap") if "-actor-" in it["metadata"]["name"]
    )
    assert run_file["spec"]["env"]["id"] == env_id
    assert run_file["spec"]["env"]["kwargs"] == {"x": STRINGS}


def _shape(value: Any) -> Any:
    """Form of a document without its texts."""
    if isinstance(value, dict):
        return {key: _shape(below) for key, below in value.items()}
    return [_shape(item) for item in value] if isinstance(value, list) else type(value)


def test_no_document_needs_quotes_around_its_own_words() -> None:
    for document in rendered(spec_of()):
        assert document.text.startswith("apiVersion: ")
        assert "\t" not in document.text
        assert all(line == line.rstrip() for line in document.text.splitlines())
