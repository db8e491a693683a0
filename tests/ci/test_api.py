"""What is asked of the service: numbers, ranges, pages of lists, the feed; and what it hides."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from rlctl_ci import logs
from rlctl_ci.logs import Log, Masker
from rlctl_ci.service import Service
from tests.ci.test_http import hook, http, service

__all__ = ["http", "service"]


@pytest.mark.parametrize("path", ["/builds/{}", "/builds/{}.json", "/api/v1/builds/{}", "/api/v1/builds/{}/log"])
@pytest.mark.parametrize("digits", [15, 16, 5000])
def test_a_number_that_no_build_has_is_a_404(http: TestClient, path: str, digits: int) -> None:
    assert http.get(path.format("9" * digits)).status_code == 404


RANGES = ["bytes=5--", "bytes=²-", "bytes=0-1", "bytes=-1", "bytes=", "bytes=" + "9" * 30 + "-", "lines=1-", "bytes=1-,2-"]


@pytest.mark.parametrize("asked", RANGES)
def test_a_range_of_another_form_is_not_looked_at(service: Service, http: TestClient, asked: str) -> None:
    hook(http)
    Log(service.log(1), 1 << 20, Masker([]))("one")
    answer = http.get("/api/v1/builds/1/log", headers={b"range": asked.encode("latin-1")})  # type: ignore[dict-item]
    assert (answer.status_code, answer.text) == (200, "one\n")
    assert "content-range" not in answer.headers


def test_a_part_of_a_log_ends_with_a_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("one\ntwo\nthree\n")
    assert logs.read(path, 0, 10) == (b"one\ntwo\n", 8)
    assert logs.read(path, 8, 10) == (b"three\n", 14)
    assert logs.read(path, 8, 3) == (b"thr", 11), "a line that is longer than a part comes in several"
