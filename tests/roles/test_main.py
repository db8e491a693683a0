"""`python -m rlctl_agents`: how a role process begins and ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.chain import private_folder

REPOSITORY = Path(__file__).parents[2]
# subprocess and not our own doors: this is about processes
RUN = {"rlctl": "0.2.0", "format": 1, "run": "test", "uid": "0" * 32}


@pytest.fixture
def folder() -> Iterator[Path]:
    with private_folder() as folder:
        yield folder


def environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join([str(REPOSITORY / "agents"), str(REPOSITORY)])
    kept = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    return {**kept, "PYTHONPATH": path, **more}


def command(folder: Path, role: str, spec: dict[str, Any]) -> list[str]:
    run_file = folder / f"{role}.json"
    run_file.write_text(json.dumps({**RUN, "role": role, "spec": {"run": "test", "env": {"id": "-"}, **spec}}))
    return [
        sys.executable, "-m", "rlctl_agents", role, "--name", f"{role}-0", "--run-file", str(run_file),
        "--manager", f"ipc://{folder}/manager", "--probe", f"unix:{folder}/{role}.probe", "--volume", str(folder),
        "--addresses", f"ipc://{folder}/{{role}}-{{index}}.{{channel}}", "--control", f"unix:{folder}/control",
    ]  # fmt: skip


def ended(folder: Path, role: str, spec: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Exit code and last log record of a role that ends by itself."""
    done = subprocess.run(
        command(folder, role, spec), env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout.splitlines()[-1])


def test_a_command_line_that_is_none_ends_with_3_and_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rlctl_agents", "actor"], env=environment(), capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 3
    (line,) = done.stdout.splitlines()
    assert "command line" in json.loads(line)["msg"]
    assert done.stderr == ""


@pytest.mark.processes
def test_an_unknown_environment_ends_with_3_and_a_sentence_without_traceback(folder: Path) -> None:
    code, record = ended(folder, "actor", {"env": {"id": "NoSuchEnv-v0"}})
    assert code == 3
    assert "NoSuchEnv" in record["msg"]
    assert "exc" not in record


@pytest.mark.processes
def test_a_role_without_its_volume_ends_with_3(folder: Path) -> None:
    arguments = command(folder, "learner", {})
    at = arguments.index("--volume")
    done = subprocess.run(
        arguments[:at] + arguments[at + 2 :], env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 3
    assert "--volume" in json.loads(done.stdout.splitlines()[-1])["msg"]


@pytest.mark.processes
def test_code_that_calls_exit_ends_the_role_with_1_and_the_cause_in_the_last_record(folder: Path) -> None:
    (folder / "leaving.py").write_text("def make(envs):\n    raise SystemExit(0)\n")
    env = environment()
    env["PYTHONPATH"] += os.pathsep + str(folder)
    done = subprocess.run(
        command(folder, "actor", {"env": {"id": "leaving:make"}}),
        env=env, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    record = json.loads(done.stdout.splitlines()[-1])
    assert "ended from within by SystemExit(0)" in record["msg"]
    assert "leaving.py" in record["exc"]


@pytest.mark.processes
@pytest.mark.parametrize("role", ["manager", "modelpool", "tensorboard_server"])
def test_what_runs_from_the_core_image_never_imports_torch_or_a_simulator(role: str, folder: Path) -> None:
    probe = (
        "import sys, rlctl_agents.__main__ as m\n"
        f"import rlctl_agents.roles.{role}\n"
        "print([name for name in ('torch', 'gymnasium', 'safetensors') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], env=environment(), capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.processes
def test_a_role_that_waits_for_its_manager_stops_at_sigterm_with_0(folder: Path) -> None:
    process = subprocess.Popen(command(folder, "modelpool", {}), env=environment(), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert "started" in process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert json.loads(rest.splitlines()[-1])["msg"] == "ended in good order"


@pytest.mark.processes
def test_no_role_outlives_a_parent_that_is_killed(folder: Path) -> None:
    parent = (
        "import subprocess, sys, time  # as in supervisord\n"
        "child = subprocess.Popen(sys.argv[1:])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", parent, *command(folder, "modelpool", {})],
        env=environment(SUPERVISOR_PROCESS_NAME="modelpool-0"), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    child = int(process.stdout.readline())
    assert "started" in process.stdout.readline()
    process.kill()
    process.wait(60)
    deadline = time.monotonic() + 60
    while _runs(child):
        assert time.monotonic() < deadline, "the role lives on"
        time.sleep(0.05)
    process.stdout.close()


@pytest.mark.processes
def test_a_role_whose_supervisor_died_before_it_could_ask_to_die_too_ends_at_once(folder: Path) -> None:
    done = subprocess.run(  # its parent is not process 1, as below a user's systemd
        command(folder, "modelpool", {}), env=environment(SUPERVISOR_PROCESS_NAME="modelpool-0"),
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stdout == ""


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.processes
def test_one_compute_thread_unless_told_otherwise() -> None:
    probe = (
        "import os, rlctl_agents.__main__ as m\n"
        "m.limit_threads()\n"
        "print(*(os.environ[name] for name in ('OMP_NUM_THREADS', 'MKL_NUM_THREADS', 'TORCHINDUCTOR_COMPILE_THREADS')))"
    )
    for given, wanted in (({}, "1 1 1"), ({"OMP_NUM_THREADS": "3"}, "3 3 3")):
        done = subprocess.run(
            [sys.executable, "-c", probe], env=environment(**given), capture_output=True, text=True, timeout=60,
            check=True,
        )  # fmt: skip
        assert done.stdout.strip() == wanted
