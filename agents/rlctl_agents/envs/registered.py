"""Ids registered with Gymnasium, and suggestions for an unknown id."""

from __future__ import annotations

import difflib
from contextlib import suppress

import gymnasium

from rlctl_agents.envs.base import EnvRefused
from rlctl_agents.envs.names import family


def unknown(id: str) -> str:
    """Message for an id that Gymnasium does not have, with a suggestion, in one sentence.

    Example:
        `unknown("CartPole-v9")` is "Gymnasium has no CartPole-v9; it has CartPole-v0 and CartPole-v1".
    """
    with suppress(EnvRefused):  # without its simulator there is nothing to suggest
        family("ale")  # importing it registers the ids
    module, colon, name = id.rpartition(":")
    path = _split(name)[0]
    known = {registered: _split(registered) for registered in gymnasium.registry}
    head = f"Gymnasium has no {name}"
    game = f"ALE/{path.removesuffix('NoFrameskip')}-v5"
    if game in known and name != game and not name.startswith("ALE/"):
        return f"{head} here; did you mean {game} (`preset: atari` brings the usual frames)?"
    versions = sorted((other, registered) for registered, (its, other) in known.items() if its == path)
    if versions:
        return f"{head}; it has {' and '.join(registered for _, registered in versions)}"
    if near := _near(path, known):
        return f"{head}; did you mean {' or '.join(near)}?"
    if colon:
        return f"{head}, and importing {module} has not registered it"
    return (
        f"{head}; one of another package needs that package installed here, and some need its module named: "
        f"PACKAGE:{name}"
    )


def _split(id: str) -> tuple[str, int]:
    """Name with its namespace, and version; -1 without one."""
    path, dash, version = id.rpartition("-v")
    return (path, int(version)) if dash and version.isdecimal() else (id, -1)


def _near(path: str, known: dict[str, tuple[str, int]]) -> list[str]:
    """Newest versions of up to three names that are spelled similarly; case and namespace are ignored."""
    by_spelling: dict[str, tuple[bool, int, str]] = {}
    for registered, (its, version) in known.items():
        space, _, spelling = its.lower().rpartition("/")
        best = (space in ("", "ale"), version, registered)
        by_spelling[spelling] = max(by_spelling.get(spelling, best), best)
    wanted = path.lower().rpartition("/")[2]
    close = [wanted] if wanted in by_spelling else difflib.get_close_matches(wanted, by_spelling, n=3, cutoff=0.75)
    return [by_spelling[spelling][2] for spelling in close]
