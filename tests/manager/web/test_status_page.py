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

from rlctl_agents.manager.status.history import (
    NAMES,
    POINTS,
    ROWS,
    CurveRows,
    EvaluationLine,
    HistoryView,
    RunHistory,
    RunMark,
)
from rlctl_agents.manager.status.report import StatusBuilder
from rlctl_agents.manager.web.panels import of_history
from rlctl_agents.manager.web.rendering import LONGEST
from rlctl_agents.manager.web.status_page import MOST_LINES, STALE_S, StatusSnapshot, page, pages
from rlctl_agents.types.control import EvalResult, to_plain
from tests.manager.test_memory import measured
from tests.manager.world import Run, ref

VOID = {"meta", "link", "br", "img"}
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


def long_history(names: int = 60, told: str = "score") -> HistoryView:
    """All that a page may have to show of a run: as many rows, curves, evaluations and marks as are kept."""
    at = range(ROWS - 1)
    rows = CurveRows(unix=[1.7e9 + 5 * row for row in at], running_s=[5.0 * row for row in at],
                     steps=[1234567 * row for row in at])  # fmt: skip
    curves = ["return/train", "loss/policy_loss", "loss/entropy", "lag/mean", "lag/p95", "lag/max",
              "learner/memory_bytes", "throughput/env_steps_per_s", "throughput/consumed_steps_per_s",
              "throughput/updates_per_s"]  # fmt: skip
    curves += ["waits/learner_waits_data", "waits/actor_waits_credit", "waits/actor_waits_model"]
    curves += [f"info/{told}{at}/train" for at in range(16)]
    curves += [f"loss/{told}{at}" for at in range(names - len(curves))]
    rows.values = {name: [123.456 * (row % 97) for row in at] for name in curves}
    evaluations = {
        mode: [
            EvaluationLine(-123.45 + at % 50, 12.345, -1234.5, 1234.5, 100, mode, 2222222 * at, 1.7e9 + 9 * at,
                     info={f"{told}{name}": 0.12345 * at for name in range(16)})
            for at in range(POINTS)
        ]
        for mode in ("greedy", "sample")
    }  # fmt: skip
    marks = [
        RunMark(kind, 1.7e9 + 8.9 * at, 2200000 * at, 8.9 * at, f"about {told} {at}" * 5)
        for at in range(POINTS)
        for kind in ("generation", "restart", "failure", "change")
    ]  # type: ignore[arg-type]
    return HistoryView(rows, evaluations, marks)


def logged(text: str, level: str = "INFO", second: int = 6) -> str:
    return json.dumps({"ts": f"2026-11-25T04:05:{second:02d}.789Z", "level": level, "id": "actor/3", "msg": text})


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


def test_the_page_tells_of_discarded_rows_and_of_what_evaluation_takes(run: Run) -> None:
    status = status_of(run)
    assert "One evaluation each" not in words(page(status, [], status["time"]))
    status["policies"]["main"]["ledger"] |= {"consumed": 361309, "discarded": 257314}
    status["cadence"] = {"stated_s": None, "every_s": 14.2, "cpu_share": 0.083}
    said = words(page(status, [], status["time"]))
    assert "main0361,309257,314000000balanced" in said
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
    assert text.count("x" * LONGEST + "...") == 7, "the run stands in title, heading and a command"
    assert "x" * (LONGEST + 1) not in text


def test_nothing_is_fetched_from_elsewhere_and_no_script_may_run(run: Run) -> None:
    status = status_of(run) | {"recordings": [recorded(1)]}
    answer = pages(lambda: StatusSnapshot.of(status), lambda: status["time"])["/"]("")
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
            assert (attrs.get(name) or "data:").startswith(("data:", "status.json", "episodes/"))
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
        ({"phase": "failed", "failure": {"text": "nothing was learned"}}, 1e6, "✗", "failed"),
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
    answers = pages(StatusSnapshot)
    assert answers["/"]("").status == 503
    assert "only just started" in words(answers["/"]("").body.decode())
    assert answers["/status.json"]("").status == 503
    torn = StatusSnapshot.of({"run": "r", "phase": "finished", "problems": []})
    assert "cannot be read" in words(pages(lambda: torn)["/"]("").body.decode())


