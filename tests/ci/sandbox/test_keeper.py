"""Descendants of a program of a build end with it, and with the service, whatever kills that."""

from __future__ import annotations

import os
import select
import signal
import stat
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlctl.errors import BackendUnreachable
from rlctl_ci.core.errors import BuildStopped, Transient
from rlctl_ci.sandbox import programs
from rlctl_ci.sandbox.programs import Bounds, Programs
from tests.ci.git.test_repository import gone
from tests.ci.lights import Ci, Forge
from tests.ci.oci import Registry, registry
from tests.end_to_end.conftest import Cli, cli, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]
__all__ = ["cli", "registry"]

FAMILY = """
import os, signal, subprocess, sys, time

folder, ends = sys.argv[1], sys.argv[2:]
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for kind in ("child", "session", "daemon", "daemon of a daemon"):
    if os.fork() == 0:
        if kind != "child":
            os.setsid()
        for _ in range(kind.count("daemon")):
            if os.fork():
                os._exit(0)
            os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with open(os.path.join(folder, kind + ".part"), "w") as file:
            file.write(str(os.getpid()))
        os.rename(file.name, os.path.join(folder, kind))
        time.sleep(600)
        os._exit(0)
while len([name for name in os.listdir(folder) if not name.endswith(".part")]) < 4:
    time.sleep(0.01)
with open(os.path.join(folder, "itself.part"), "w") as file:
    file.write(str(os.getpid()))
os.rename(file.name, os.path.join(folder, "itself"))
print("all are there", flush=True)
if "ends" not in ends:
    time.sleep(600)
"""
"""A program that has started all kinds of processes, none of which ends when it is asked to."""


@pytest.fixture
def family(tmp_path: Path) -> Iterator[Path]:
    """Folder to which each of them writes its number."""
    folder = tmp_path / "family"
    folder.mkdir()
    yield folder
    for pid in numbers(folder):  # only where a test has failed
        if not gone(pid):
            os.kill(int(pid), signal.SIGKILL)


def numbers(folder: Path) -> list[str]:
    return [path.read_text() for path in folder.iterdir() if not path.name.endswith(".part")]


def argv(family: Path, *more: str) -> list[str]:
    return [sys.executable, "-c", FAMILY, str(family), *more]


def test_what_a_program_leaves_behind_ends_with_it(family: Path) -> None:
    said: list[str] = []
    ended = Programs(dict(os.environ), Bounds(60.0))(argv(family, "ends"), said.append)
    assert (ended.code, said) == (0, ["all are there"])
    assert len(numbers(family)) == 5
    assert all(map(gone, numbers(family)))


def test_a_deployment_may_leave_the_daemon_of_a_run(family: Path) -> None:
    Programs(dict(os.environ), Bounds(60.0), whole=False)(argv(family, "ends"))
    # a daemon may stay, so the keeper does not wait for all that it has killed
    wait_until(lambda: gone((family / "child").read_text()), timeout_s=60, what="the child to end")
    assert not gone((family / "daemon").read_text())


