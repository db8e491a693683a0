"""The control API, the curves, the metrics page, and a manager as a real process."""

from __future__ import annotations

import base64
import http.client
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rlctl.backends.kubernetes.apply.initial import PIECE_BYTES
from rlctl.backends.local.process.unix_http import request
from rlctl.spec.layout import Layout
from rlctl_agents.manager.events import Events
from rlctl_agents.manager.lifecycle.stop import TooLate
from rlctl_agents.manager.logs.log_queries import LogQueries
from rlctl_agents.manager.settings import SCALED, LiveSettings, merged
from rlctl_agents.manager.status.report import StatusBuilder
from rlctl_agents.manager.trackers.tensorboard import CurveWriter
from rlctl_agents.manager.web import control_api, metrics_page
from rlctl_agents.manager.web.control_api import ControlApi
from rlctl_agents.manager.web.initial_policy import InitialPolicy
from rlctl_agents.manager.web.stored_files import StoredFiles
from rlctl_agents.runtime.http_server import Request
from rlctl_agents.runtime.logs import Lines
from rlctl_agents.runtime.metrics import exposition
from rlctl_agents.types.control import Commit, EvalResult, Generation, Hello, Histogram, Lease, Orders, Reply, Report
from rlctl_agents.wire.rpc.client import RemoteError, RpcClient
from rlctl_agents.wire.sockets import Wire
from tests.manager.world import UID, Run, boot, experience, keep, ref
from tests.support.fakes import wait_until

REPOSITORY = Path(__file__).parents[3]


def line(process: str) -> str:
    return json.dumps({"level": "INFO", "id": process, "msg": "x"})


@pytest.fixture
def api(short: Path) -> Iterator[ControlApi]:
    events, lines = Events(short / "events.jsonl", lambda: 0.0), Lines()
    events.add("start", "manager started")
    lines.add([line("actor/3"), line("actor/30"), "not json"])
    api = ControlApi(
        f"unix:{short}/control",
        LogQueries(short, lines, None, "").answer,
        StoredFiles(Layout(short)).answer,
        InitialPolicy(Layout(short)).answer,
    )
    api.events = events
    yield api
    api.close()


def test_an_order_that_was_refused_for_its_time_is_not_carried_out_later(
    api: ControlApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_api, "ORDER_S", 0.01)
    answer = api.answer(Request("POST", "/stop", {}))
    assert answer.status == 503
    assert "within 0.01 s; the order is not carried out" in json.loads(answer.body)["error"]["message"]
    carried: list[str] = []
    api.carry_out(lambda what, body: carried.append(what))
    assert carried == []


def read(api: ControlApi, path: str, **query: str) -> tuple[int, Any]:
    answer = api.answer(Request("GET", path, query))
    return answer.status, json.loads(answer.body)


def test_reads_are_answered_from_what_is_there(api: ControlApi) -> None:
    assert read(api, "/status")[0] == 503
    api.status = b'{"run": "r"}\n'
    assert read(api, "/status") == (200, {"run": "r"})
    status, answer = read(api, "/events", since="0")
    assert (status, answer["next"], answer["events"][0]["kind"]) == (200, 1, "start")
    assert read(api, "/events", since="1")[1] == {"events": [], "next": 1}
    assert len(read(api, "/logs")[1]["lines"]) == 3
    assert read(api, "/logs", process="actor/3")[1]["lines"] == [line("actor/3")]
    assert len(read(api, "/logs", process="actor")[1]["lines"]) == 2
    assert read(api, "/checkpoints") == (200, {"generations": [], "wanted": {}})


def test_the_control_socket_is_for_its_user_alone_whatever_the_umask(short: Path) -> None:
    before = os.umask(0)
    try:
        api = ControlApi(
            f"unix:{short}/control",
            LogQueries(short, Lines(), None, "").answer,
            StoredFiles(Layout(short)).answer,
            InitialPolicy(Layout(short)).answer,
        )
    finally:
        os.umask(before)
    assert stat.S_IMODE((short / "control").stat().st_mode) == 0o600
    api.close()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/secret", 404),
        ("POST", "/status", 405),
        ("GET", "/stop", 405),
        ("DELETE", "/checkpoint", 405),
        ("GET", "/events", 400),
    ],
)
def test_what_is_not_offered_is_refused_in_words(api: ControlApi, method: str, path: str, status: int) -> None:
    answer = api.answer(Request(method, path, {"since": "-1"}))
    assert answer.status == status
    assert json.loads(answer.body)["error"]["message"]