def test_the_twin_of_the_page_is_the_status_itself(run: Run) -> None:
    status = status_of(run)
    answer = pages(lambda: StatusSnapshot.of(status))["/status.json"]("")
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


def test_every_chart_has_axes_with_round_ticks_and_units_and_answers_to_a_pointer(run: Run) -> None:
    view = long_history()
    text = page(status_of(run), [], 0.0, history=view, panels=of_history(view, "greedy"))
    parsed(text)
    charts = [ElementTree.fromstring(one) for one in re.findall("<figure.*?</figure>", text, re.DOTALL)]
    assert len(charts) == 1 + 12 + 5 + 5
    for chart in charts:
        by_class: dict[str, list[str]] = {}
        for one in chart.iter("text"):
            by_class.setdefault(one.get("class", "value"), []).append("".join(one.itertext()))
        (unit,), (over,) = by_class["unit"], by_class["over"]
        assert unit
        assert over in ("agent steps learned from", "running time, min")
        assert 3 <= len(by_class["x"]) <= 9
        assert 3 <= len(by_class["y"]) <= 8
        assert all(re.fullmatch("−?[0-9.,]+(e-?[0-9]+)?[kMG]?", tick) for tick in by_class["x"] + by_class["y"])
        assert len(by_class["value"]) >= 20, "columns with values"
        assert chart.findall(".//polyline")
    for chart in (charts[0], charts[-1]):
        drawn = {one.get("class") for one in chart.iter("path")}
        assert {"restart", "failure", "change"} <= drawn, "where these were"
    assert "generation" in {one.get("class") for one in charts[0].iter("path")}
    assert "In rlctl open tensorboard as well:" in words(text)


def test_a_page_stays_small_however_long_the_run_is(run: Run) -> None:
    run.join("evaluator", 4)
    view, status = long_history(NAMES, "a_name_of_64_characters_as_long_as_one_may_be_" + "x" * 17), status_of(run)
    status["problems"] = [{"text": "x" * 300, "next": "rlctl logs actor/3 --run r"}] * 20
    status["roles"]["actor"] *= 100
    generation = {"number": 12, "policy": "main", "ref": {"version": 1}, "steps": 64_000, "created": 0.0}
    text = page(status, [generation] * 60, 0.0, history=view, panels=of_history(view, "greedy"),
                lines=[logged("x" * 5000)] * 100)  # fmt: skip
    assert 150_000 < len(text.encode()) < 300 * 1024


def test_the_charts_are_those_of_the_history_and_are_drawn_once_for_all_who_look(run: Run) -> None:
    history, status = RunHistory(run.layout.results), status_of(run)
    look = pages(lambda: StatusSnapshot.of(status, history=history.view()), lambda: status["time"])["/"]
    assert b"<figure" not in look("").body, "there is nothing to draw yet"
    for second in range(1, 11):
        history.sample(1.7e9 + second, second, 100 * second, {"return/train": float(second), "lag/mean": 1.5})
    first = look("").body.decode()
    titles = re.findall("<figcaption><strong>(.*?)</strong>", first)
    assert titles == ["Return", "Lag of what is learned from"]
    assert first == look("").body.decode()


def test_names_that_an_environment_or_a_process_makes_up_become_no_markup(run: Run) -> None:
    status, view = status_of(run), long_history(40, EVIL)
    view = view._replace(evaluations={EVIL: view.evaluations["greedy"]})
    status["evaluation"] |= {"info": {EVIL: 1.0}, "mode": EVIL}
    lines = [logged(EVIL, EVIL), EVIL, "[1]", json.dumps({"ts": [EVIL], "level": {}, "id": EVIL, "msg": None})]
    text = page(status, [], status["time"], history=view, panels=of_history(view, EVIL), lines=lines)
    tags = parsed(text)
    assert not {tag for tag, _ in tags.tags} & {"script", "img", "iframe", "object", "form", "foreignobject", "use"}
    assert not any(name.startswith("on") or name == "style" for _, attrs in tags.tags for name in attrs)
    assert "".join(tags.text).count("<script>alert(1)") > 20


