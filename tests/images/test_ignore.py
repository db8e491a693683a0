"""Patterns of a .dockerignore, by Docker's documentation."""

import pytest

from rlctl.images.ignore import Ignore


@pytest.mark.parametrize(
    ("patterns", "path", "out"),
    [
        ("data", "data/big.npy", True),
        ("/data/", "data/big.npy", True),
        ("data", "more/data/big.npy", False),  # not below the top, unlike in a .gitignore
        ("**/data", "more/data/big.npy", True),
        ("**/data", "data", True),
        ("*.log", "a.log", True),
        ("*.log", "logs/a.log", False),
        ("**/*.log", "logs/deep/a.log", True),
        ("*/temp*", "some/temporary.txt", True),
        ("*/*/temp*", "some/temporary.txt", False),
        ("temp?", "tempa", True),
        ("temp?", "temp", False),
        ("run[0-9]", "run7/x", True),
        ("run[!0-9]", "run7/x", False),
        (r"a\*b", "a*b", True),
        (r"a\*b", "aab", False),
        ("docs/**", "docs/a/b.md", True),
        ("docs/**", "docs2/a.md", False),
        ("# notes\n\n  data  ", "data/x", True),
        ("# notes", "# notes", False),
        ("*\n!keep", "keep/a.py", False),
        ("*\n!keep", "other/a.py", True),
        ("*.md\n!README.md", "README.md", False),
        ("*.md\n!README.md\nREADME*", "README.md", True),
        ("./data", "data", True),
        ("a.c", "abc", False),
        ("**.pyc", "a/b.pyc", True),
        ("**/a/**/b", "x/a/b", True),
        ("**/a/**/b", "a/x/y/b/c", True),
        ("**/a/**/b", "a/x/y", False),
        ("*a*b", "xaxbxb", True),
        ("[z-a]", "[z-a]", True),
        ("[[&&]", "&", True),
    ],
)
def test_a_pattern_leaves_out_what_docker_leaves_out(patterns: str, path: str, out: bool) -> None:
    assert Ignore.parse(patterns).leaves_out(path) is out


@pytest.mark.parametrize(
    ("pattern", "path"), [("*a" * 60 + "*b", "a" * 250), ("**/a/" * 60 + "b", "/".join("a" * 100))]
)
def test_no_pattern_takes_longer_than_it_is_long(pattern: str, path: str) -> None:
    assert not Ignore.parse(pattern).leaves_out(path)
    assert Ignore.parse(pattern).leaves_out(f"{path}b" if "/" not in path else f"{path}/b")


def test_an_empty_file_leaves_out_nothing() -> None:
    assert not Ignore.parse("").leaves_out("a")
    assert not Ignore.parse("").takes_back
    assert Ignore.parse("!a").takes_back
