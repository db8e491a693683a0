"""`rlctl debug` beside `rlctl up`, and with a debugger in a terminal."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.end_to_end.conftest import Cli

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

UPDATES = 6
TOLD = '''
from rlctl_agents.algorithms.impala import Impala


class Told(Impala):
    """IMPALA that writes its losses down, to the last bit."""

    def loss(self, batch):
        loss = super().loss(batch)
        with open("losses.txt", "a") as file:
            print(float(loss.total.detach()).hex(), file=file)
        return loss
'''
LIGHTS = """
import gymnasium
import numpy as np


class Lights(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.light, self.now = int(self.np_random.integers(2)), 0
        return np.eye(3, dtype=np.float32)[self.light], {}

    def step(self, action):
        obs = np.eye(3, dtype=np.float32)[2]
        self.now += 1
        %s
        return obs, float(action == self.light), self.now == 4, False, {}
"""


def losses(cli: Cli) -> list[str]:
    """Those written so far; the file is gone then."""
    file = cli.folder / "losses.txt"
    found = file.read_text().split()
    file.unlink()
    return found


@pytest.mark.parametrize(("env", "core"), [("CartPole-v1", "none"), ("lights:Lights", "lstm")])
def test_the_first_losses_are_those_of_a_run_in_lock_step_bit_for_bit(cli: Cli, env: str, core: str) -> None:
    (cli.folder / "told.py").write_text(TOLD)
    (cli.folder / "lights.py").write_text(LIGHTS % "pass")
    spec = cli.spec(
        "told",
        sync=True,
        seed=11,
        code={"path": "."},
        env={"id": env},
        model={"core": core, "hidden": [16], "width": 8},
        algorithm={"name": "told:Told", "unroll_length": 10, "batch_size": 80, "params": {"lr": 0.01}},
        roles={"actor": {"replicas": 2, "envs": 4}},
        stop={"agent_steps": 80 * (UPDATES + 1)},
        evaluation={"episodes": 10, "envs": 5},
    )
    cli("up", spec, timeout_s=240)
    run = losses(cli)
    cli("debug", spec, "--updates", str(UPDATES), "--episodes", "0")
    debugged = losses(cli)
    assert len(debugged) == UPDATES
    assert debugged == run[:UPDATES]
    assert len(set(debugged)) == UPDATES


class Terminal:
    """A program in a pseudo-terminal that is its own."""

    def __init__(self, cli: Cli, *arguments: str) -> None:
        self._master, slave = os.openpty()
        command = [sys.executable, "-m", "rlctl", *arguments]
        take = (
            "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", take, *command],
            cwd=cli.folder, env=cli.env, stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
        )  # fmt: skip
        os.close(slave)
        self.said = ""

    def until(self, text: str, timeout_s: float = 120.0) -> str:
        """Read until this has been said; what was said since the last time, this included."""
        deadline = time.monotonic() + timeout_s
        while text not in self.said:
            more = self._read(deadline)
            assert more, f"waited {timeout_s} s for {text!r}: {self.said}"
            self.said += more
        heard, _, self.said = self.said.partition(text)
        return heard + text

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def end(self) -> int:
        """Exit code, once it has ended."""
        deadline = time.monotonic() + 120.0
        while more := self._read(deadline):
            self.said += more
        return self.process.wait(10)

    def close(self) -> None:
        """Leave nothing behind, whatever has failed."""
        self.process.kill()
        self.process.wait()
        os.close(self._master)

    def _read(self, deadline: float) -> str:
        """Output since the last call; "" at the end, or when it is too late."""
        if not select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return ""
        try:
            return os.read(self._master, 4096).decode().replace("\r\n", "\n")
        except OSError:  # the other end is closed
            return ""


Opened = Callable[..., Terminal]


@pytest.fixture
def debugged(cli: Cli) -> Iterator[Opened]:
    """`rlctl debug` with these arguments, in a terminal."""
    with ExitStack() as stack:

        def opened(*arguments: str) -> Terminal:
            return stack.enter_context(closing(Terminal(cli, "debug", *arguments)))

        yield opened


@pytest.fixture
def spec(cli: Cli) -> str:
    return cli.spec("lights", code={"path": "."}, env={"id": "lights:Lights"}, roles={"actor": {"envs": 8}})


def test_a_breakpoint_in_the_environment_stops_at_its_line_shows_variables_and_goes_on(
    cli: Cli, spec: str, debugged: Opened
) -> None:
    (cli.folder / "lights.py").write_text(LIGHTS % 'breakpoint() if self.light and not hasattr(Lights, "met") else 0')
    terminal = debugged(spec, "--updates", "2")
    at = terminal.until("(Pdb) ")
    assert f"> {cli.folder}/lights.py(" in at
    assert "no run is started, nothing is stored" in at
    terminal.type("p obs\n")
    assert "array([0., 0., 1.], dtype=float32)" in terminal.until("(Pdb) ")
    terminal.type("from rlctl_agents.debugging.session import DebugSession as d\n")
    terminal.until("(Pdb) ")
    terminal.type("p d.current.updates, d.current.actors[0].env.envs, d.current.trainer.version\n")
    assert "(0, 16, 0)" in terminal.until("(Pdb) ")
    terminal.type("Lights.met = True\n")
    terminal.until("(Pdb) ")
    terminal.type("c\n")
    assert terminal.end() == 0
    assert "update 1  steps " in terminal.said
    assert "evaluation  mean return " in terminal.said
    assert "2 updates from " in terminal.said
    assert terminal.said.rstrip().endswith("nothing was stored")
    assert list(Path(cli.env["XDG_STATE_HOME"]).rglob("*")) == []


def test_a_breakpoint_in_the_loss_has_the_batch_and_the_network(cli: Cli, debugged: Opened) -> None:
    (cli.folder / "told.py").write_text(
        TOLD.replace("        loss = super", "        breakpoint()\n        loss = super")
    )
    algorithm = {"name": "told:Told", "unroll_length": 10, "batch_size": 40}
    spec = cli.spec("told", code={"path": "."}, env={"id": "CartPole-v1"}, algorithm=algorithm)
    terminal = debugged(spec, "--updates", "1", "--episodes", "0")
    assert "note: roles.actor: 1 x 4 environments instead of 1 x 16" in terminal.until("(Pdb) ")
    terminal.type("p batch.fields['obs'].shape, self.net.training\n")
    assert "(torch.Size([11, 4, 4]), False)" in terminal.until("(Pdb) ")
    terminal.type("c\n")
    assert terminal.end() == 0
    assert "update 1  steps " in terminal.said


def test_ctrl_c_ends_it_with_the_sum_of_what_was_done(cli: Cli, spec: str, debugged: Opened) -> None:
    (cli.folder / "lights.py").write_text(LIGHTS % "pass")
    terminal = debugged(spec, "--updates", "100000")
    terminal.until("update 3  ")
    terminal.type("\x03")
    assert terminal.end() == 130
    assert "interrupted\n" in terminal.said
    assert "nothing was stored" in terminal.said
    assert "Traceback" not in terminal.said


def test_quit_of_the_debugger_ends_it_without_a_traceback(cli: Cli, spec: str, debugged: Opened) -> None:
    (cli.folder / "lights.py").write_text(LIGHTS % "breakpoint()")
    terminal = debugged(spec)
    terminal.until("(Pdb) ")
    terminal.type("q\n")
    assert terminal.end() == 130
    assert "ended from the debugger" in terminal.said
    assert "Traceback" not in terminal.said


def test_a_failure_is_told_with_its_traceback_and_with_pdb_one_stays_at_its_line(
    cli: Cli, spec: str, debugged: Opened
) -> None:
    (cli.folder / "lights.py").write_text(LIGHTS % "assert self.now < 3, 'no light left'")
    done = cli("debug", spec, exit_code=7)
    line = (LIGHTS.split("%s")[0]).count("\n") + 1
    assert f'File "{cli.folder}/lights.py", line {line}, in step' in done.stderr
    assert "AssertionError: no light left" in done.stderr
    assert "(lights:Lights, seed " in done.stderr
    terminal = debugged(spec, "--pdb")
    assert "no light left" in terminal.until("(Pdb) ")
    terminal.type("p self.now, self.light in (0, 1)\n")
    assert "(3, True)" in terminal.until("(Pdb) ")
    terminal.type("q\n")
    assert terminal.end() == 7