def test_the_newest_log_lines_and_events_are_shown(run: Run) -> None:
    status = status_of(run)
    marks = [
        RunMark("generation", 1.7e9, 5, 5.0, "generation 1"),
        RunMark("failure", 1.7e9, 5, 5.0, "learner 0 was lost"),
    ]
    text = page(status, [], 1.7e9 + 90, history=HistoryView(CurveRows(), {}, marks),
                lines=[*(logged(f"line {at}", "ERROR", 6 + at) for at in range(MOST_LINES + 5)),
                       logged("it came late", second=25)])  # fmt: skip
    said = words(text)
    assert "failurelearner 0 was lost90 s ago" in said
    assert "generation 1" not in said, "those are listed apart"
    assert "04:05:30ERRORactor/3line 24" in said
    assert said.index("line 18") < said.index("it came late") < said.index("line 20")
    assert "line 4 " not in said


def recorded(match: int, *, best: bool = False) -> dict[str, Any]:
    return {"file": f"{match:010d}-v{match:012d}.gif", "version": match, "steps": 1000 * match, "mode": "greedy",
            "returned": 12.5, "length": 300, "mean": 11.0, "seconds": 12.4, "time": 1.7e9, "best": best}  # fmt: skip


def test_newest_and_best_episode_are_shown_and_run_to_their_end_before_the_page_is_renewed(run: Run) -> None:
    status = status_of(run) | {"problems": []}
    assert '<meta http-equiv="refresh" content="5">' in page(status, [], 0.0)
    status["recordings"] = [recorded(9), recorded(8), recorded(7), recorded(2, best=True)]
    text = page(status, [], status["time"])
    shown = [attrs["src"] for tag, attrs in parsed(text).tags if tag == "img"]
    assert shown == ["episodes/0000000009-v000000000009.gif", "episodes/0000000002-v000000000002.gif"]
    assert '<meta http-equiv="refresh" content="14">' in text
    assert "Newest: version 9, 9,000 agent steps, greedy. This episode: return 12.5, 300 decisions." in words(text)
    assert "Before it: version 8, return 12.5; version 7, return 12.5" in words(text)


def test_episodes_are_served_by_their_names_alone(run: Run) -> None:
    folder = run.layout.results / "episodes"
    folder.mkdir()
    name = recorded(7)["file"]
    (folder / name).write_bytes(b"GIF89a")
    (folder / "index.json").write_text("[]")
    (folder / recorded(8)["file"]).symlink_to(run.layout.results / "progress.json")
    (folder / recorded(9)["file"]).mkdir()
    serve = pages(StatusSnapshot, episodes=folder)["/episodes/"]
    answer = serve(name)
    assert (answer.status, answer.content_type, answer.body) == (200, "image/gif", b"GIF89a")
    assert dict(answer.headers)["X-Content-Type-Options"] == "nosniff"
    assert "sandbox" in dict(answer.headers)["Content-Security-Policy"]
    for other in ("", "index.json", f"../episodes/{name}", f"{name}\n", recorded(8)["file"], recorded(9)["file"],
                  recorded(10)["file"], name.replace("0", "٠")):  # fmt: skip
        assert serve(other).status == 404, other
    assert pages(StatusSnapshot)["/episodes/"](name).status == 404


def test_each_process_has_its_cpu_and_memory(run: Run) -> None:
    for second in range(1, 11):
        run.time.now += 1
        run.report("actor", 2, counters={"cpu_seconds": 0.75 * second, "env_steps": 2000 + 500.0 * second},
                   gauges={"memory_bytes": 300.0 * 2**20})  # fmt: skip
    said = words(page(status_of(run), [], 0.0))
    assert re.search(r"actor/0 ?0\.7[0-9] cores300 MiB[45][0-9]+ steps / s-", said), said[-900:]


def test_an_evaluation_of_the_manager_itself_fits_the_page(run: Run) -> None:
    run.join("evaluator", 4)
    match = run.report("evaluator", 4).match
    assert match is not None
    assert match.quota is not None
    run.manager.state.progress.evaluation = None  # which is of a newer version
    returns = [1.5] * match.quota.episodes
    assert run.manager.result(EvalResult(match.id, match.seats[0], "greedy", returns, [1] * len(returns), 1.0)).ok
    status = status_of(run)
    assert "Mean return 1.5 ± 0" in words(page(status, [], status["time"]))
