"""A manager as a pod runs it: keys, ports, its page, kept logs, and a run that stays finished until it may go on."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from rlctl_agents.manager.checkpoints.fencing_term import read_term
from rlctl_agents.types.control import Commit, EvalResult, Generation, Hello, Lease, Orders, Reply, Report
from rlctl_agents.wire.keys import Keys
from rlctl_agents.wire.rpc.client import RemoteError, RpcClient
from rlctl_agents.wire.sockets import Wire
from tests.manager.logs.test_log_store import line, texts
from tests.manager.world import UID, boot, experience, ref
from tests.roles.test_main import environment
from tests.support.fakes import wait_until
from tests.support.ports import free_ports
from tests.wire.keyring import Keyring

pytestmark = pytest.mark.processes


class Pod:
    """The manager's pod; its volume outlives it."""

    def __init__(self, root: Path, ring: Keyring, stop: Mapping[str, Any] | None = None) -> None:
        self.root, self.ring = root, ring
        self.rpc, self.probe, self.control = free_ports(3)
        root.mkdir()
        self.live = root / "live.json"
        self.live.write_text(json.dumps({"stop": stop or {"agent_steps": 5000}}))
        self.run_file = root / "run.json"
        spec = {"run": "r", "env": {"id": "-"}, "roles": {"evaluator": {"replicas": 0}}}
        self.run_file.write_text(json.dumps({"format": 1, "run": "r", "uid": UID, "role": "manager", "spec": spec}))
        self.start()

    def start(self, pod: str = "first") -> None:
        """Start a process of a pod.

        Args:
            pod: each has a /tmp of its own.
        """
        self.launch(pod)
        wait_until(lambda: self.ask("/readyz")[0] == 200, "the manager")

    def launch(self, pod: str) -> None:
        tmp = self.root / pod
        tmp.mkdir(exist_ok=True)
        words = [
            "--run-file", str(self.run_file), "--keys", str(self.ring.of("core")), "--manager", self.address,
            "--name", "r-manager-0", "--ordinal", "r-manager-0", "--bind", "127.0.0.1",
            "--probe", f"tcp:127.0.0.1:{self.probe}", "--addresses", "tcp://r-{role}-{index}.r-{role}:{port}",
            "--control", f"tcp:127.0.0.1:{self.control}", "--live", str(self.live), "--volume", str(self.root / "run"),
            "--logs", "--stay",
        ]  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rlctl_agents", "manager", *words],
            env=environment(TMPDIR=str(tmp)), stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    @property
    def address(self) -> str:
        return f"tcp://localhost:{self.rpc}"

    def ask(self, path: str, method: str = "GET", body: Any = None, *, control: bool = False) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.control if control else self.probe, timeout=30)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except ConnectionRefusedError:  # not there yet
            return 0, ""
        finally:
            connection.close()

    def status(self) -> dict[str, Any]:
        code, text = self.ask("/status", control=True)
        return json.loads(text) if code == 200 else {"phase": ""}

    def order(self, path: str, body: Any = None) -> dict[str, Any]:
        code, text = self.ask(path, "POST", body, control=True)
        assert code == 200, text
        found: dict[str, Any] = json.loads(text)
        return found

    def stop(self) -> list[dict[str, Any]]:
        self.process.send_signal(signal.SIGTERM)
        out, _ = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, out
        return [json.loads(text) for text in out.splitlines()]

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


class Peers:
    """Processes of the run, by key class."""

    def __init__(self, ring: Keyring, address: str) -> None:
        self.wires = {role: Wire.of(ring.of(role), "127.0.0.1") for role in ("actor", "evaluator")}
        self._address = address

    def call(self, keys: str, request: Any, reply: Any) -> Any:
        client = RpcClient(self.wires[keys], self._address, boot(1))
        try:
            return client.call(request, reply, deadline_s=60)[0]
        finally:
            client.close()

    def close(self) -> None:
        for wire in self.wires.values():
            wire.close()


@pytest.fixture
def ring(tmp_path: Path) -> Keyring:
    return Keyring(tmp_path / "keys")


@pytest.fixture
def pod(tmp_path: Path, ring: Keyring) -> Iterator[Pod]:
    pod = Pod(tmp_path / "pod", ring)
    yield pod
    pod.kill()


