"""`rlctl play`: a stored model, looked at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from rlctl.backends.files import writing
from rlctl.cli.context import World
from rlctl.cli.models.fetched import Code, ModelOrFolder, Seed, Verify, code_of, drawn, fetched
from rlctl.cli.models.player import played
from rlctl.cli.options import Target, verb
from rlctl.cli.text import number
from rlctl.errors import UsageError

_SCREENS = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")
_MOST_EPISODES = 1000


class PlayMode(StrEnum):
    """Ways of choosing actions."""

    greedy = "greedy"
    sample = "sample"


@verb("namespace", "context")
def play(
    world: World,
    model: ModelOrFolder,
    episodes: Annotated[int, typer.Option("--episodes", metavar="N", help="Whole episodes, one after the other.")] = 3,
    video: Annotated[
        Path | None, typer.Option("--video", metavar="DIR", help="Animated GIFs instead of a window, one an episode.")
    ] = None,
    mode: Annotated[PlayMode, typer.Option("--mode", help="The most likely action, or a sampled one.")] = (
        PlayMode.greedy
    ),
    seed: Seed = None,
    code: Code = None,
    verify: Verify = None,
    target: Target = None,
) -> int:
    """Watch a stored model play, on this machine.

    In a window, or as animated GIFs with --video. Frames are the simulator's own, whatever the policy is shown. The
    run may be live, over, or on a cluster: its model is copied first. Nothing is overwritten. Exit 3 when the
    environment cannot be made, 7 with its traceback when it fails.
    """
    if not 1 <= episodes <= _MOST_EPISODES:
        raise UsageError(f"--episodes must be from 1 to {_MOST_EPISODES:,}, got {episodes}")
    if video is None and not any(world.environ.get(name) for name in _SCREENS):
        raise UsageError("there is no screen for a window here", hint="--video DIR makes animated GIFs")
    seed = drawn(seed)
    shown: list[dict[str, Any]] = []
    with fetched(world, model, target, verify) as (folder, name, origin):
        modules = code_of(origin, code)
        world.say(f"{name}: {episodes} episodes, {mode.value}, seeds from {seed}")
        with _films(video) as films:
            question = {
                "folder": str(folder), "env": origin["spec"]["env"], "episodes": episodes, "mode": mode.value,
                "seed": seed, "video": films and str(films / f"{origin['run']}-{origin['model']}"),
            }  # fmt: skip
            for answer in played("play", question, modules, answers=episodes):
                shown.append(answer)
                world.data(_said(answer))
    world.document({"model": name, "episodes": shown})
    return 0


@contextmanager
def _films(folder: Path | None) -> Iterator[Path | None]:
    """Create the folder for videos; a new one is removed again if it stays empty."""
    if folder is None:
        yield None
        return
    with writing(folder):
        was_there = folder.is_dir()
        folder.mkdir(parents=True, exist_ok=True)
    try:
        yield folder.resolve()
    finally:
        if not was_there:
            with suppress(OSError):
                folder.rmdir()


def _said(answer: dict[str, Any]) -> str:
    cut = answer["frames"] - answer["kept_frames"]
    file = f"   {answer['file']}" if answer["file"] else ""
    left_out = f" (without its last {cut} frames)" if cut else ""
    return f"episode {answer['episode']}   return {number(answer['return'])}   {answer['length']} steps{file}{left_out}"
