"""The shell of every role process: command line, run file, signals, exit codes, log lines, metrics, probes."""

from __future__ import annotations

import http.client
import io
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from rlctl_agents import envs
from rlctl_agents.envs.base import EnvError
from rlctl_agents.roles import logs, prometheus
from rlctl_agents.roles.http_listener import BODY_BYTES, HttpListener, Request, Response
from rlctl_agents.roles.metrics import Metrics
from rlctl_agents.roles.probe_listener import ProbeListener, Pulse
from rlctl_agents.roles.process import Process, Signals, UserFault, parse, run_role

REPOSITORY = Path(__file__).parents[2]


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def write_run_file(folder: Path, role: str = "actor", **changes: Any) -> Path:
    spec = {"run": "r", "env": {"id": "CartPole-v1"}}
    path = folder / f"{role}.json"
    path.write_text(json.dumps({"format": 1, "run": "r", "uid": "ab" * 16, "role": role, "spec": spec} | changes))
    return path


def command(run_file: Path, probe: Path, role: str = "actor") -> list[str]:
    return [
        role,
        "--name",
        f"{role}-3",
        "--run-file",
        str(run_file),
        "--manager",
        "ipc:///m",
        "--probe",
        f"unix:{probe}",
    ]


@pytest.fixture(autouse=True)
def quiet_again() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, hook = list(root.handlers), root.level, threading.excepthook
    yield
    root.handlers[:], root.level, threading.excepthook = handlers, level, hook
    logging.captureWarnings(False)


def get(path: Path, target: str, method: str = "GET", body: bytes | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("localhost", timeout=5)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(5)
    connection.sock.connect(str(path))
    try:
        connection.request(method, target, body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.fixture
def short(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    import tempfile

    with tempfile.TemporaryDirectory(prefix="rlctl-", dir="/tmp") as folder:
        yield Path(folder)


def test_the_number_in_the_name_is_the_index_asked_for(tmp_path: Path) -> None:
    arguments = command(write_run_file(tmp_path), tmp_path / "p")
    assert parse(arguments).prefer == 3
    arguments[2] = "actor-7f9c4-x2"
    assert parse(arguments).prefer is None


@pytest.mark.parametrize("arguments", [[], ["juggler"], ["actor", "--name", "actor-0"]])
def test_a_wrong_command_line_is_a_users_fault(arguments: list[str]) -> None:
    with pytest.raises(UserFault, match="command line"):
        parse(arguments)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": 2}, "format 2"),
        ({"role": "learner"}, "written for learner"),
        ({"spec": {"run": "r", "env": {"id": "x"}, "seed": -1}}, "seed"),
        ({"uid": 7}, "uid"),
    ],
)
def test_a_run_file_that_does_not_fit_ends_with_3_and_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], words: str
) -> None:
    code = run_role(command(write_run_file(tmp_path, **changes), tmp_path / "p"), lambda process: None)
    lines = capsys.readouterr().out.splitlines()
    assert code == 3
    assert len(lines) == 1
    assert words in json.loads(lines[0])["msg"]
    assert "exc" not in json.loads(lines[0])


@pytest.mark.parametrize(("raised", "code"), [(None, 0), (UserFault("your env is wrong"), 3), (OSError("boom"), 1)])
def test_exit_code_says_whose_fault_it_was(
    tmp_path: Path, short: Path, capsys: pytest.CaptureFixture[str], raised: Exception | None, code: int
) -> None:
    def main(process: Process) -> None:
        if raised is not None:
            raise raised

    assert run_role(command(write_run_file(tmp_path), short / "p"), main) == code
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert ("exc" in last) == (code == 1)
    assert last["role"] == "actor"
    assert last["id"] == "actor/3"


