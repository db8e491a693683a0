"""Pages as people see them: in Chromium."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

CHROMIUM: Final = shutil.which("chromium") or shutil.which("chromium-browser")
NEEDS_CHROMIUM: Final = pytest.mark.skipif(
    CHROMIUM is None, reason="NOT TESTED: chromium is missing; apt-get install chromium"
)
CAPTURES: Final = os.environ.get("RLCTL_TEST_CAPTURES", "")
"""A folder: a picture of every page is kept there."""
FAINT: Final = """() => {
  const rgb = text => { const n = text.match(/[0-9.]+/g).map(Number); return n.length > 3 ? n : [...n, 1]; };
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, at) => sum + v * [.2126, .7152, .0722][at], 0);
  const found = [];
  for (const node of document.querySelectorAll("body *")) {
    const says = [...node.childNodes].some(child => child.nodeType === 3 && child.data.trim());
    if (!says || !node.offsetParent) continue;
    let below = node, paper = [0, 0, 0, 0];
    for (; below && paper[3] === 0; below = below.parentElement) paper = rgb(getComputedStyle(below).backgroundColor);
    const [a, b] = [light(rgb(getComputedStyle(node).color)), light(paper)].sort((x, y) => y - x);
    if ((a + .05) / (b + .05) < 4.5) found.push(node.outerHTML.slice(0, 120));
  }
  return found;
}"""
"""Elements with less contrast than WCAG AA asks for."""
WAITS_MS: Final = 60_000
"""For what a page does by itself: a browser on a busy machine takes its time."""
expect.set_options(timeout=WAITS_MS)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        yield browser
        browser.close()


@contextmanager
def opened(url: str, chromium: Browser, *, quiet: bool = True, **settings: Any) -> Iterator[Page]:
    """A window that asks the service alone, and in which nothing is refused or goes wrong."""
    context = chromium.new_context(base_url=url, **settings)
    context.set_default_timeout(WAITS_MS)
    wrong: list[str] = []
    context.on("request", lambda one: None if one.url.startswith(f"{url}/") else wrong.append(one.url))
    context.on("console", lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None)
    context.on("weberror", lambda error: wrong.append(str(error.error)))
    try:
        yield context.new_page()
    finally:
        context.close()
    assert not (quiet and wrong)
