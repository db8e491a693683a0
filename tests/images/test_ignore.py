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
    ],
)
def test_a_pattern_leaves_out_what_docker_leaves_out(patterns: str, path: str, out: bool) -> None:
    assert Ignore.parse(patterns).leaves_out(path) is out


def test_an_empty_file_leaves_out_nothing() -> None:
    assert not Ignore.parse("").leaves_out("a")
    assert not Ignore.parse("").takes_back
    assert Ignore.parse("!a").takes_back
