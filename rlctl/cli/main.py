"""Entry point: every exit code, every error message, signals, and the report of a bug."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from rlctl.cli.context import Signalled, World
from rlctl.errors import RlctlError, SpecError, UsageError

BUG = 70


def main(world: World | None = None) -> None:
    """The program `rlctl`; ends the process."""
    signal.signal(signal.SIGTERM, _terminated)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
        signal.signal(signal.SIGHUP, _terminated)
    world = world or World()
    code = run(sys.argv[1:], world)
    for stream in (world.stdout, world.stderr):
        try:
            stream.flush()
        except OSError as error:
            code = 141 if isinstance(error, BrokenPipeError) else code or 1
            _silence(stream)
    if code == 141:
        _silence(world.stdout)
    sys.exit(code)


def _silence(stream: TextIO) -> None:
    """Redirect a broken stream to /dev/null: Python flushes again at exit, and a failure makes the exit code 120."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def run(arguments: Sequence[str], world: World) -> int:
    """Run one command line.

    Returns:
        Its exit code; all output is written.
    """
    # a failure before the options are read has to be printed as they ask for
    world.output = "json" if _wants_json(arguments) else "table"
    try:
        from rlctl.cli.app import make_command

        code = make_command().main(list(arguments) or ["--help"], prog_name="rlctl", standalone_mode=False, obj=world)
        return code if isinstance(code, int) else 0
    except RlctlError as error:
        return _report(world, error)
    except Signalled as gone:
        return _signalled(world, gone)
    except KeyboardInterrupt:
        return _signalled(world, Signalled(130))
    except SystemExit as exit_:  # typer's way out of completion, and of a help text whose reader has gone
        if "_RLCTL_COMPLETE" in world.environ or exit_.code in (0, None):
            return int(exit_.code or 0)
        return 141
    except Exception as error:
        if hasattr(error, "format_message"):  # typer's own: the command line is wrong
            return _report(world, _usage(error))
        return _bug(world, error)


def _terminated(number: int, _: FrameType | None) -> None:
    raise Signalled(128 + number)


def _wants_json(arguments: Sequence[str]) -> bool:
    before = list(arguments[: arguments.index("--")] if "--" in arguments else arguments)
    for at, argument in enumerate(before):
        if argument in ("-ojson", "-o=json", "--output=json"):
            return True
        if argument in ("-o", "--output") and before[at + 1 : at + 2] == ["json"]:
            return True
    return False


def _usage(error: Any) -> UsageError:
    context = getattr(error, "ctx", None)
    message = _in_words(error, error.format_message().strip().replace("\n", " "))
    if context is None:
        return UsageError(message, hint="rlctl --help")
    return UsageError(message or "a command is missing", hint=f"{context.command_path} --help")


def _in_words(error: Any, message: str) -> str:
    """Message of the command line's parser in our words, with the value that was given."""
    said = message.replace("Value error, ", "")
    head, wrong, _ = said.partition("Input should be a valid integer")
    if not wrong:
        return said.replace("Input should", "must")
    faults: list[Any] = getattr(error.__cause__ or error.__context__, "errors", list)()
    got = f", got {faults[0]['input']!r}" if faults else ""
    return f"{head}must be a whole number{got}"


def _report(world: World, error: RlctlError) -> int:
    try:
        with suppress(RlctlError):  # a stream that cannot be written changes no exit code, here and below
            _explain(world, error)
        _as_json(world, error.as_plain())
    except Signalled as gone:
        return gone.exit_code
    return error.exit_code


def _explain(world: World, error: RlctlError) -> None:
    if isinstance(error, SpecError):
        for problem in error.problems:
            world.complain(str(problem))
        world.complain(error.message + (f"; {error.hint}" if error.hint else ""))
        return
    world.complain(f"error: {error.message}")
    for line in getattr(error, "details", ()):
        world.complain(f"  {line}")
    if error.hint:
        world.complain(f"  next: {error.hint}")


def _signalled(world: World, gone: Signalled) -> int:
    with suppress(Signalled):
        with suppress(RlctlError):
            if gone.message:
                world.complain(gone.message)
        if gone.exit_code != 141:
            ended = {"code": gone.exit_code, "reason": "interrupted", "message": "ended by a signal"}
            _as_json(world, {**ended, "hint": "", "objects": []})
    return gone.exit_code


def _bug(world: World, error: Exception) -> int:
    path = _write_bug(world, error)
    try:
        with suppress(RlctlError):
            world.complain(f"error: this is a bug in rlctl: {type(error).__name__}: {error}")
            if path is None:  # nowhere can a file be written
                world.complain("".join(traceback.format_exception(error)))
            else:
                world.complain(f"  the traceback is in {path}; please send it with what you did")
        told = {"code": BUG, "reason": "bug", "message": f"{type(error).__name__}: {error}"}
        _as_json(world, {**told, "hint": f"traceback: {path}" if path else "", "objects": [str(path)] if path else []})
    except Signalled as gone:
        return gone.exit_code
    return BUG


def _write_bug(world: World, error: Exception) -> Path | None:
    import platform
    import tempfile

    from rlctl import __version__
    from rlctl.spec.layout import state_home

    text = "".join(
        (
            f"rlctl {__version__}, Python {platform.python_version()}, {platform.platform()}\n",
            f"{world.now().isoformat()} {sys.argv!r}\n\n",
            *traceback.format_exception(error),
        )
    )
    homes = []
    with suppress(OSError):  # no folder of temporary files can be written
        homes = [Path(tempfile.gettempdir()) / f"rlctl-bugs-{os.getuid()}"]
    with suppress(UsageError):  # this user has no home folder
        homes.insert(0, state_home() / "bugs")
    for folder in homes:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if folder.lstat().st_uid != os.getuid():  # made by another user: what lies there may be links
                continue
            path = folder / f"{world.now():%Y%m%dT%H%M%S}-{os.getpid()}.txt"
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            return path
        except OSError:
            continue
    return None


def _as_json(world: World, error: Mapping[str, object]) -> None:
    """Print an error as the only document on stdout; where the answer is already there, it is on stderr alone."""
    with suppress(RlctlError):
        if world.streams:
            world.json_line({"error": error})
        elif not world.wrote_json:
            world.document({"error": error})
