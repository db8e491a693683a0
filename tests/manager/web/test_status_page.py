"""The page that people look at: what it says, and that nothing in it can do harm."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest

from rlctl_agents.manager.status.report import StatusBuilder
from rlctl_agents.manager.web.rendering import LONGEST
from rlctl_agents.manager.web.status_page import MOST_POINTS, STALE_S, Shown, curve_of, page, pages
from rlctl_agents.types.control import EvalResult, to_plain
from tests.manager.test_memory import measured
from tests.manager.world import Run, ref

VOID = {"meta", "link", "br"}
EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"


class Tags(HTMLParser):
    """Every tag with its attributes, every text; fails on what is not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def parsed(text: str) -> Tags:
    tags = Tags()
    tags.feed(text)
    tags.close()
    assert tags.open == []
    return tags


def words(text: str) -> str:
    return re.sub(r"\s+", " ", "".join(parsed(text).text))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = Run(tmp_path, stop={"eval_return": 100})
    for number, role in enumerate(("modelpool", "actor", "learner"), 1):
        run.join(role, number)
    for second in range(1, 11):
        run.time.now += 1
        run.report("actor", 2, counters={"env_steps": 200.0 * second}, model=ref(second))
        run.learn(3, steps=200 * second, version=second, counters={"wait_data_seconds": 0.7 * second})
        run.report("modelpool", 1, model=ref(second))
    for steps in range(100, 2100, 100):
        run.manager.state.progress.measured(measured(steps))
    return run


def status_of(run: Run) -> dict[str, Any]:
    return StatusBuilder(run.manager, cores=8).build()


def test_the_page_says_what_the_status_says(run: Run) -> None:
    status = status_of(run)
    text = page(status, [], status["time"] + 2)
    said = words(text)
    assert "▶ r: running" in said
    assert "actor-bound: the learner waits for experience 70 % of the time" in said
    assert "rlctl scale actor=" in said
    assert "goal: eval_return100" in said
    assert "env steps2002,000" in said.replace(".0", "")
    assert "Mean return 200" in said
    assert "Nothing has been saved yet" in said
    assert "actor10" in said, "one joined, none silent"
    assert "Last updated 2 s ago" in said
    assert [tag for tag, _ in parsed(text).tags].count("polyline") == 1


def test_the_page_tells_of_discarded_rows_and_of_what_evaluation_takes(run: Run) -> None:
    status = status_of(run)
    assert "discarded" not in words(page(status, [], status["time"]))
    assert "One evaluation each" not in words(page(status, [], status["time"]))
    status["policies"]["main"]["ledger"] |= {"consumed": 361309, "discarded": 257314}
    status["cadence"] = {"stated_s": None, "every_s": 14.2, "cpu_share": 0.083}
    said = words(page(status, [], status["time"]))
    assert "361,309 consumed, 257,314 discarded with a learner that died, 0 stale" in said
    assert "One evaluation each 14 s, 8 % of the run's CPU." in said


def test_nothing_that_a_process_has_said_becomes_markup(run: Run) -> None:
    status = status_of(run)
    status["verdict"]["text"] = status["verdict"]["suggest"] = EVIL
    status["run"] = status["uid"] = status["stop"]["met"] = EVIL
    status["problems"] = [{"text": EVIL, "next": EVIL}]
    status["policies"] = {EVIL: status["policies"]["main"]}
    status["stop"]["conditions"] = {EVIL: EVIL}
    status["resumed"] = {"text": EVIL}
    status["roles"]["actor"][0] |= {"silent": True, "model": {"policy": EVIL, "version": 1}}
    status["evaluation"]["mode"] = EVIL
    status["members"][EVIL] = {"live": 1, "silent": 1}
    generation = {"number": 1, "policy": EVIL, "ref": {"version": 1}, "steps": 1, "created": 0.0}
    for phase in ("running", "finished"):
        tags = parsed(page(status | {"phase": phase}, [generation], status["time"]))
        names = {tag for tag, _ in tags.tags}
        assert not names & {"script", "img", "iframe", "object", "form"}
        assert not any(name.startswith("on") or name == "style" for _, attrs in tags.tags for name in attrs)
        assert "".join(tags.text).count("<script>alert(1)") >= 8