class Faulty(gymnasium.Env[Any, Any]):
    """A user's environment with a mistake in it."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        raise KeyError("no such key")


def ended_by_explained(folder: Path, probe: Path, caused: bool, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    def main(process: Process) -> None:
        process.explained = (EnvError,)
        if not caused:
            raise EnvError.at("step returned NaN reward", "pong", 41, 7)
        env = envs.make("tests.roles.test_process:Faulty", envs=1, seeds=[41])
        env.reset()
        env.step(np.zeros(1, np.int64), {"action": np.zeros(1, np.int64)})

    assert run_role(command(write_run_file(folder), probe), main) == 1
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


def test_an_error_that_says_it_all_is_one_sentence(
    tmp_path: Path, short: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ended_by_explained(tmp_path, short / "p", False, capsys)
    assert (line["level"], line["msg"]) == ("ERROR", "EnvError: step returned NaN reward (pong, seed 41, step 7)")
    assert "exc" not in line


def test_of_an_error_in_the_users_code_only_the_users_frames_are_shown(
    tmp_path: Path, short: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ended_by_explained(tmp_path, short / "p", True, capsys)
    where = "tests.roles.test_process:Faulty, seed 41, step 1"
    assert line["msg"] == f"EnvError: step raised KeyError: 'no such key' ({where})"
    assert "in step\n    raise KeyError" in line["exc"]
    assert line["exc"].splitlines()[-1] == "KeyError: 'no such key'"
    assert "rlctl_agents" not in line["exc"]
    assert "EnvError" not in line["exc"]


def test_sigterm_sets_stop_although_the_main_thread_waits_for_it(tmp_path: Path, short: Path) -> None:
    def main(process: Process) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        assert process.stop.wait(5)
        assert process.metrics.values().gauges["stopping"] == 1

    assert run_role(command(write_run_file(tmp_path), short / "p"), main) == 0


def test_who_does_not_stop_in_time_is_ended() -> None:
    stop, ended = threading.Event(), threading.Event()
    codes: list[int] = []

    def end(code: int) -> None:
        codes.append(code)
        ended.set()

    with Signals(stop, grace_s=0.01, end=end):
        os.kill(os.getpid(), signal.SIGINT)
        assert ended.wait(5)
    assert codes == [1]
    assert stop.is_set()


def test_signals_are_as_before_when_the_role_has_ended() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with Signals(threading.Event()):
        pass
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def log_lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_log_line_is_one_json_object_with_its_traceback() -> None:
    stream = io.StringIO()
    logs.set_up(logs.Identity("r", "actor", "actor/3", "b" * 16), stream=stream)
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logging.getLogger("x").exception("it %s", "broke", extra={"kv": {"step": 7}})
    (line,) = log_lines(stream)
    assert line["msg"] == "it broke"
    assert line["kv"] == {"step": 7}
    assert "ValueError: two\nlines" in line["exc"]
    assert line["ts"].endswith("Z")
    assert len(line["ts"]) == len("2026-11-21T03:54:09.123456Z")
    assert (line["level"], line["run"], line["role"], line["id"], line["boot"]) == (
        "ERROR", "r", "actor", "actor/3", "b" * 16,
    )  # fmt: skip


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


def test_recent_lines_are_bounded_and_taken_once() -> None:
    recent = logs.RecentLines(lines=3, max_bytes=50)
    for text in ("a" * 30, "b" * 10, "c" * 10, "d" * 10):
        recent.handle(logging.LogRecord("x", logging.INFO, "f", 1, text, (), None))
    assert recent.take() == ["b" * 10, "c" * 10, "d" * 10]
    recent.handle(logging.LogRecord("x", logging.INFO, "f", 1, "e" * 90, (), None))
    assert recent.take() == ["e" * 90]
    assert recent.take() == []


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
    text = prometheus.text(prometheus.family_of("learner", *metrics.values(), labels).values())
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
    assert samples["rlctl_learner_lag_versions_bucket", (("le", "0"),)] == 0
    assert samples["rlctl_learner_lag_versions_count", ()] == 4
    assert all("role" in sample.labels for one in text_string_to_metric_families(text) for sample in one.samples)


def test_probes_answer_three_pages_and_nothing_else(short: Path) -> None:
    clock = Clock()
    pulse = Pulse(clock, silent_s=60)
    listener = ProbeListener(f"unix:{short}/p", pulse, lambda: "rlctl_x 1\n")
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


def test_listener_takes_the_place_of_a_socket_that_a_killed_process_left(short: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(short / "p"))
    listener = HttpListener(f"unix:{short}/p", lambda request: Response.of({"path": request.path}), name="x")
    try:
        assert get(short / "p", "/here")[0] == 200
        assert (short / "p").stat().st_mode & 0o077 == 0
    finally:
        listener.close()


def test_manager_and_modelpool_import_neither_torch_nor_a_simulator() -> None:
    modules = "process", "manager", "modelpool", "overseer", "status", "tensorboard", "member"
    code = (
        "import sys\n"
        + "".join(f"import rlctl_agents.roles.{module}\n" for module in modules)
        + "print(sorted({name.split('.')[0] for name in sys.modules}"
        " & {'torch', 'gymnasium', 'ale_py', 'tensorflow', 'jax', 'pandas'}))"
    )
    env = os.environ | {"PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'agents'}"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
