"""`rlctl pull`: a stored model, copied into a folder that describes itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlctl.cli.context import World
from rlctl.cli.models.fetched import Sign
from rlctl.cli.models.pull import pull_chosen
from rlctl.cli.options import Target, complete_run, verb
from rlctl.cli.run.target import find
from rlctl.cli.verbs.models import as_plain
from rlctl.spec.runs.model_names import split

ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN[@MODEL]",
        help="@goal, @best, @last (the newest generation) or @NUMBER; without, the first of these that there is.",
        autocompletion=complete_run,
    ),
]


@verb("namespace", "context")
def pull(
    world: World,
    model: ModelArgument,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder, or an empty one.")],
    sign: Sign = None,
    target: Target = None,
) -> int:
    """Copy a model of a run into a folder of this machine.

    The folder describes itself: weights (policy.safetensors), what it takes to make the policy anew (policy.json), and
    where it comes from with the resolved spec (run.json). `rlctl_agents.load(DIR)` makes a policy of it in Python, and
    `rlctl eval ./DIR` plays with it. Every file is checked against its sha256; nothing is overwritten. With --sign the
    folder has a signature (model.sig), which `eval`, `play`, `export` and `load` look at where --verify is said.
    """
    name, which = split(model)
    backend, state = find(world, name, target)
    with backend.stored_files(state.run) as files:
        found, made = pull_chosen(files, state, which, folder, world.complain, sign)
    world.say(f"{state.run}@{found.name}: version {found.version}, learned from {found.steps:,} agent steps")
    world.lines(str(path) for path in made)
    world.document({"run": state.run, "model": as_plain(found), "files": [str(path) for path in made]})
    return 0
