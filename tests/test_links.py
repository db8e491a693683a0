"""Links in git that lead out of the tree."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.links import strays


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").touch()
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    return tmp_path


def add(tree: Path, link: str, target: str) -> None:
    (tree / link).symlink_to(target)
    subprocess.run(["git", "add", "-A"], cwd=tree, check=True)


@pytest.mark.parametrize(("link", "target"), [("a", "/tmp"), ("docs/a", "../../b"), ("a", ".."), ("a b", "/x y")])
def test_a_tracked_link_out_of_the_tree_is_refused(tree: Path, link: str, target: str) -> None:
    add(tree, link, target)
    assert strays(tree) == [f"{link} -> {target}"]


def test_a_link_within_the_tree_and_one_that_git_does_not_know_are_allowed(tree: Path) -> None:
    add(tree, "docs/again.md", "../docs/page.md")
    (tree / "mine").symlink_to("/tmp")
    assert strays(tree) == []