@pytest.fixture
def peers(ring: Keyring, pod: Pod) -> Iterator[Peers]:
    peers = Peers(ring, pod.address)
    yield peers
    peers.close()


def test_the_manager_gives_actors_tickets_that_learners_can_check(pod: Pod, peers: Peers) -> None:
    hello = Hello("actor", boot(3), None, UID, experience())
    lease = peers.call("actor", hello, Lease)
    orders = peers.call("actor", Report("actor", boot(3), lease.term), Orders)
    keys = Keys.read(pod.ring.of("core"))
    for ticket in (lease.ticket, orders.ticket):
        assert abs(keys.made_s(ticket, UID, boot(3)) - time.time()) < 600


def test_an_actors_key_may_do_what_actors_do_and_nothing_else(pod: Pod, peers: Peers) -> None:
    lease = peers.call("actor", Hello("actor", boot(3), 7, UID, experience()), Lease)
    assert lease.index == 0, "an index that an actor asks for is nobody's word"
    assert lease.peers["learner/0"] == {"experience": "tcp://r-learner-0.r-learner:7102"}
    learner = peers.call("evaluator", Hello("learner", boot(4), 2, UID), Lease)
    assert (learner.index, learner.bind) == (2, {"experience": "tcp://r-learner-2.r-learner:7102"})
    with pytest.raises(RemoteError, match="may not be asked"):
        peers.call("actor", Hello("learner", boot(5), 0, UID), Lease)
    with pytest.raises(RemoteError, match="may not be asked"):
        peers.call("actor", EvalResult(1, ref(1), "greedy", [1e9], [1], 1.0), Reply)
    forged = Report("actor", boot(4), lease.term, gauges={"stopping": 1.0}, counters={"consumed_steps": 1e9})
    assert not peers.call("actor", forged, Orders).known, "it does not speak for the learner"
    assert peers.call("evaluator", Report("learner", boot(4), lease.term), Orders).known
    wait_until(lambda: 'rejected_total{reason="forbidden"' in pod.ask("/metrics")[1], "the count of refusals")


def test_a_run_is_finished_and_stays_so_over_a_restart_until_it_may_go_on(pod: Pod, peers: Peers) -> None:
    term = peers.call("actor", Hello("actor", boot(3), None, UID, experience()), Lease).term
    peers.call("evaluator", Hello("learner", boot(4), 0, UID), Lease)
    said = [line("actor/0", "hello from a pod"), line("actor/0", "Traceback", level="ERROR")]
    peers.call("actor", Report("actor", boot(3), term, log=said), Orders)
    assert "r: " in pod.ask("/")[1]
    assert json.loads(pod.ask("/status.json")[1])["phase"] == "starting"
    assert {pod.ask(path)[0] for path in ("/status", "/logs", "/stop", "/checkpoints")} == {404}
    assert pod.ask("/", "POST")[0] == 405

    peers.call("evaluator", Report("learner", boot(4), term, {"consumed_steps": 5000.0, "updates": 50.0}), Orders)
    file = "main-000001-learner-0123456789ab.safetensors"
    (pod.root / "run" / "checkpoints" / file).write_bytes(b"weights")
    saved = Generation(1, "main", term, ref(50), 5000, 1.7e9, {"learner": file}, {"learner": "ab"})
    assert peers.call("evaluator", Commit(saved, boot(4)), Reply).ok
    stopping = Report("actor", boot(3), term, gauges={"stopping": 1.0})
    wait_until(lambda: peers.call("actor", stopping, Orders).stop, "the end, which the learner has gone before")
    wait_until(lambda: pod.status()["phase"] == "finished", "the manager that stays")
    assert "✓ r: finished" in pod.ask("/")[1]
    assert pod.ask("/readyz")[0] == 200
    with pytest.raises(RemoteError, match="the run is finished"):
        peers.call("actor", Hello("actor", boot(6), None, UID, experience()), Lease)
    late = Report("actor", boot(3), term, log=[line("actor/0", "last words")])
    assert peers.call("actor", late, Orders).stop

    found = json.loads(pod.ask("/logs?process=actor&tail=2", control=True)[1])
    assert set(texts(found["lines"])) <= {"hello from a pod", "Traceback", "last words"}
    assert len(found["lines"]) == 2
    assert any(one["msg"] == "ended in good order" for one in pod.stop())

    pod.start()
    status = pod.status()
    assert (status["phase"], status["stop"]["met"]) == ("finished", "5000 agent steps >= 5000")
    everything = json.loads(pod.ask("/logs", control=True)[1])["lines"]
    assert {"hello from a pod", "last words"} <= set(texts(everything))
    assert any("term 1" in text for text in texts(everything)), "the manager's own lines, of its life before"
    assert pod.order("/reload", {"live": {"stop": {"agent_steps": 4000}}})["resumed"] is False
    assert pod.order("/reload", {"live": {"stop": {"agent_steps": 9000}}})["resumed"] is True
    wait_until(lambda: pod.status()["phase"] == "running", "the run to go on")
    assert not (pod.root / "run" / "run" / "finished.json").exists()
    assert peers.call("actor", Hello("actor", boot(6), None, UID, experience()), Lease).term == 2