def order(api: ControlApi, path: str, do: Any, body: bytes = b"") -> tuple[int, Any]:
    answers: list[tuple[int, Any]] = []

    def ask() -> None:
        answer = api.answer(Request("POST", path, {}, body))
        answers.append((answer.status, json.loads(answer.body)))

    client = threading.Thread(target=ask)
    client.start()
    while client.is_alive():
        api.carry_out(do)
        client.join(0.01)
    return answers[0]


def test_orders_are_carried_out_by_the_main_loop(api: ControlApi) -> None:
    done: list[str] = []

    def do(what: str, body: dict[str, Any]) -> dict[str, int]:
        done.append(f"{what} in {threading.current_thread().name}")
        return {"number": 3}

    assert order(api, "/checkpoint", do) == (200, {"number": 3})
    assert done == ["/checkpoint in MainThread"]


@pytest.mark.parametrize(("kind", "refused"), [(ValueError, 400), (TooLate, 409)])
def test_a_refused_order_says_why(api: ControlApi, kind: type[ValueError], refused: int) -> None:
    def do(what: str, body: dict[str, Any]) -> None:
        raise kind("live.json: stop.agent_steps: must be at least 1")

    status, answer = order(api, "/reload", do)
    assert status == refused
    assert "stop.agent_steps" in answer["error"]["message"]


def test_an_order_that_fails_in_another_way_fails_alone(api: ControlApi) -> None:
    failed: list[OverflowError] = []

    def do(what: str, body: dict[str, Any]) -> None:
        raise OverflowError("int too large to convert to float")

    def ask() -> None:
        try:
            api.answer(Request("POST", "/reload", {}, b""))
        except OverflowError as error:  # the listener answers 500
            failed.append(error)

    client = threading.Thread(target=ask)
    client.start()
    while client.is_alive():
        api.carry_out(do)
        client.join(0.01)
    assert len(failed) == 1
    assert order(api, "/checkpoint", lambda what, body: {"number": 4}) == (200, {"number": 4})


def test_an_order_comes_with_its_body_and_a_body_that_is_no_object_is_refused(api: ControlApi) -> None:
    assert order(api, "/reload", lambda what, body: body, b'{"live": {"stop": {}}}') == (200, {"live": {"stop": {}}})
    assert order(api, "/reload", lambda what, body: body, b" ") == (200, {})
    for body in (b"[1]", b"{", b'"live"'):
        status, answer = order(api, "/reload", lambda what, body: body, body)
        assert status == 400
        assert "body" in answer["error"]["message"]


def test_a_piece_of_a_policy_is_larger_than_any_order(api: ControlApi, short: Path) -> None:
    piece = {"name": "policy.safetensors", "offset": 0, "data": base64.b64encode(bytes(PIECE_BYTES)).decode()}
    assert request(short / "control", "POST", "/init", piece, timeout_s=5, who="it") == {"bytes": PIECE_BYTES}


def test_live_settings_can_come_with_the_request_and_are_checked_like_the_file(tmp_path: Path) -> None:
    run_file, live = tmp_path / "manager.json", tmp_path / "live.json"
    spec = {"run": "r", "env": {"id": "-"}}
    run_file.write_text(json.dumps({"format": 1, "run": "r", "uid": UID, "role": "manager", "spec": spec}))
    live.write_text('{"stop": {"agent_steps": 9}}')
    settings = LiveSettings(run_file, live, tmp_path / SCALED)
    assert settings.reload({"stop": {"agent_steps": 5}}).stop.agent_steps == 5, "the mounted file is late"
    assert settings.reload({}).stop.agent_steps is None
    with pytest.raises(ValueError, match=r"stop\.agent_steps"):
        settings.reload({"stop": {"agent_steps": -5}})
    with pytest.raises(ValueError, match="live: must hold an object"):
        settings.reload([1])  # type: ignore[arg-type]


