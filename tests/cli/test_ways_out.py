"""Exit codes and messages of everything that goes wrong; standard output stays one JSON document."""

import io
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from rlctl.backends.local import LocalBackend
from rlctl.cli.context import Signalled, World
from rlctl.cli.main import run
from rlctl.cli.options import run_names
from rlctl.errors import BackendUnreachable, Conflict, PartlyApplied, Refused, TimedOut
from rlctl.spec.layout import state_home
from tests.cli.conftest import Rlctl
from tests.support.memory import MemoryBackend


@pytest.mark.parametrize(
    "arguments",
    [
        ["--foo"],
        ["staus"],
        ["status", "--foo"],
        ["status", "-o", "xml"],
        ["status", "a", "b"],
        ["up", "--progress", "loud", "x"],
        ["up", "x", "--timeout", "soon"],
        ["down", "--grace", "x"],
        ["scale"],
        ["restart"],
    ],
)
def test_a_wrong_command_line_is_2_and_names_the_help(rlctl: Rlctl, arguments: list[str]) -> None:
    result = rlctl(*arguments)
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith("error: ")
    assert "Traceback" not in result.err


@pytest.mark.parametrize("form", [["-o", "json"], ["-ojson"], ["--output", "json"], ["--output=json"]])
def test_a_wrong_command_line_is_still_one_json_document(rlctl: Rlctl, form: list[str]) -> None:
    result = rlctl("status", "--foo", *form)
    assert result.code == 2
    assert result.json["apiVersion"] == "rlctl/v1"
    error = result.json["error"]
    assert set(error) == {"code", "reason", "message", "hint", "objects"}
    assert error["code"] == 2
    assert error["reason"] == "usage"
    assert "--foo" in error["message"]