def test_a_process_of_a_pod_that_a_newer_one_has_replaced_takes_the_run_from_it_no_more(pod: Pod) -> None:
    pod.kill()
    pod.start("second")
    term = read_term(pod.root / "run" / "run")
    pod.kill()
    pod.launch("first")  # on a node that was cut off
    wait_until(lambda: pod.ask("/healthz")[0] == 200, "the older pod")
    assert pod.ask("/readyz")[0] == 503
    assert [one["msg"] for one in pod.stop() if one["level"] == "ERROR"] == [
        "a manager in a newer pod has taken over: this pod waits until it is deleted"
    ]
    assert read_term(pod.root / "run" / "run") == term
    pod.start("second")
    assert read_term(pod.root / "run" / "run") == term + 1


def test_a_run_that_has_learned_nothing_in_its_time_has_failed_and_goes_on_when_it_is_asked_to(
    tmp_path: Path, ring: Keyring
) -> None:
    pod = Pod(tmp_path / "pod", ring, stop={"wall_time": 6})
    peers = Peers(ring, pod.address)
    try:
        lease = peers.call("actor", Hello("actor", boot(3), None, UID, experience()), Lease)
        wait_until(lambda: pod.status()["phase"] == "failed", "the end in vain")
        status = pod.status()
        assert status["wall_s"] >= 4, "how long it had taken"
        assert status["failure"]["text"].endswith("nothing was ever learned from: no modelpool, no learner had joined")
        assert status["failure"]["text"] in pod.ask("/")[1]
        assert "✗ r: failed" in pod.ask("/")[1]
        assert peers.call("actor", Report("actor", boot(3), lease.term), Orders).stop
        assert pod.process.poll() is None, "it stays, to tell of it"
        assert pod.order("/reload", {"live": {"stop": {"wall_time": 600}}})["resumed"] is True
        wait_until(lambda: pod.status()["phase"] == "starting", "the run to go on")
        status = pod.status()
        assert status["wall_s"] < 6, "it has all its time again"
        assert not (pod.root / "run" / "run" / "finished.json").exists()
        assert peers.call("actor", Hello("actor", boot(6), None, UID, experience()), Lease).term == 2
    finally:
        peers.close()
        pod.kill()


def test_a_manager_without_a_server_key_says_what_is_missing(tmp_path: Path, ring: Keyring) -> None:
    run_file = tmp_path / "run.json"
    spec = {"run": "r", "env": {"id": "-"}}
    run_file.write_text(json.dumps({"format": 1, "run": "r", "uid": UID, "role": "manager", "spec": spec}))
    words = [
        "manager", "--run-file", str(run_file), "--keys", str(ring.of("actor")), "--manager", "tcp://r-manager-0:7100",
        "--name", "m", "--bind", "127.0.0.1", "--probe", f"tcp:127.0.0.1:{free_ports(1)[0]}", "--addresses", "x",
        "--control", "tcp:127.0.0.1:0", "--volume", str(tmp_path / "run"), "--live", str(tmp_path / "live.json"),
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "rlctl_agents", *words], env=environment(), capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 3, done.stdout
    assert "server.key" in json.loads(done.stdout.splitlines()[-1])["msg"]
