"""The shell of every role process: command line, run file, signals, exit codes, what is imported."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from rlctl_agents import envs
from rlctl_agents.envs.base import EnvError
from rlctl_agents.runtime.process import Process, Signals, UserFault, parse, run_role

REPOSITORY = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("quiet_again")


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
        env = envs.make("tests.runtime.test_process:Faulty", envs=1, seeds=[41])
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
    where = "tests.runtime.test_process:Faulty, seed 41, step 1"
    assert line["msg"] == f"EnvError: step raised KeyError: 'no such key' ({where})"
    assert "in step\n    raise KeyError" in line["exc"]
    assert line["exc"].splitlines()[-1] == "KeyError: 'no such key'"
    assert "rlctl_agents" not in line["exc"]
    assert "EnvError" not in line["exc"]


def test_sigterm_sets_stop_although_the_main_thread_waits_for_it(tmp_path: Path, short: Path) -> None:
    def main(process: Process) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        assert process.stop.wait(60)
        assert process.metrics.values().gauges["stopping"] == 1

    assert run_role(command(write_run_file(tmp_path), short / "p"), main) == 0


def test_a_pod_that_was_sent_away_waits_to_be_ended(tmp_path: Path, short: Path) -> None:
    """Were it to end by itself, it would be started again, only to hear that the run is finished."""
    on_a_cluster = [word.replace("ipc:///m", "tcp://r-manager-0:7100") for word in command(
        write_run_file(tmp_path), short / "p"
    )]  # fmt: skip
    late = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGTERM))

    def sent_away(process: Process) -> None:
        process.dismissed = True
        late.start()

    assert run_role(on_a_cluster, sent_away, linger_s=60) == 0
    assert late.finished.is_set()
    assert run_role(on_a_cluster, lambda process: None, linger_s=60) == 0, "it was done, and nobody sent it away"


def test_nobody_waits_on_one_machine_or_for_ever(tmp_path: Path, short: Path) -> None:
    def sent_away(process: Process) -> None:
        process.dismissed = True

    words = command(write_run_file(tmp_path), short / "p")
    assert run_role(words, sent_away, linger_s=60) == 0
    on_a_cluster = [word.replace("ipc:///m", "tcp://r-manager-0:7100") for word in words]
    assert run_role(on_a_cluster, sent_away, linger_s=0.01) == 0


def test_who_does_not_stop_in_time_is_ended() -> None:
    stop, ended = threading.Event(), threading.Event()
    codes: list[int] = []

    def end(code: int) -> None:
        codes.append(code)
        ended.set()

    with Signals(stop, grace_s=0.01, end=end):
        os.kill(os.getpid(), signal.SIGINT)
        assert ended.wait(60)
    assert codes == [1]
    assert stop.is_set()


def test_signals_are_as_before_when_the_role_has_ended() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with Signals(threading.Event()):
        pass
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


@pytest.mark.processes
def test_a_process_that_an_environment_forks_has_signals_of_its_own() -> None:
    stop = threading.Event()
    with Signals(stop):
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        child.start()
        child.terminate()
        child.join(30)
        assert child.exitcode == -signal.SIGTERM
        assert not stop.wait(0.2)


@pytest.mark.processes
def test_manager_modelpool_and_replay_import_neither_torch_nor_a_simulator() -> None:
    modules = (
        "roles.manager",
        "roles.modelpool",
        "roles.replay",
        "manager.loop",
        "manager.trackers.tensorboard",
        "runtime.manager_session",
    )
    code = (
        "import sys\n"
        + "".join(f"import rlctl_agents.{module}\n" for module in modules)
        + "print(sorted({name.split('.')[0] for name in sys.modules}"
        " & {'torch', 'gymnasium', 'ale_py', 'tensorflow', 'jax', 'pandas'}))"
    )
    env = os.environ | {"PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'agents'}"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
