"""Tars that strangers made: everything is below the folder, or nothing is."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from rlctl_ci.git.tars import lay


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname, found.mode, found.size = kind, link, mode, 2 if kind == tarfile.REGTYPE else 0
    return found


def unpacked(folder: Path, *members: tarfile.TarInfo) -> Path:
    """A folder below which they were laid, with `outside` beside it."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for one in members:
            tar.addfile(one, io.BytesIO(b"hi") if one.isreg() else None)
    to = folder / "to"
    to.mkdir()
    packed.seek(0)
    with tarfile.open(fileobj=packed) as tar:
        for one in tar:
            lay(tar, one, to)
    return to


def test_files_folders_and_links_are_laid_down_with_nothing_of_their_mode_but_whether_they_run(tmp_path: Path) -> None:
    to = unpacked(
        tmp_path, member("a", tarfile.DIRTYPE, mode=0), member("a/run", mode=0o6777), member("b/c/text", mode=0o600),
        member("b/up", tarfile.SYMTYPE, "../a/run"), member("b/c/down", tarfile.SYMTYPE, "./text"),
    )  # fmt: skip
    assert (to / "a/run").stat().st_mode & 0o7100 == 0o100
    assert (to / "b/c/text").stat().st_mode & 0o7100 == 0
    assert (to / "b/up").read_text() == (to / "b/c/down").read_text() == "hi"


@pytest.mark.parametrize(
    "members",
    [
        [member("/etc/x")],
        [member("../x")],
        [member("a/../../x")],
        [member("a", tarfile.SYMTYPE, "/etc")],
        [member("a", tarfile.SYMTYPE, "..")],
        [member("a/b", tarfile.SYMTYPE, "../../x")],
        [member("here", tarfile.SYMTYPE, "."), member("out", tarfile.SYMTYPE, "here/..")],
        [member("here", tarfile.SYMTYPE, "."), member("here/x")],
        [member("here", tarfile.SYMTYPE, "."), member("here", tarfile.DIRTYPE)],
        [member("x", tarfile.SYMTYPE, "y"), member("x")],
        [member("x"), member("x")],
        [member("a"), member("b", tarfile.LNKTYPE, "a")],
        [member("a", tarfile.FIFOTYPE)],
        [member("a", tarfile.CHRTYPE)],
    ],
    ids=lambda members: "-".join(f"{one.name}>{one.linkname}" for one in members),
)
def test_what_leads_out_or_behind_a_link_or_is_something_else_is_refused(
    tmp_path: Path, members: list[tarfile.TarInfo]
) -> None:
    with pytest.raises((ValueError, OSError), match=r"leads out|may lead out|behind a link|is neither|File exists"):
        unpacked(tmp_path, *members)
    assert {path.name for path in tmp_path.iterdir()} == {"to"}
