"""The page as people see it: in Chromium, on a phone, a tablet and a desk; with and without JavaScript."""

from __future__ import annotations

import hashlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, Page, expect

from rlctl_ci.core.logs import Log, Masker
from rlctl_ci.core.service import Service
from rlctl_ci.core.states import STATES
from rlctl_ci.store.records import Push
from rlctl_ci.web import serve
from rlctl_ci.web.limits import streams
from tests.ci.web.test_http import BAD_TEXT, config
from tests.ci.world import MAIN, no_hands, sha
from tests.end_to_end.conftest import wait_until
from tests.support.browser import CAPTURES, FAINT, NEEDS_CHROMIUM, chromium, opened
from tests.support.samples import sample

__all__ = ["chromium"]
pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(600),
    NEEDS_CHROMIUM,
]
WIDTHS: Final = (360, 768, 1440)
LONG: Final = "feature/" + "a-name-that-does-not-end-" * 8
REASON: Final = f"{BAD_TEXT} the registry said: " + "denied" * 40 + " and so on, in words that can be broken" * 6
SMALL: Final = """() => [...document.querySelectorAll("button, input:not([type=hidden]), nav a, td.c-build a")]
  .filter(node => node.offsetParent && node.getBoundingClientRect().height < 44).map(node => node.outerHTML)"""
"""Buttons and links too small for a finger."""


@dataclass
class Site:
    """A service that listens, with builds in every state, and no workers."""

    service: Service
    url: str
    server: Any
    builds: dict[str, int] = field(default_factory=dict)

    def accept(self, name: str, number: int, branch: str = "main", title: str = "faster", author: str = "ana") -> int:
        commit = hashlib.sha1(f"{number}".encode()).hexdigest()
        push = Push(f"refs/heads/{branch}", commit, author, title)
        build = self.service.queue.accept(name, push, recipe="r", delivery=f"{name}-{number}").build
        assert build is not None
        return build

    def fill(self) -> None:
        for number, state in enumerate(STATES, 1):
            long = number % 3 == 0
            name = "a-project-whose-name-is-quite-a-bit-long" if long else "lab" if number % 3 == 1 else "pole"
            title = BAD_TEXT if number % 2 else f"Faster environment steps, and what else came with it ({number})"
            build = self.builds[state] = self.accept(name, number, LONG if long else f"team-{number}", title)
            with self.service.database.write() as db:
                why = REASON if long else "the learner exited 1 after 00:03:12" if state == "failed" else ""
                db.execute("UPDATE builds SET state = ?, reason = ?, attempts = 1 WHERE id = ?", (state, why, build))
                db.execute(
                    "INSERT INTO events (build, at, state, note) VALUES (?, ?, ?, ?)",
                    (build, self.service.now(), state, why),
                )
                if state in ("deploying", "succeeded", "rolled_back"):
                    db.execute(
                        "INSERT INTO deploys"
                        " (build, project, ref, run, state, before_revision, revision, note, started, updated)"
                        " VALUES (?, ?, ?, 'pole', ?, 3, 4, ?, ?, ?)",
                        (build, name, MAIN, "verified" if state == "succeeded" else "rolled_back", why,
                         self.service.now(), self.service.now()),
                    )  # fmt: skip
            log = Log(self.service.log(build), 1 << 24, Masker([]))
            for step in range(12):
                log(f"{step:02d} {BAD_TEXT} {'word ' * (step * 4)}{'x' * step * 20}")
        self.service.queue.ignore("pole", delivery="x", event="push", why=f"branch {LONG} is not built")
        self.service.people.pause("lab", "paused by ana, until the cluster has its new nodes")
        with self.service.database.write() as db:
            db.execute(
                "INSERT INTO pins (project, ref, sha, why, at) VALUES ('pole', ?, ?, ?, 0)",
                (f"refs/heads/{LONG}", sha(7), REASON),
            )

    def paths(self) -> dict[str, str]:
        """Name of a page -> its path."""
        found = {"overview": "/", "project": "/projects/pole", "older": "/?before=3", "sign-in": "/sign-in"}
        return found | {f"build-{state}": f"/builds/{number}" for state, number in self.builds.items()}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    about = config(tmp_path)
    projects = {**about.projects, "a-project-whose-name-is-quite-a-bit-long": about.projects["pole"]}
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        changed = about.model_copy(update={"projects": projects, "listen": f"127.0.0.1:{port}"})
        service = Service(changed, no_hands)
        server = serve.server(service)
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        wait_until(lambda: server.started, timeout_s=60, what="the server")
        found = Site(service, f"http://127.0.0.1:{port}", server)
        found.fill()
        yield found
        server.should_exit = True
        thread.join(30)
        service.close()


def signed_in(site: Site, page: Page, scope: str = "admin") -> None:
    page.goto("/sign-in")
    page.get_by_label("Token").fill(site.service.people.issue("ana", [scope]))
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("button", name="Sign out")).to_be_visible()


