"""`rlctl logs`: records of all processes of a run, merged by time."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from rlctl.cli.context import World
from rlctl.cli.options import (
    ROLE_NAMES,
    RunOption,
    Target,
    Utc,
    complete_role,
    verb,
)
from rlctl.cli.run.target import find_at_least, require_role
from rlctl.cli.text import moment, plain, rfc3339, stamp
from rlctl.errors import UsageError

if TYPE_CHECKING:
    from datetime import datetime

    from rlctl.backends.base import LogRecord


class Level(StrEnum):
    """Choices of `--level`."""

    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"
    CRITICAL = "CRITICAL"


@verb("namespace", "context")
def logs(
    world: World,
    process: Annotated[
        str | None,
        typer.Argument(
            metavar="ROLE[/INDEX]", help="As in actor or actor/7; default: all.", autocompletion=complete_role
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is said from now on.")] = False,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Not older: 5s, 2m, 3h, 1d or RFC 3339.")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="Not newer: 5s, 2m, 3h, 1d or RFC 3339.")
    ] = None,
    tail: Annotated[str, typer.Option("--tail", metavar="N", help="Only the last N that match, or all.")] = "all",
    grep: Annotated[
        str | None,
        typer.Option(
            "--grep", metavar="REGEX", help="Only records whose stored text, JSON, matches; traceback and all."
        ),
    ] = None,
    level: Annotated[
        Level | None, typer.Option("--level", case_sensitive=False, help="Only records of at least this level.")
    ] = None,
    previous: Annotated[bool, typer.Option("--previous", help="The life of each process before this one.")] = False,
    run: RunOption = None,
    target: Target = None,
    utc: Utc = False,
) -> int:
    """Print log records of all processes by time.

    Exit 1 when none matches. -o json prints one JSON document a line.
    """
    if follow and previous:
        raise UsageError("--previous is of a life that is over: there is nothing to follow", hint="leave out -f")
    world.streams = True
    from rlctl.backends.base import LogQuery

    role, index = (None, None) if process is None else process_named(process)
    now = world.now()
    query = LogQuery(
        role=role, index=index, since=_moment("--since", since, now), until=_moment("--until", until, now),
        tail=_tail(tail), grep=_regex(grep), level=level.value if level else None, previous=previous, follow=follow,
    )  # fmt: skip
    if query.since and query.until and query.since > query.until:
        raise UsageError("--since is later than --until: nothing can match")
    backend, name, state = find_at_least(world, run, target)
    if state is not None and role is not None:
        require_role(state, role)
    found = 0
    for record in backend.logs(name, query):
        found += 1
        if world.as_json:
            world.json_line(
                {
                    "time": rfc3339(record.time), "level": record.level, "process": record.process,
                    "message": record.message, "extra": dict(record.extra),
                }
            )  # fmt: skip
        else:
            world.data(text_of(record, utc=utc))
    if not found:
        world.say(f"no record of {process or 'any process'} of {name} matches")
    return int(not found)


_NOT_SHOWN = ("exc", "boot")  # shown below, and of interest to machines only


def text_of(record: LogRecord, *, utc: bool) -> str:
    """One record as a person reads it; nothing in it can act on the terminal."""
    values = " ".join(f"{name}={value}" for name, value in record.extra.items() if name not in _NOT_SHOWN)
    lines = plain(record.message).split("\n")
    first = f"{stamp(record.time, utc=utc)} {record.process:<11} {record.level:<7} {lines[0]}"
    trace = plain(str(record.extra["exc"])).rstrip("\n").split("\n") if record.extra.get("exc") else []
    return "\n".join([plain(f"{first} {values}").rstrip(), *(f"    {line}" for line in [*lines[1:], *trace])])


def process_named(text: str) -> tuple[str, int | None]:
    """Role and index of `actor/7`; the index of `actor` is None.

    Raises:
        UsageError: the text is neither.
    """
    role, slash, index = text.partition("/")
    pod = re.fullmatch(rf".+?-({'|'.join(ROLE_NAMES)})-(\d+)(?:-[a-z0-9]+-[a-z0-9]+)?", text)
    if pod is not None:  # a pod, as status names it; that of a Deployment has no index in its name
        there = f"{pod[1]}/{pod[2]}" if text.endswith(f"{pod[1]}-{pod[2]}") else pod[1]
        raise UsageError(f"{text!r} is a pod, not ROLE or ROLE/INDEX", hint=f"rlctl logs {there}")
    if role not in ROLE_NAMES or (slash and not (index.isascii() and index.isdigit())):
        raise UsageError(
            f"{text!r} is not ROLE or ROLE/INDEX", hint=f"roles: {', '.join(ROLE_NAMES)}; --run RUN names a run"
        )
    return role, int(index) if slash else None


def _moment(option: str, text: str | None, now: datetime) -> datetime | None:
    try:
        return None if text is None else moment(text, now=now)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from error


def _tail(text: str) -> int | None:
    if text == "all":
        return None
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"--tail: {text!r} is neither a number nor all")
    return int(text) if len(text) < 10 else None  # as many as there are


def _regex(text: str | None) -> str | None:
    try:
        re.compile((text or "").encode())  # log files are searched as bytes
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        raise UsageError(f"--grep: {text!r} is not a regular expression: {error}") from error
    return text
