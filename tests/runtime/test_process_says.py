"""Output of a role process about itself: log lines, metrics, probes."""

from __future__ import annotations

import http.client
import io
import json
import logging
import logging.config
import math
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rlctl_agents.runtime import http_server, logs
from rlctl_agents.runtime.health import ProbeListener, Pulse
from rlctl_agents.runtime.http_server import BODY_BYTES, HttpListener, Request, Response
from rlctl_agents.runtime.metrics import Metrics, exposition, families_of

pytestmark = pytest.mark.usefixtures("quiet_again")


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def get(path: Path, target: str, method: str = "GET", body: bytes | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("localhost", timeout=60)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(5)
    connection.sock.connect(str(path))
    try:
        connection.request(method, target, body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def log_lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_log_line_is_one_json_object_with_its_traceback() -> None:
    stream = io.StringIO()
    logs.set_up(logs.Identity("r", "actor", "actor/3", "b" * 16), stream=stream)
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logging.getLogger("x").exception("it %s", "broke", extra={"kv": {"step": 7, "loss": math.nan}})
    (line,) = log_lines(stream)
    assert line["msg"] == "it broke"
    assert line["kv"] == {"step": 7, "loss": "nan"}, "JSON has no such number"
    assert "ValueError: two\nlines" in line["exc"]
    assert line["ts"].endswith("Z")
    assert len(line["ts"]) == len("2026-11-21T03:54:09.123456Z")
    assert (line["level"], line["run"], line["role"], line["id"], line["boot"]) == (
        "ERROR", "r", "actor", "actor/3", "b" * 16,
    )  # fmt: skip


def test_a_name_that_is_not_utf8_leaves_the_line_utf8() -> None:
    stream = io.StringIO()
    logs.set_up(logs.Identity("r", "actor", "actor/3", "b" * 16), stream=stream)
    logging.getLogger("x").warning("no file %s", "caf\udce9")
    assert log_lines(stream)[0]["msg"] == "no file caf?"
    assert stream.getvalue().encode()


def test_repeated_lines_are_counted_and_not_written() -> None:
    clock = Clock()
    only = logs.RepeatFilter(clock)

    def passes(number: int) -> logging.LogRecord | None:
        record = logging.LogRecord("x", logging.WARNING, "f", 1, "number %d", (number,), None)
        return record if only.filter(record) else None

    assert sum(passes(number) is not None for number in range(1000)) == logs.REPEATS
    clock.now += logs.REPEATS_WINDOW_S
    record = passes(0)
    assert record is not None
    assert record.__dict__["kv"] == {"suppressed": 1000 - logs.REPEATS}


def test_an_event_is_not_lost_because_many_of_other_kinds_came_before() -> None:
    only, passed = logs.RepeatFilter(Clock()), []
    for kind, role in [("lease", "actor")] * 20 + [("lease", "learner"), ("group", "")]:
        record = logging.LogRecord("x", logging.INFO, "f", 1, "%s", ("text",), None)
        record.__dict__["kv"] = {"event": kind, "role": role}
        passed += [(kind, role)] * only.filter(record)
    assert passed == [("lease", "actor")] * logs.REPEATS + [("lease", "learner"), ("group", "")]


def test_recent_lines_are_bounded_and_taken_once() -> None:
    recent = logs.RecentLines(lines=3, max_characters=50)
    for text in ("a" * 30, "b" * 10, "c" * 10, "d" * 10):
        recent.handle(logging.LogRecord("x", logging.INFO, "f", 1, text, (), None))
    assert recent.take() == ["b" * 10, "c" * 10, "d" * 10]
    recent.handle(logging.LogRecord("x", logging.INFO, "f", 1, "e" * 90, (), None))
    assert recent.take() == ["e" * 90]
    assert recent.take() == []


TO_STDERR = {"handlers": {"c": {"class": "logging.StreamHandler"}}, "root": {"handlers": ["c"], "level": "CRITICAL"}}


@pytest.mark.parametrize(
    "disturb",
    [
        lambda: logging.disable(logging.CRITICAL),
        lambda: logging.config.dictConfig({"version": 1}),
        lambda: logging.config.dictConfig({"version": 1, **TO_STDERR}),
        lambda: logging.config.dictConfig({"version": 1, "disable_existing_loggers": False, **TO_STDERR}),
        lambda: logging.basicConfig(force=True),
        lambda: logging.getLogger().setLevel(logging.CRITICAL),
        lambda: logging.getLogger().handlers.clear(),
    ],
    ids=["disable", "dictConfig", "root", "root, others kept", "basicConfig", "level", "handlers"],
)
def test_what_a_users_code_does_to_logging_hides_no_last_words(disturb: Callable[[], None]) -> None:
    stream = io.StringIO()
    ours = logging.getLogger("rlctl_agents.runtime.process")
    recent = logs.set_up(logs.Identity("r", "actor", "actor/3", "b"), stream=stream)
    disturb()
    ours.info("played")  # may be lost
    logs.hold()
    ours.error("the door is locked")
    assert log_lines(stream)[-1]["msg"] == "the door is locked"
    assert "the door is locked" in recent.take()[-1]


def test_records_go_out_when_standard_output_is_sent_elsewhere() -> None:
    code = (
        "import logging, os; from rlctl_agents.runtime import logs; "
        "logs.set_up(logs.Identity('r', 'actor', 'actor/3', 'b')); os.close(1); os.open(os.devnull, os.O_WRONLY); "
        "logging.getLogger('rlctl_agents.x').error('the door is locked')"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert json.loads(told)["msg"] == "the door is locked"


def test_a_thread_that_ends_by_an_exception_says_so() -> None:
    stream = io.StringIO()
    logs.set_up(logs.Identity("r", "actor", "actor/3", "b"), stream=stream)

    def fail() -> None:
        raise RuntimeError("gone")

    thread = threading.Thread(target=fail, name="reports")
    thread.start()
    thread.join()
    (line,) = log_lines(stream)
    assert "thread reports ended: RuntimeError: gone" in line["msg"]


def test_metrics_add_up_and_histograms_hold_what_is_at_most_their_bound() -> None:
    clock = Clock()
    metrics = Metrics(cpu_clock=lambda: 3.5, clock=clock)
    metrics.add("env_steps", 16)
    metrics.add("env_steps", 16)
    metrics.set("lr", 0.5)
    metrics.declare("lag_versions", [0, 1, 2])
    metrics.observe("lag_versions", 0, 5)
    metrics.observe("lag_versions", 2)
    metrics.observe("lag_versions", 9, 2)
    with metrics.timed("wait_data_seconds"):
        clock.now += 2
    values = metrics.values()
    assert values.counters == {"env_steps": 32, "wait_data_seconds": 2, "cpu_seconds": 3.5}
    assert values.gauges == {"lr": 0.5}
    assert values.histograms["lag_versions"].counts == [5, 0, 1, 2]
    assert values.histograms["lag_versions"].total == 20
    metrics.observe("lag_versions", 0)
    assert values.histograms["lag_versions"].counts[0] == 5, "the reader has a copy"


def test_prometheus_reads_our_page_as_it_is_meant() -> None:
    metrics = Metrics(cpu_clock=lambda: 1.25)
    metrics.add("env_steps", 3)
    metrics.add("wait_data_seconds", 0.5)
    metrics.add("wait_model_seconds", 0.25)
    metrics.add("rejected.lineage", 2)
    metrics.set("loss.policy", -0.125)
    metrics.set("loss.value", float("nan"))
    metrics.declare("lag_versions", [0, 1])
    metrics.observe("lag_versions", 1, 4)
    labels = {"run": 'quo"te\\', "role": "learner"}
    text = exposition(families_of("learner", metrics.values(), labels)).decode()
    samples = {
        (sample.name, tuple(sorted(set(sample.labels.items()) - set(labels.items())))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["rlctl_learner_env_steps_total", ()] == 3
    assert samples["rlctl_learner_wait_seconds_total", (("stage", "data"),)] == 0.5
    assert samples["rlctl_learner_wait_seconds_total", (("stage", "model"),)] == 0.25
    assert samples["rlctl_learner_rejected_total", (("reason", "lineage"),)] == 2
    assert samples["rlctl_learner_loss", (("term", "policy"),)] == -0.125
    assert samples["rlctl_learner_lag_versions_bucket", (("le", "+Inf"),)] == 4
    assert samples["rlctl_learner_lag_versions_bucket", (("le", "0.0"),)] == 0
    assert samples["rlctl_learner_lag_versions_count", ()] == 4
    assert all("role" in sample.labels for one in text_string_to_metric_families(text) for sample in one.samples)


def test_probes_answer_three_pages_and_nothing_else(short: Path) -> None:
    clock = Clock()
    pulse = Pulse(clock, silent_s=60)
    listener = ProbeListener(f"unix:{short}/p", pulse, lambda: b"rlctl_x 1\n")
    try:
        assert get(short / "p", "/healthz")[0] == 200
        assert get(short / "p", "/readyz")[0] == 503
        pulse.ready = True
        assert get(short / "p", "/readyz")[0] == 200
        assert get(short / "p", "/metrics?x=1") == (200, b"rlctl_x 1\n")
        assert get(short / "p", "/status")[0] == 404
        assert get(short / "p", "/healthz", "POST", b"x")[0] == 405
        assert get(short / "p", "/healthz", "DELETE")[0] == 405
        pulse.beat()
        clock.now += 61
        assert get(short / "p", "/healthz")[0] == 503, "the loop has not turned for a minute"
    finally:
        listener.close()
    assert not (short / "p").exists()


def test_listener_refuses_addresses_that_others_could_reach() -> None:
    for address in ("tcp:0.0.0.0:0", "tcp:192.168.0.1:80", "tcp:example.org:80", "unix:relative", "http://x"):
        with pytest.raises(ValueError, match=r"loopback|must be"):
            HttpListener(address, lambda request: Response.of({}), name="x")


def test_listener_limits_bodies_and_survives_a_failing_answer(short: Path) -> None:
    def answer(request: Request) -> Response:
        raise KeyError(request.path)

    listener = HttpListener(f"unix:{short}/p", answer, name="x")
    try:
        assert get(short / "p", "/x", "POST", b"x" * (BODY_BYTES + 1))[0] == 413
        assert get(short / "p", "/x")[0] == 500
        with socket.socket(socket.AF_UNIX) as garbage:
            garbage.settimeout(5)
            garbage.connect(str(short / "p"))
            garbage.sendall(b"\x00\xff nonsense\r\n\r\n")
            heard = garbage.makefile("rb").read()
        assert heard.startswith(b"400 Bad")
        assert b"<" not in heard
        assert heard.count(b"\n") == 1, "one line, not a page"
        assert json.loads(get(short / "p", "/x")[1])["error"]["message"].startswith("internal error")
    finally:
        listener.close()


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_listener_closes_without_waiting_for_its_next_look(
    short: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(http_server, "LOOK_S", 30.0)
    address = f"unix:{short}/p" if kind == "unix" else "tcp:127.0.0.1:0"
    listener = HttpListener(address, lambda request: Response.of({}), name="x")
    thread = next(one.ident for one in threading.enumerate() if one.name == "x")
    assert thread is not None
    while sys._current_frames()[thread].f_code.co_name != "select":  # until it waits for clients
        time.sleep(0)
    began = time.monotonic()
    listener.close()
    assert time.monotonic() - began < 20


def test_listener_takes_the_place_of_a_socket_that_a_killed_process_left(short: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(short / "p"))
    listener = HttpListener(f"unix:{short}/p", lambda request: Response.of({"path": request.path}), name="x")
    try:
        assert get(short / "p", "/here")[0] == 200
        assert (short / "p").stat().st_mode & 0o077 == 0
    finally:
        listener.close()


def test_a_listener_that_ends_leaves_its_successors_socket_alone(short: Path) -> None:
    first = HttpListener(f"unix:{short}/p", lambda request: Response.of({}), name="first")
    second = HttpListener(f"unix:{short}/p", lambda request: Response.of({"by": "second"}), name="second")
    try:
        first.close()
        assert json.loads(get(short / "p", "/")[1]) == {"by": "second"}
    finally:
        second.close()
    assert [*short.iterdir()] == []


def test_a_socket_is_never_there_with_a_mode_that_lets_others_in(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, chmod, before = short / "p", Path.chmod, os.umask(0)
    there: list[bool] = []

    def look(self: Path, mode: int) -> None:
        there.append(path.exists())
        chmod(self, mode)

    monkeypatch.setattr(Path, "chmod", look)
    try:
        listener = HttpListener(f"unix:{path}", lambda request: Response.of({}), name="x")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        listener.close()
    finally:
        os.umask(before)
    assert there == [False], "it got its mode under another name"


def test_what_is_no_socket_is_not_replaced(short: Path) -> None:
    (short / "p").write_text("precious")
    with pytest.raises(FileExistsError):
        HttpListener(f"unix:{short}/p", lambda request: Response.of({}), name="x")
    assert (short / "p").read_text() == "precious"
    assert [path.name for path in short.iterdir()] == ["p"]