def test_a_target_that_does_not_answer_is_4(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl.backend.unreachable = True
    for verb in (["status"], ["status", "pole"], ["logs"], ["down", "pole"], ["scale", "actor=3"], ["up", rlctl.spec]):
        result = rlctl(*verb, "-o", "json")
        assert result.code == 4, verb
        assert result.lines[0]["error"]["code"] == 4 if verb == ["logs"] else result.json["error"]["code"] == 4


@pytest.mark.parametrize("error", [Conflict, TimedOut, PartlyApplied, BackendUnreachable, Refused])
def test_what_a_target_raises_ends_with_its_code(rlctl: Rlctl, error: Any) -> None:
    rlctl.up()
    rlctl.backend.refuse = error("quota exceeded: cpu 64 > 48", hint="ask for more", objects=("actor/3",))
    result = rlctl("scale", "actor=6", "-o", "json")
    assert result.code == error.exit_code
    assert result.json["error"] == {
        "code": error.exit_code,
        "reason": error.reason,
        "message": "quota exceeded: cpu 64 > 48",
        "hint": "ask for more",
        "objects": ["actor/3"],
    }
    assert "error: quota exceeded: cpu 64 > 48\n  next: ask for more" in result.err


class Broken(MemoryBackend):
    """A backend with a bug."""

    def runs(self, broken: Any = None) -> Any:
        raise KeyError("nothing of the user's")


class Interrupted(MemoryBackend):
    """A backend that is told to end meanwhile."""

    def runs(self, broken: Any = None) -> Any:
        raise Signalled(143, "left")


def test_a_bug_is_70_with_its_traceback_in_a_file(rlctl: Rlctl) -> None:
    rlctl.targets["local"] = Broken
    result = rlctl("status", "-o", "json")
    assert result.code == 70
    assert "Traceback" not in result.err
    path = Path(result.json["error"]["objects"][0])
    assert str(path) in result.err
    assert path.is_relative_to(rlctl.folder / "state")
    assert 'KeyError: "nothing of the user\'s"' in path.read_text()


@pytest.fixture
def homeless(rlctl: Rlctl, monkeypatch: pytest.MonkeyPatch) -> Rlctl:
    """A user without any absolute folder that is known."""
    monkeypatch.setenv("XDG_STATE_HOME", "state")
    monkeypatch.setenv("HOME", "home")
    monkeypatch.setenv("TMPDIR", str(rlctl.folder))
    return rlctl


def test_a_user_without_a_home_is_told_what_to_set(homeless: Rlctl) -> None:
    homeless.targets["local"] = LocalBackend
    for verb in (["status"], ["status", "pole"], ["up", homeless.spec], ["down"]):
        result = homeless(*verb)
        assert result.code == 2, verb
        assert "next: set HOME or XDG_STATE_HOME" in result.err


def test_a_bug_is_told_to_a_user_without_a_home(homeless: Rlctl) -> None:
    homeless.targets["local"] = Broken
    result = homeless("status", "-o", "json")
    assert result.code == 70
    path = Path(result.json["error"]["objects"][0])
    assert path.is_file()
    assert path.is_absolute(), "not in a folder named as the state folder that is ignored"


def test_a_relative_state_folder_is_ignored(homeless: Rlctl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(homeless.folder))
    index = homeless.folder / ".local" / "state" / "rlctl" / "index"
    assert state_home() == index.parent
    index.mkdir(parents=True)
    (index / "pole.json").touch()
    assert run_names() == ["pole"]


def test_a_bug_is_told_even_when_its_folder_cannot_be_written(rlctl: Rlctl, monkeypatch: pytest.MonkeyPatch) -> None:
    (rlctl.folder / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(rlctl.folder / "file"))
    monkeypatch.setenv("TMPDIR", str(rlctl.folder))
    rlctl.targets["local"] = Broken
    assert rlctl("status").code == 70


def test_a_target_whose_packages_are_missing_says_what_to_install(
    rlctl: Rlctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needs_more.py").write_text("import no_such_package\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    world = World(stdout=io.StringIO(), stderr=io.StringIO(), targets={"local": "needs_more:Backend"})
    assert run(["status"], world) == 4
    assert 'pip install "rlctl[local]"' in world.stderr.getvalue()  # type: ignore[attr-defined]


class Closed(io.StringIO):
    """A pipe after its reader has gone."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_reader_that_has_gone_ends_quietly(rlctl: Rlctl) -> None:
    rlctl.up()
    world = World(stdout=Closed(), stderr=io.StringIO(), targets=rlctl.targets)
    assert run(["status"], world) == 141
    assert world.stderr.getvalue() == ""  # type: ignore[attr-defined]


def test_a_stream_that_cannot_show_a_sign_gets_another(rlctl: Rlctl) -> None:
    rlctl.up()
    raw = io.BytesIO()
    world = World(stdout=io.TextIOWrapper(raw, "ascii"), stderr=io.StringIO(), targets=rlctl.targets)
    assert run(["status"], world) == 0
    assert b"212.3 ? 41.5" in raw.getvalue()


def test_a_full_disk_is_told_in_words(rlctl: Rlctl) -> None:
    rlctl.up()
    with open("/dev/full", "w") as full:
        world = World(stdout=full, stderr=io.StringIO(), targets=rlctl.targets)
        assert run(["status"], world) == 1
        assert "no space left on device" in world.stderr.getvalue()  # type: ignore[attr-defined]
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())


@pytest.mark.parametrize(("verb", "code"), [(["scale", "actor=1"], 5), (["--foo"], 2)])
def test_a_failure_keeps_its_code_when_nobody_can_be_told(rlctl: Rlctl, verb: list[str], code: int) -> None:
    rlctl.up()
    rlctl("down")
    with open("/dev/full", "w") as full:
        out = io.StringIO()
        assert run([*verb, "-o", "json"], World(stdout=out, stderr=full, targets=rlctl.targets)) == code
        assert json.loads(out.getvalue())["error"]["code"] == code
        assert run([*verb, "-o", "json"], World(stdout=full, stderr=full, targets=rlctl.targets)) == code
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())


def test_a_bug_and_a_signal_keep_their_codes_when_nobody_can_be_told(rlctl: Rlctl) -> None:
    rlctl.targets["local"] = Broken
    with open("/dev/full", "w") as full:
        assert run(["status"], World(stdout=full, stderr=full, targets=rlctl.targets)) == 70
        rlctl.targets["local"] = Interrupted
        assert run(["status"], World(stdout=full, stderr=full, targets=rlctl.targets)) == 143
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())


SCRIPT = """
    import signal

    from tests.support.memory import MemoryBackend
    from rlctl.cli.main import main
    from rlctl.cli.context import World

    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # below nohup, too
    signal.signal(signal.SIGINT, signal.default_int_handler)  # and behind & in a script
    backend = MemoryBackend()
    main(World(targets={"local": lambda: backend}))
"""


def start(rlctl: Rlctl, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "XDG_STATE_HOME": str(rlctl.folder / "state")},
        cwd=Path(__file__).parents[2],
    )


@pytest.mark.processes
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 0)])
def test_a_signal_ends_an_attached_up_and_says_that_the_run_goes_on(
    rlctl: Rlctl, number: signal.Signals, code: int
) -> None:
    process = start(rlctl, "up", rlctl.spec, "-o", "json")
    assert process.stderr is not None
    while "pole starting" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert "left pole; it goes on" in err
    assert "Traceback" not in err
    assert ("error" in json.loads(out)) == (code != 0)


@pytest.mark.processes
def test_the_program_ends_quietly_when_its_reader_goes(rlctl: Rlctl) -> None:
    process = start(rlctl, "lint", "--schema")
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == 141
    assert err == ""


@pytest.mark.processes
@pytest.mark.parametrize(
    ("arguments", "full", "code"),
    [(["scale"], "stderr", 2), (["scale"], "both", 2), (["lint", "--schema"], "stdout", 1), (["version"], "stderr", 0)],
)
def test_the_program_keeps_its_exit_code_when_a_stream_is_full(
    rlctl: Rlctl, arguments: list[str], full: str, code: int
) -> None:
    with open("/dev/full", "w") as sink:
        ended = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(SCRIPT), *arguments],
            stdout=sink if full in ("stdout", "both") else subprocess.DEVNULL,
            stderr=sink if full in ("stderr", "both") else subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "XDG_STATE_HOME": str(rlctl.folder / "state")},
            cwd=Path(__file__).parents[2],
            timeout=60,
            check=False,
        )
    assert ended.returncode == code