def test_a_text_without_an_end_is_cut_wherever_it_stands(run: Run) -> None:
    status = status_of(run)
    status["verdict"]["text"] = status["verdict"]["suggest"] = status["run"] = "x" * 5000
    status["problems"] = [{"text": "x" * 5000, "next": "x" * 5000}]
    text = page(status, [], status["time"])
    assert text.count("x" * LONGEST + "...") == 6, "the run stands in title and heading"
    assert "x" * (LONGEST + 1) not in text


def test_nothing_is_fetched_from_elsewhere_and_no_script_may_run(run: Run) -> None:
    status = status_of(run)
    answer = pages(lambda: Shown.of(status), lambda: status["time"])["/"]()
    headers = dict(answer.headers)
    policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert "script-src" not in policy
    style = re.search(r"<style>(.*?)</style>", answer.body.decode(), re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert policy["style-src"] == f"'sha256-{digest}'"
    for _, attrs in parsed(answer.body.decode()).tags:
        for name in ("src", "href"):
            assert (attrs.get(name) or "data:").startswith(("data:", "status.json"))
    assert "url(" not in style[1]
    assert "@import" not in style[1]


@pytest.mark.parametrize(
    ("changes", "age_s", "sign", "said"),
    [
        ({}, 0, "▶", "running"),
        ({"phase": "starting"}, 0, "…", "starting"),
        ({"problems": [{"text": "no learner", "next": "rlctl logs learner"}]}, 0, "!", "running, with problems"),
        ({}, STALE_S, "?", "figures are old"),
        ({"phase": "finished"}, 1e6, "✓", "finished"),
    ],
)
def test_title_and_icon_carry_the_state(run: Run, changes: dict[str, Any], age_s: float, sign: str, said: str) -> None:
    status = status_of(run) | {"problems": []} | changes
    text = page(status, [], status["time"] + age_s)
    assert f"<title>{sign} r: {said}</title>" in text
    (icon,) = [attrs["href"] for tag, attrs in parsed(text).tags if tag == "link"]
    assert icon is not None
    drawn = ElementTree.fromstring(unquote(icon.partition(",")[2]))
    assert "".join(drawn.itertext()) == sign


def test_a_page_is_there_from_the_first_second_and_without_figures() -> None:
    answers = pages(Shown)
    assert answers["/"]().status == 503
    assert "only just started" in words(answers["/"]().body.decode())
    assert answers["/status.json"]().status == 503
    torn = Shown.of({"run": "r", "phase": "finished", "problems": []})
    assert "cannot be read" in words(pages(lambda: torn)["/"]().body.decode())


def test_the_twin_of_the_page_is_the_status_itself(run: Run) -> None:
    status = status_of(run)
    answer = pages(lambda: Shown.of(status))["/status.json"]()
    assert answer.content_type == "application/json"
    assert json.loads(answer.body)["totals"] == status["totals"]


def test_checkpoints_are_listed_with_their_age(run: Run) -> None:
    status = status_of(run)
    generation = {
        "number": 12, "policy": "main", "ref": to_plain(ref(300)), "steps": 64_000, "created": status["time"] - 90
    }  # fmt: skip
    said = words(page(status, [generation], status["time"]))
    assert "12main30064,00090 s ago" in said
    assert "Nothing has been saved" not in said


def test_a_long_curve_is_drawn_with_few_points_and_both_ends() -> None:
    points = [(float(x), float(x % 7)) for x in range(2000)]
    curve = curve_of(points)
    assert curve is not None
    assert len(curve.line) == MOST_POINTS
    assert (curve.first, curve.last) == (points[0], points[-1])
    assert (curve.line[0], curve.line[-1]) == ((4.0, 116.0), (596.0, 41.3)), "the last is at 4 of 6"
    flat = curve_of([(0, 5), (1, 5)])
    assert flat is not None
    assert flat.line == [(4.0, 60.0), (596.0, 60.0)]
    assert curve_of(points[:1]) is None


def test_an_evaluation_of_the_manager_itself_fits_the_page(run: Run) -> None:
    run.join("evaluator", 4)
    match = run.report("evaluator", 4).match
    assert match is not None
    assert match.quota is not None
    returns = [1.5] * match.quota.episodes
    assert run.manager.result(EvalResult(match.id, match.seats[0], "greedy", returns, [1] * len(returns), 1.0)).ok
    status = status_of(run)
    assert "Mean return 1.5 ± 0" in words(page(status, [], status["time"]))