def test_live_settings_lie_over_those_of_the_run_file(tmp_path: Path) -> None:
    below = {"stop": {"agent_steps": 5, "eval_return": None}, "seed": 3}
    assert merged(below, {"stop": {"agent_steps": 7}}) == {"stop": {"agent_steps": 7, "eval_return": None}, "seed": 3}
    run_file, live = tmp_path / "manager.json", tmp_path / "live.json"
    spec = {"run": "r", "env": {"id": "-"}, "seed": 3}
    run_file.write_text(json.dumps({"format": 1, "run": "r", "uid": UID, "role": "manager", "spec": spec}))
    live.write_text('{"stop": {"agent_steps": 9}, "checkpoint": {"every": 5}}')
    settings = LiveSettings(run_file, live, tmp_path / SCALED)
    found = settings.read()
    assert (found.seed, found.stop.agent_steps, found.checkpoint.every) == (3, 9, 5)
    live.write_text('{"stop": {"agent_steps": -9}}')
    with pytest.raises(ValueError, match=r"stop\.agent_steps"):
        settings.read()
    live.write_text('{"stop"')
    with pytest.raises(ValueError, match=r"live\.json"):
        settings.read()


def test_curves_can_be_read_by_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    first = CurveWriter(tmp_path / "tensorboard", 1, lambda: 1.7e9)
    for steps in (100, 200, 300):
        first.add(steps, {"return/train": steps / 10, "loss/policy": 0.5})
    first.close()
    second = CurveWriter(tmp_path / "tensorboard", 2, lambda: 1.7e9 + 60)
    second.void_from(250)
    second.add(260, {"return/train": 99.0})
    second.close()
    read = EventAccumulator(str(tmp_path / "tensorboard"))
    read.Reload()
    assert read.Tags()["scalars"] == ["loss/policy", "return/train"]
    points = [(point.step, round(point.value, 3)) for point in read.Scalars("return/train")]
    assert points == [(100, 10), (200, 20), (260, 99)], "what the learner has forgotten is not shown"


def test_half_a_record_does_not_end_the_file(tmp_path: Path) -> None:
    import resource

    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    curves = CurveWriter(tmp_path, 1, lambda: 1.7e9)
    curves.add(100, {"a": 1.0})
    (path,) = tmp_path.iterdir()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, limits[1]))
    try:
        curves.add(200, {"a": 2.0})
        assert "tensorboard" in curves.failure
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    curves.add(300, {"a": 3.0})
    curves.close()
    assert curves.failure == ""
    assert [event.step for event in EventFileLoader(str(path)).Load()] == [0, 100, 300]