def numbers(page: Page) -> list[str]:
    return page.locator(".builds .c-build").all_inner_texts()


@pytest.mark.parametrize(
    ("width", "scheme"), sample("windows", [(width, scheme) for scheme in ("dark", "light") for width in WIDTHS], 3)
)
def test_every_page_fits_its_window_and_can_be_read(site: Site, chromium: Browser, width: int, scheme: Any) -> None:
    with opened(site.url, chromium, viewport={"width": width, "height": 800}, color_scheme=scheme) as page:
        signed_in(site, page)
        for name, path in site.paths().items():
            page.goto(path)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{path} is wider than {width}"
            assert page.evaluate(FAINT) == [], path
            assert width > 400 or page.evaluate(SMALL) == [], path
            if CAPTURES:
                page.screenshot(path=Path(CAPTURES) / f"ci-{name}-{width}-{scheme}.png", full_page=True)


def test_the_page_is_complete_without_javascript(site: Site, chromium: Browser) -> None:
    with opened(site.url, chromium) as page:
        page.goto("/")
        builds, texts = numbers(page), page.locator(".builds .c-what").all_inner_texts()
    with opened(site.url, chromium, java_script_enabled=False) as page:
        page.goto("/")
        assert numbers(page) == builds == [f"#{number}" for number in range(len(STATES), 0, -1)]
        assert page.locator(".builds .c-what").all_inner_texts() == texts
        page.locator(".c-build a").first.click()
        assert "<script>alert(1)</script>" in page.locator("#log").inner_text(), "as text"
        signed_in(site, page)
        page.get_by_role("button", name="Pause").first.click()
    assert len(site.service.reading.pauses()) == 2


def test_a_new_build_appears_on_the_open_page_and_its_log_grows(site: Site, chromium: Browser) -> None:
    with opened(site.url, chromium) as page:
        page.goto("/")
        page.evaluate("window.opened = true")
        number = site.accept("pole", 99, title="a push while somebody looks")
        expect(page.locator(".builds .c-build").first).to_have_text(f"#{number}")
        page.get_by_role("link", name=f"#{number}").click()
        log = Log(site.service.log(number), 1 << 24, Masker([]))
        page.evaluate("window.opened = true")
        log("the first line")
        expect(page.locator("#log")).to_contain_text("the first line")
        log("the second line")
        expect(page.locator("#log")).to_have_text("the first line\nthe second line\n")
        site.service.queue.cancel(number, "not wanted any more")
        expect(page.locator("h1 .state")).to_contain_text("cancelled")
        assert page.title().startswith("cancelled")
        assert page.evaluate("window.opened"), "it was not loaded again"


def test_an_open_page_listens_again_when_its_stream_has_ended(
    site: Site, chromium: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "ENDS_AFTER_S", 0.1)
    with opened(site.url, chromium) as page:
        page.goto("/")
        with page.expect_response("**/live?*"):
            pass  # the first has ended
        monkeypatch.setattr(streams, "ENDS_AFTER_S", 300.0)
        number = site.accept("pole", 99, title="a push while nobody listens")
        expect(page.locator(".builds .c-build").first).to_have_text(f"#{number}")


def test_who_may_read_alone_sees_no_button_but_to_sign_out(site: Site, chromium: Browser) -> None:
    with opened(site.url, chromium) as page:
        signed_in(site, page, "read")
        assert page.get_by_role("button").all_inner_texts() == ["Sign out"]


def test_a_rollback_is_asked_about_first(site: Site, chromium: Browser) -> None:
    with opened(site.url, chromium) as page:
        signed_in(site, page)
        asked: list[str] = []
        page.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
        page.get_by_role("button", name="Roll back").first.click()
        assert asked == ["Roll pole back to the revision before its newest deployment?"]
        assert page.url == f"{site.url}/"


def test_a_page_whose_service_is_gone_says_that_it_is_old(site: Site, chromium: Browser) -> None:
    with opened(site.url, chromium, quiet=False) as page:
        page.clock.install()
        page.goto("/")
        expect(page.locator("#stale")).to_be_hidden()
        site.server.should_exit = True
        page.clock.fast_forward(60_000)
        expect(page.locator("#stale")).to_be_visible()


def test_a_log_of_several_mebibytes_is_reached_whole_from_its_page(site: Site, chromium: Browser) -> None:
    number = site.builds["succeeded"]
    site.service.log(number).write_text("".join(f"{line:06d} {'x' * 400}\n" for line in range(7_000)))
    with opened(site.url, chromium) as page:
        page.goto(f"/builds/{number}")
        page.get_by_role("link", name="the whole log").click()
        page.wait_for_url("**/log")  # and until it is there
        assert page.locator("body").inner_text().splitlines()[-1].startswith("006999 ")