def test_a_program_that_does_not_end_when_asked_is_killed_with_all_of_its_own(
    family: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlctl_ci.sandbox.programs.GRACE_S", 0)

    def stop() -> None:
        if len(numbers(family)) == 5:
            raise BuildStopped("no", "no")

    with pytest.raises(BuildStopped):
        Programs(dict(os.environ), Bounds(60.0), stop)(argv(family))
    assert all(map(gone, numbers(family)))


def test_a_program_lives_on_when_another_thread_ends(family: Path) -> None:
    short = threading.Thread(target=Programs(dict(os.environ), Bounds(60.0)), args=([sys.executable, "-c", ""],))
    short.start()
    said: list[str] = []

    def stop() -> None:
        if said and not short.is_alive():
            raise BuildStopped("no", "no")

    with pytest.raises(BuildStopped):
        Programs(dict(os.environ), Bounds(60.0), stop)(argv(family), said.append)


def test_how_a_program_has_ended_is_told(tmp_path: Path) -> None:
    run = Programs({"PATH": os.environ["PATH"]}, Bounds(60.0))
    assert run([sys.executable, "-c", "raise SystemExit(7)"]).code == 7
    assert run([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]).code == 128 + 9
    for whom in ("getpid", "getppid"):  # the program, and its keeper: a service manager signals all of a service
        with pytest.raises(Transient, match="ended from outside, by signal 15"):
            run([sys.executable, "-c", f"import os, time; os.kill(os.{whom}(), 15); time.sleep(60)"])
    theirs = Programs({"PATH": os.environ["PATH"]}, Bounds(60.0), runs_code=True)
    assert theirs([sys.executable, "-c", "raise SystemExit(143)"]).code == 143, "a commit cannot have itself built anew"
    with pytest.raises(BackendUnreachable, match="none-such cannot be started"):
        run(["none-such"])


def test_limits_hold_from_the_first_instruction_on(tmp_path: Path) -> None:
    code = "import resource as r; print(*r.getrlimit(r.RLIMIT_AS), *r.getrlimit(r.RLIMIT_FSIZE))"
    ended = Programs({}, Bounds(60.0, memory_mib=300, file_mib=2))([sys.executable, "-c", code])
    assert ended.lines == (" ".join(map(str, [300 << 20] * 2 + [2 << 20] * 2)),)


def test_kill_9_of_the_service_ends_a_build_with_all_that_it_has_started(
    cli: Cli, registry: Registry, family: Path
) -> None:
    forge = Forge(cli.folder)
    forge.commit("one")
    images = {name: str(registry.image(f"team/{name}", "1")) for name in ("core", "actor", "learner")}
    spec = forge.copy / "spec.yaml"
    spec.write_text(yaml.safe_dump({**yaml.safe_load(spec.read_text()), "images": images}))
    commit = _pushed(forge)
    programs = cli.folder / "programs"
    programs.mkdir()
    (programs / "family.py").write_text(FAMILY)
    builder = programs / "buildah"
    builder.write_text(f'#!/bin/sh\n[ "$1" = build ] || exit 1\nexec {sys.executable} {programs}/family.py {family}\n')
    builder.chmod(builder.stat().st_mode | stat.S_IXUSR)
    cli.env["PATH"] = f"{programs}:{cli.env.get('PATH', os.defpath)}"
    ci = Ci(
        cli, cli.folder, cli.env, forge,
        target="kubernetes", builder="buildah", registry=f"{registry.name}/team", plain_http=True,
    )  # fmt: skip
    ci.start()
    try:
        ci.hook(commit)
        wait_until(lambda: (family / "itself").exists(), timeout_s=120, what=f"a build: {_log(cli)}")
        assert not any(map(gone, numbers(family)))
    finally:
        ci.stop(kill=True)
    wait_until(lambda: all(map(gone, numbers(family))), timeout_s=30, what="the end of all that it has started")


def _pushed(forge: Forge) -> str:
    forge._git(forge.copy, "commit", "--quiet", "-am", "images")
    forge._git(forge.copy, "push", "--quiet", "origin", "main")
    return forge._git(forge.copy, "rev-parse", "HEAD").strip()


def _log(cli: Cli) -> str:
    return "\n".join(path.read_text() for path in cli.folder.rglob("logs/*.log"))


def test_last_words_that_come_just_after_a_look_are_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    looked, look = threading.Event(), select.select

    def late(readable: list[Any], *others: Any) -> tuple[list[Any], list[Any], list[Any]]:
        if not looked.is_set():
            looked.set()
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)  # the program speaks and ends after this look
            return [], [], []
        return look(readable, *others)

    monkeypatch.setattr(programs.select, "select", late)
    said: list[str] = []
    ended = Programs(dict(os.environ), Bounds(60.0))([sys.executable, "-c", "print('an answer')"], said.append)
    assert ended.code == 0
    assert said == list(ended.lines) == ["an answer"]
