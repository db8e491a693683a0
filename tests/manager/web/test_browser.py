"""The status page as people see it: in Chromium, on a phone, a tablet and a desk, light and dark, without scripts."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from PIL import Image, ImageDraw
from playwright.sync_api import Browser, Page, expect

from rlctl_agents.manager.status.history import RunHistory
from rlctl_agents.manager.web.status_page import StatusSnapshot, pages
from rlctl_agents.policies.show import gif
from rlctl_agents.runtime.health import ProbeListener, Pulse
from tests.manager.web.test_status_page import EVIL, logged, recorded
from tests.manager.world import Run, everybody, status
from tests.support.browser import CAPTURES, FAINT, NEEDS_CHROMIUM, chromium, opened
from tests.support.samples import sample

__all__ = ["chromium"]
pytestmark = [pytest.mark.processes, pytest.mark.timeout(600), NEEDS_CHROMIUM]
WIDTHS: Final = (360, 800, 1400)
BEGAN: Final = 1.7e9
SECONDS: Final = 7200


def trained(folder: Path) -> RunHistory:
    """Two hours of a run that learns Pong; its learner is killed after one, and its manager later."""
    draw = random.Random(7)

    def steps(second: float) -> int:
        return int(900 * (second if second < 4000 else second - 700))

    def level(second: float) -> float:
        return -21 + 41 / (1 + math.exp(-8 * (steps(second) / (900 * SECONDS) - 0.4)))

    with (folder / "evaluations.jsonl").open("w") as file:
        for at in range(1, 200):
            second, mode = at * 36, "sample" if at % 5 == 0 else "greedy"
            mean = level(second) + draw.gauss(0, 0.8) - (mode == "sample") * 2
            line = {"mean": mean, "std": 2.5, "min": max(mean - 6, -21), "max": min(mean + 5, 21), "episodes": 100,
                    "mode": mode, "steps": steps(second), "time": BEGAN + second, "ref": {"version": at},
                    "info": {"rallies_won": 20 + mean / 2, EVIL[:30]: draw.random()}}  # fmt: skip
            file.write(json.dumps(line) + "\n")
    told = [{"kind": "checkpoint", "time": BEGAN + 60 * at, "text": f"generation {at} committed",
             "steps": steps(60 * at)} for at in range(1, 120)]  # fmt: skip
    told += [
        {"kind": "gone", "time": BEGAN + 4000, "text": "learner 0 was not heard for 15 s", "lost": True},
        {"kind": "resumed", "time": BEGAN + 4010, "text": "learner 0 went on from generation 55", "steps": steps(3300)},
        {"kind": "start", "time": BEGAN + 5500, "text": "manager started, term 2", "term": 2},
        {"kind": "reload", "time": BEGAN + 6000, "text": "settings changed: evaluation.episodes: 100 -> 50"},
    ]
    (folder / "events.jsonl").write_text("".join(json.dumps(one) + "\n" for one in told))
    history = RunHistory(folder)
    for second in range(5, SECONDS, 5):
        share, noise = second / SECONDS, draw.gauss
        history.sample(BEGAN + second, second, steps(second), {
            "return/train": level(second) + noise(0, 1.5) - 1, "info/rallies_won/train": 20 + level(second) / 2,
            "throughput/env_steps_per_s": 950 + noise(0, 30), "throughput/consumed_steps_per_s": 900 + noise(0, 40),
            "throughput/updates_per_s": 2.8 + noise(0, 0.1), "lag/mean": 1.2 + abs(noise(0, 0.2)), "lag/p95": 4.0,
            "lag/max": draw.choice((4.0, 8.0, 16.0)),
            "waits/learner_waits_data": min(max(0.6 - share / 3 + noise(0, 0.05), 0), 1),
            "waits/actor_waits_credit": abs(noise(0.05, 0.02)), "waits/actor_waits_model": 0.01,
            "loss/policy_loss": noise(-0.02, 0.01), "loss/value_loss": 2 * math.exp(-3 * share) + abs(noise(0, 0.1)),
            "loss/entropy": 1.7 * math.exp(-2 * share) + 0.1, "loss/kl": 0.008 + abs(noise(0, 0.002)),
            "loss/explained_variance": 1 - math.exp(-5 * share) + noise(0, 0.02), "learner/lr": 2.5e-4 * (1 - share),
            "learner/grad_norm": 0.5 + abs(noise(0, 0.2)), "learner/memory_bytes": 4.5e8 + 1e7 * share,
        })  # fmt: skip
    return history


def film() -> bytes:
    """A ball that crosses the screen."""
    frames = []
    for at in range(24):
        image = Image.new("RGB", (160, 210), "#123")
        ImageDraw.Draw(image).ellipse((at * 6, 40 + at * 5, at * 6 + 12, 52 + at * 5), fill="#fc6")
        frames.append(image.quantize())
    return gif(frames, 0.1)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    """Address of a manager's pages."""
    run = Run(tmp_path, stop={"eval_return": 20, "wall_time": "24h"})
    everybody(run)
    for second in range(1, 11):
        run.time.now += 1
        grown = {"modelpool": {}, "learner": {"updates": 2.8, "consumed_steps": 900.0}, "actor": {"env_steps": 950.0},
                 "evaluator": {}}  # fmt: skip
        for number, (role, counters) in enumerate(grown.items(), 1):
            totals = {name: second * value for name, value in {**counters, "cpu_seconds": 0.8}.items()}
            run.report(role, number, counters=totals, gauges={"memory_bytes": 412.0 * 2**20})
    now = status(run)
    measured = {"mean": 18.4, "std": 2.5, "min": 9.0, "max": 21.0, "episodes": 100, "mode": "greedy",
                "confirms": False, "ref": {"version": 198}, "info": {"rallies_won": 29.2}}  # fmt: skip
    problem = {"text": f"actor/2 has said nothing for 14 s {EVIL}", "next": "rlctl logs actor/2 --run r"}
    now |= {"time": BEGAN + SECONDS, "phase": "running", "evaluation": measured, "evaluations": {"greedy": measured},
            "recordings": [recorded(9), recorded(4, best=True)], "train_return": {"mean": 17.9, "episodes": 400},
            "problems": [problem]}  # fmt: skip
    now["policies"]["main"]["ledger"] |= {
        "produced": 7_200_000,
        "consumed": 7_000_000,
        "stale": 160_000,
        "in_flight": 40_000,
    }
    episodes = run.layout.results / "episodes"
    episodes.mkdir()
    for one in now["recordings"]:
        (episodes / one["file"]).write_bytes(film())
    generations = [{"number": at, "policy": "main", "ref": {"version": 50 * at}, "steps": 54_000 * at,
                    "created": BEGAN + 60 * at} for at in (119, 118, 117)]  # fmt: skip
    shown = StatusSnapshot.of(now, generations, history=trained(run.layout.results).view())
    text = "evaluated main v{}: mean return 18.25 over 100 episodes, and whatever else there is to say"
    lines = [logged(text.format(at), ("INFO", "WARNING", "ERROR")[at % 3]) for at in range(20)]
    answers = pages(lambda: shown, lambda: BEGAN + SECONDS + 2, lambda: lines, episodes)
    listener = ProbeListener("tcp:127.0.0.1:0", Pulse(), lambda: b"", answers)
    yield f"http://{listener.address.removeprefix('tcp:')}"
    listener.close()


