"""Sources of the site, and the proof that a built one asks no other host."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rlctl.cli.app import make_command
from rlctl.spec.algorithms import BUILT
from rlctl.spec.fields import everywhere, hidden
from scripts.pages import command_line, spec
from scripts.pages.__main__ import REFERENCE, linked, main, write
from scripts.pages.local import main as look
from scripts.pages.local import third_parties


def test_every_page_is_in_the_navigation(tmp_path: Path) -> None:
    assert main([str(tmp_path / "pages")]) == 0


def test_the_readme_is_the_first_page_and_images_come_along(tmp_path: Path) -> None:
    pages = write(tmp_path / "pages")
    assert {"index.md", "changelog.md", "decisions/index.md", "reference/spec.md"} <= set(pages)
    shown = re.findall(r"!\[.*?\]\((.*?)\)", (tmp_path / "pages/learning.md").read_text())
    assert shown
    assert all((tmp_path / "pages" / name).is_file() for name in shown)


@pytest.mark.parametrize(
    ("source", "written", "shown"),
    [
        ("README.md", "[a](docs/wire.md#books)", "[a](wire.md#books)"),
        ("docs/algorithms/ppo.md", "[a](../learning.md)", "[a](../learning.md)"),
        ("docs/learning.md", "[specs](../specs/learn)", "specs"),
        ("docs/sweeps.md", "[why](decisions/0005-dependencies.md)", "[why](decisions/0005-dependencies.md)"),
        ("README.md", "[docs/decisions/](docs/decisions/)", "[docs/decisions/](decisions/index.md)"),
        ("docs/ci.md", "[the spec](../rlctl/spec/schema.py)", "[the spec](reference/spec.md)"),
        ("docs/ci.md", "[a](https://example.org) [b](#all-keys)", "[a](https://example.org) [b](#all-keys)"),
        ("docs/up.md", "![up](up.svg)", "![up](images/docs/up.svg)"),
        ("docs/ci.md", "```\n[a](nowhere.md)\n```", "```\n[a](nowhere.md)\n```"),
    ],
)
def test_links_lead_where_the_site_has_the_page(source: str, written: str, shown: str) -> None:
    assert linked(written, source) == shown + "\n"


def test_a_link_to_nowhere_is_told() -> None:
    with pytest.raises(ValueError, match=r"docs/ci.md: \[a\]\(nowhere.md\): there is no docs/nowhere.md"):
        linked("[a](nowhere.md)", "docs/ci.md")


def test_every_field_of_the_spec_is_on_its_page_with_its_meaning() -> None:
    page = spec.page()
    names = {path[-1] for path in everywhere() if not hidden(path)}
    assert {name for name in names if f"| `{name}` |" not in page and f".{name}\n" not in page} == set()
    for name in BUILT:
        assert f"## algorithm: {name}\n" in page
    assert "| `gamma` | number ≥ 0, ≤ 1 | `0.99` | Discount factor of one agent step. | restarts learner |" in page
    assert "| `eval_return` | number or null | `null` |" in page


def test_every_command_and_option_is_on_its_page() -> None:
    page = command_line.page()
    for name, command in make_command().commands.items():
        assert command.hidden or f"\n## rlctl {name}\n" in page
        assert all(option in page for one in command.params for option in one.opts if option.startswith("--"))
    assert "## rlctl sweep list\n" in page
    assert "| 7 | the run failed |" in page


def test_every_object_of_the_python_page_is_there() -> None:
    for name in re.findall(r"^::: (\S+)$", REFERENCE["reference/python.md"](), re.MULTILINE):
        *path, last = name.split(".")
        place = Path(__file__).parents[2].joinpath("agents", *path)
        source = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        assert re.search(rf"^(class|def) {last}\b", source.read_text(), re.MULTILINE), name


@pytest.mark.parametrize(
    "html",
    [
        '<link rel="stylesheet" href="https://fonts.example.org/a.css">',
        "<script src='//cdn.example.org/a.js'></script>",
        '<IMG src="http://example.org/a.png">',
        "<style>@import 'https://example.org/a.css';</style>",
        '<p style="background: url(https://example.org/a.png)">',
    ],
)
def test_what_is_loaded_from_another_host_is_found(tmp_path: Path, html: str) -> None:
    (tmp_path / "index.html").write_text(f"<html><body>{html}</body></html>")
    assert len(list(third_parties(tmp_path))) == 1
    assert look([str(tmp_path)]) == 1


def test_links_to_read_on_and_files_of_the_site_are_no_third_parties(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text('<a href="https://example.org">a</a><script src="a.js"></script>')
    (tmp_path / "a.css").write_text("a { background: url(data:image/svg+xml;base64,AAAA) }")
    assert look([str(tmp_path)]) == 0
    assert look([str(tmp_path / "none")]) == 2