def test_the_metrics_page_sums_up_all_roles(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.join("learner", 2)
    for number, index in ((3, 0), (4, 1)):
        run.join("actor", number, prefer=index)
        run.report("actor", number, counters={"env_steps": 100.0, "wait_credit_seconds": 1.0}, gauges={"lr": 2.0})
    run.join("actor", 5, prefer=1)  # one was killed and started anew
    run.report("actor", 5, counters={"env_steps": 7.0}, gauges={"lr": 4.0})
    told = StatusBuilder(run.manager).build()
    names = {family.name for family in metrics_page.families(run.manager, told)}
    assert "rlctl_evaluation_cpu_share" not in names, "two have to start before"
    told |= {"cadence": {"stated_s": None, "every_s": 20.0, "cpu_share": 0.1}}
    text = exposition(metrics_page.families(run.manager, told)).decode()
    samples = {
        (sample.name, sample.labels.get("role") or sample.labels.get("of") or sample.labels.get("outcome")): sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["rlctl_actor_env_steps_total", "actor"].value == 207
    assert samples["rlctl_actor_wait_seconds_total", "actor"].labels["stage"] == "credit"
    assert samples["rlctl_actor_lr", "actor"].value == 3
    assert samples["rlctl_manager_members", "actor"].value == 2
    assert samples["rlctl_manager_term", None].value == 1
    assert samples["rlctl_ledger_rows", "consumed"].value == 0
    assert samples["rlctl_ledger_rows", "discarded"].value == 0
    assert samples["rlctl_evaluation_interval_seconds", None].value == 20
    assert samples["rlctl_evaluation_cpu_share", None].value == 0.1
    assert all(sample.labels["run"] == "r" for sample in samples.values())
    assert not any("boot" in sample.labels or "index" in sample.labels for sample in samples.values())


def test_histograms_of_learners_that_step_together_are_one(tmp_path: Path) -> None:
    run = Run(tmp_path, roles={"learner": {"replicas": 2}})
    for number, index in ((2, 0), (6, 1)):
        run.join("learner", number, prefer=index)
        run.report("learner", number, histograms={"lag_versions": Histogram([0.0, 1.0], [1, 2, number], 5.0)})
    page = exposition(metrics_page.families(run.manager, StatusBuilder(run.manager).build())).decode()
    samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    lags = {one.labels["le"]: one.value for one in samples if one.name == "rlctl_learner_lag_versions_bucket"}
    assert lags == {"0.0": 2, "1.0": 6, "+Inf": 14}
    assert [one.value for one in samples if one.name == "rlctl_learner_lag_versions_sum"] == [10]


class Manager:
    """A manager as the backend starts it."""

    def __init__(self, root: Path, sockets: Path, live: dict[str, Any]) -> None:
        self.root, self.sockets = root, sockets
        root.mkdir(exist_ok=True)
        run_file, live_file = root / "manager.json", root / "live.json"
        spec = {"run": "r", "env": {"id": "-"}}
        run_file.write_text(json.dumps({"format": 1, "run": "r", "uid": UID, "role": "manager", "spec": spec}))
        live_file.write_text(json.dumps(live))
        words = {
            "--name": "manager-0", "--run-file": run_file, "--manager": self.address, "--volume": root,
            "--addresses": f"ipc://{sockets}/{{role}}-{{index}}.{{channel}}", "--live": live_file,
            "--probe": f"unix:{sockets}/manager-0.probe", "--control": f"unix:{sockets}/control",
        }  # fmt: skip
        code = "import sys; from rlctl_agents.roles import manager; from rlctl_agents.runtime import process;"
        code += "sys.exit(process.run_role(sys.argv[1:], manager.main))"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, "manager", *(str(word) for pair in words.items() for word in pair)],
            env=os.environ | {"PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'agents'}"},
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    @property
    def address(self) -> str:
        return f"ipc://{self.sockets}/manager-0.rpc"

    def ask(self, method: str, path: str, at: str = "control") -> Any:
        connection = http.client.HTTPConnection("localhost", timeout=60)
        connection.sock = socket.socket(socket.AF_UNIX)
        try:
            connection.sock.settimeout(5)
            connection.sock.connect(str(self.sockets / at))
            connection.request(method, path)
            body = connection.getresponse().read().decode()
        finally:
            connection.close()
        return body if at != "control" else json.loads(body)

    def answers(self) -> bool:
        with suppress(OSError):
            return "term" in self.ask("GET", "/status")
        return False

    def end(self) -> tuple[int, list[dict[str, Any]]]:
        out, _ = self.process.communicate(timeout=60)
        return self.process.returncode, [json.loads(line) for line in out.splitlines()]

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.process.wait()


@pytest.mark.processes
def test_a_manager_that_was_replaced_leaves_its_successor_reachable_and_one_asked_to_leave_finishes_no_run(
    tmp_path: Path, short: Path
) -> None:
    short.chmod(0o700)
    managers = [Manager(tmp_path / "run1", short, {})]
    try:
        wait_until(lambda: managers[0].answers(), "the first manager", timeout_s=60)
        managers.append(Manager(tmp_path / "run1", short, {}))
        code, lines = managers[0].end()
        assert code == 1
        assert "a manager of term 2 has taken over from term 1" in lines[-1]["msg"]
        # its term is written before it has a status
        wait_until(lambda: managers[1].answers(), "the second manager", timeout_s=60)
        assert managers[1].ask("GET", "/status")["term"] == 2
        assert "rlctl_build_info" in managers[1].ask("GET", "/metrics", at="manager-0.probe")
        for name in ("control", "manager-0.probe"):
            assert stat.S_IMODE((short / name).stat().st_mode) == 0o600
        assert managers[1].ask("POST", "/reload") == {"changes": []}
        managers[1].process.terminate()
        assert managers[1].end()[0] == 0
        assert not (short / "control").exists()
    finally:
        for manager in managers:
            manager.kill()
    assert not (tmp_path / "run1" / "run" / "finished.json").exists(), "a manager that was asked to leave ends no run"
    assert json.loads((tmp_path / "run1" / "results" / "status.json").read_text())["phase"] == "starting"


@pytest.mark.processes
def test_a_manager_process_leases_finishes_and_leaves_its_results(tmp_path: Path, short: Path) -> None:
    short.chmod(0o700)
    manager = Manager(tmp_path / "run1", short, {"stop": {"eval_return": 5}, "evaluation": {"episodes": 2}})
    wire = Wire()
    try:
        client = RpcClient(wire, manager.address, boot(1))

        def call(request: Any, reply: Any) -> Any:
            return client.call(request, reply, deadline_s=60)[0]

        with pytest.raises(RemoteError, match="not of cdcdcdcd"):
            call(Hello("actor", boot(1), 0, "cd" * 16), Lease)
        leases = {}
        for number, role in enumerate(("modelpool", "actor", "learner", "evaluator"), 1):
            said = experience() if role in ("actor", "evaluator") else None
            leases[role] = call(Hello(role, boot(number), 0, UID, said), Lease)
        assert leases["learner"].bind == {"experience": f"ipc://{short}/learner-0.experience"}
        assert leases["learner"].experience == experience()
        term = leases["learner"].term
        call(Report("modelpool", boot(1), term, model=ref(4)), Orders)
        learned = {"consumed_steps": 400.0, "updates": 4.0}
        call(Report("learner", boot(3), term, counters=learned, model=ref(4)), Orders)
        match = call(Report("evaluator", boot(4), term), Orders).match
        assert match.quota.episodes == 2
        assert manager.ask("GET", "/checkpoints") == {"generations": [], "wanted": {"main": 0}}
        assert manager.ask("POST", "/checkpoint")["number"] == 1
        assert call(Report("learner", boot(3), term, counters=learned, model=ref(4)), Orders).checkpoint == 1
        (tmp_path / "run1" / "checkpoints" / "main-1").write_bytes(b"x")
        generation = Generation(1, "main", term, ref(4), 400, time.time(), {"learner": "main-1"}, {"learner": "ab"})
        assert call(Commit(generation, boot(3)), Reply) == Reply(True)
        assert "rlctl_build_info" in manager.ask("GET", "/metrics", at="manager-0.probe")
        kept = keep(tmp_path / "run1" / "models", ref(4))
        for what in ("choice", "confirmation", "other mode"):
            wait_until(lambda: call(Report("evaluator", boot(4), term), Orders).match is not None, what)
            match = call(Report("evaluator", boot(4), term), Orders).match
            result = EvalResult(match.id, ref(4), match.quota.mode, [6.0, 7.0], [1, 1], 0.5, kept=kept)
            assert call(result, Reply) == Reply(True)
        stopped: set[int] = set()
        gauges = {"stopping": 1.0}
        roles = {1: "modelpool", 2: "actor", 3: "learner", 4: "evaluator"}
        deadline = time.monotonic() + 60
        while len(stopped) < 4:
            assert time.monotonic() < deadline
            for number, role in roles.items():
                if call(Report(role, boot(number), term, gauges=gauges, model=ref(4)), Orders).stop:
                    stopped.add(number)
        code, lines = manager.end()
        assert code == 0
        assert lines[-1]["msg"] == "ended in good order"
    finally:
        manager.kill()
        wire.close()
    results = tmp_path / "run1" / "results"
    status = json.loads((results / "status.json").read_text())
    assert status["phase"] == "finished"
    assert status["stop"]["met"].startswith("evaluation mean 6.5 >= 5 over 2 episodes")
    assert json.loads((tmp_path / "run1" / "run" / "finished.json").read_text())["term"] == term
    kinds = [json.loads(line)["kind"] for line in (results / "events.jsonl").read_text().splitlines()]
    assert [kinds.count(kind) for kind in ("start", "lease", "evaluation", "checkpoint", "stop")] == [1, 4, 3, 1, 1]