def look(page: Page, name: str) -> None:
    if CAPTURES:
        page.screenshot(path=Path(CAPTURES) / f"status-{name}.png", full_page=True)


@pytest.mark.parametrize(
    ("width", "scheme"), sample("windows", [(width, scheme) for scheme in ("light", "dark") for width in WIDTHS], 3)
)
def test_the_page_fits_its_window_and_can_be_read(site: str, chromium: Browser, width: int, scheme: Any) -> None:
    size = {"width": width, "height": 900}
    with opened(site, chromium, viewport=size, color_scheme=scheme) as page:
        page.goto("/")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.evaluate(FAINT) == []
        assert page.evaluate("[...document.images].every(one => one.complete && one.naturalWidth > 0)")
        texts = page.evaluate(
            "[...document.querySelectorAll('.axes text')].map(one => one.getBoundingClientRect())"
            ".filter(one => one.left < 0 || one.right > innerWidth || one.height < 10).length"
        )
        assert texts == 0, "labels of an axis that are cut off, or too small to be read"
        look(page, f"{width}-{scheme}")


def test_a_column_under_the_pointer_shows_its_values_without_any_script(site: str, chromium: Browser) -> None:
    with opened(site, chromium, viewport={"width": 1400, "height": 900}, java_script_enabled=False) as page:
        page.goto("/")
        column = page.locator(".large .at g").nth(8)
        expect(column.locator("text")).to_be_hidden()
        column.locator("rect").first.hover()
        expect(column.locator("text")).to_be_visible()
        expect(column.locator("text")).to_contain_text("greedy")
        look(page, "hover")
