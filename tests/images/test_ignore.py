"""Patterns of a .dockerignore, by Docker's documentation."""

from pathlib import Path

import pytest

from rlctl.errors import UsageError
from rlctl.images.ignore import MAX_BYTES, MAX_PATTERN, MAX_PATTERNS, Ignore


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


def written(folder: Path, text: str) -> Path:
    path = folder / ".dockerignore"
    path.write_text(text)
    return path


def test_a_file_that_is_not_there_leaves_out_nothing(tmp_path: Path) -> None:
    assert Ignore.read(tmp_path / ".dockerignore") == Ignore(())


def test_as_many_and_as_long_patterns_as_may_be_are_read_and_comments_do_not_count(tmp_path: Path) -> None:
    short = "".join(f"# {at}\n{at}\n\n" for at in range(MAX_PATTERNS - 1))
    read = Ignore.read(written(tmp_path, f"{short}  {'x' * MAX_PATTERN}  \n"))
    assert len(read.rules) == MAX_PATTERNS
    assert read.leaves_out("x" * MAX_PATTERN)


def test_one_pattern_more_than_may_be_is_named_with_its_line(tmp_path: Path) -> None:
    path = written(tmp_path, "# notes\n" + "a\n" * (MAX_PATTERNS + 1))
    with pytest.raises(UsageError) as refusal:
        Ignore.read(path)
    assert refusal.value.message == f"{path}:1002: 1001 patterns, and at most 1000 are read"
    assert refusal.value.hint


def test_every_pattern_that_is_too_long_is_named_with_its_line_up_to_twenty(tmp_path: Path) -> None:
    long = "x" * (MAX_PATTERN + 1)
    with pytest.raises(UsageError) as refusal:
        Ignore.read(written(tmp_path, f"a\n{long}\n{long}\n"))
    said = "a pattern of 1001 characters, and at most 1000 are read"
    assert refusal.value.message == f"{tmp_path}/.dockerignore:2: {said}; {tmp_path}/.dockerignore:3: {said}"
    with pytest.raises(UsageError, match=r"\.dockerignore:20: .*; and 5 more$"):
        Ignore.read(written(tmp_path, f"{long}\n" * 25))


def test_a_file_that_is_too_long_is_refused_before_its_patterns_are_looked_at(tmp_path: Path) -> None:
    path = written(tmp_path, "a\n" * (MAX_BYTES // 2) + "b")
    with pytest.raises(UsageError) as refusal:
        Ignore.read(path)
    assert refusal.value.message == f"{path}:65537: the file goes on beyond 128 KiB, and at most that is read"
    assert len(Ignore.read(written(tmp_path, "#" * MAX_BYTES)).rules) == 0
