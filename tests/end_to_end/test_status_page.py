"""A run with recorded episodes, and its page once it is over."""

from __future__ import annotations

import io
import re

import pytest
from PIL import Image

from rlctl.backends.local import LocalBackend
from tests.backends.local.access.test_pages import Browser
from tests.end_to_end.conftest import Cli

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]


def test_episodes_are_recorded_and_shown_with_the_curves_also_when_the_run_is_over(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = cli.spec(
        "film", env={"id": "CartPole-v1"}, algorithm={"name": "impala"}, roles={"actor": {"replicas": 1, "envs": 8}},
        evaluation={"episodes": 5, "every": "2s", "video_every": 2}, stop={"agent_steps": 6000},
    )  # fmt: skip
    cli("up", spec, timeout_s=400)
    status = cli.status("film")
    newest = status["recordings"][0]
    assert newest["version"] == status["evaluation"]["ref"]["version"], "of the last model"
    assert [one["best"] for one in status["recordings"]].count(True) == 1
    with Image.open(cli.root("film") / "results" / "episodes" / newest["file"]) as film:
        assert film.n_frames >= 2  # type: ignore[attr-defined]
        assert max(film.size) <= 320
    assert newest["returned"] == newest["length"], "a reward of 1 for each decision"

    for name in ("XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, cli.env[name])
    browser = Browser()
    with LocalBackend().forward("film", "status") as url:
        page = browser.read(url).decode()
        base = url.partition("?")[0]
        (first, *_) = re.findall(r'<img src="(episodes/[^"]+)"', page)
        with Image.open(io.BytesIO(browser.read(base + first))) as shown:
            assert shown.format == "GIF"
    assert "✓ film: finished" in page.replace('<span aria-hidden="true">', "").replace("</span>", "")
    titles = re.findall("<figcaption><strong>(.*?)</strong>", page)
    assert {"Return", "Policy loss", "Steps a second", "Waiting"} <= set(titles)
    assert re.search(r'<tr><td>main</td><td class="n">[1-9]', page), "the books"
    assert page.count("<tr><td><time>") > 5, "log lines"
