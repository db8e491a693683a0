"""docs/coming-from.md has every key of other trainers that lint knows, with ours beside it."""

from __future__ import annotations

import os

import pytest

from benchmarks.shared import tables
from rlctl.spec.problems.other_words import FOREIGN, ours
from tests.docs.blocks import ROOT

PAGE = ROOT / "docs" / "coming-from.md"
REWRITE = "RLCTL_REWRITE_GOLDEN"


def rows() -> list[list[str]]:
    there: dict[str, list[str]] = {}
    for key, here in FOREIGN.items():
        there.setdefault(here, []).append(f"`{key}`")
    return [[", ".join(keys), f"`{here}`"] for here, keys in there.items()]


def test_the_page_has_every_key_that_lint_knows() -> None:
    lines = tables.plain_table(("there", "here"), rows())
    if os.environ.get(REWRITE):
        tables.replace_section(PAGE, "keys", lines)
    assert "\n".join(lines) in PAGE.read_text(), f"{REWRITE}=1 pytest {__name__} writes it"


@pytest.mark.parametrize(
    ("path", "algorithm", "here"),
    [
        (("algorithm", "ent_coef"), "sac", "temperature"),
        (("algorithm", "alpha"), "sac", "temperature"),
        *((("algorithm", "train_batch_size"), name, "minibatch_size") for name in ("dqn", "r2d2", "sac", "td3")),
        (("env", "max_steps"), "ppo", "max_episode_steps"),
        (("env", "time_limit"), "ppo", "max_episode_steps"),
    ],
)
def test_what_means_something_else_elsewhere_is_said_by_lint_too(
    path: tuple[str, ...], algorithm: str, here: str
) -> None:
    assert ours(path, algorithm).endswith(f"here it is `{here}`")
    line = next(line for line in PAGE.read_text().splitlines() if line.startswith("| ") and f"`{path[-1]}`" in line)
    assert line.endswith(f"`{'env' if path[0] == 'env' else 'algorithm'}.{here}` |")
