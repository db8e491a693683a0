"""Names of models and folders, as every command and `rlctl_agents.load` take them."""

from __future__ import annotations

import re

import pytest

from rlctl.errors import UsageError
from rlctl.spec.runs.model_names import is_folder, split
from rlctl.spec.schema import MODEL

NONE = ["@best", "", "pole@", "pole@first", "pole@-1", "pole@1.5", "pole@best@best", "pole@²", "pole@1234567890"]


@pytest.mark.parametrize("text", NONE)
def test_a_name_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="names no model"):
        split(text)


def test_numbers_of_generations_may_have_zeros_in_front() -> None:
    assert split("pole@000007") == ("pole", "7")
    assert split("pole") == ("pole", None)


@pytest.mark.parametrize("text", [*NONE, "pole", "pole@goal", "pole@best", "pole@last", "pole@7", "pole@123456789"])
def test_a_spec_takes_the_names_that_a_command_takes(text: str) -> None:
    assert (re.match(MODEL, text) is None) == (text in NONE)


def test_a_name_without_a_slash_is_a_run() -> None:
    assert [is_folder(text) for text in ("model", "model@best", "./model", "a/b", "/a", ".", "..")] == [
        False, False, True, True, True, True, True,
    ]  # fmt: skip
