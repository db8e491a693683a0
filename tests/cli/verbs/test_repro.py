"""`rlctl repro`: what is recorded, what it becomes, and what it refuses before."""

from __future__ import annotations

import importlib.util
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rlctl.cli import main
from rlctl.cli.context import World
from rlctl.spec.layout import Layout
from rlctl_agents.types.experience import ModelRef
from tests.cli.conftest import Rlctl
from tests.repro.worlds import HERE, crash, file_of

CREATED = 1_700_000_000.0


@pytest.fixture
def episodes(rlctl: Rlctl) -> Path:
    """Folder of the run pole's episodes: a crash, the worst of an evaluation, and one that is damaged."""
    rlctl.up("--set", f"env.id={HERE}:Lamps")
    layout = rlctl.backend.files = Layout(rlctl.folder / "files")
    layout.episodes.mkdir(parents=True)
    header, chunks = crash({"id": f"{HERE}:Lamps"})
    header = msgspec.structs.replace(header, created=CREATED, model=ModelRef("main", 1, 34))
    worst = msgspec.structs.replace(header, kind="worst", returned=-3.5, error="")
    (layout.episodes / "actor-3-17-crash.episode").write_bytes(file_of(header, chunks))
    (layout.episodes / "evaluator-0-9-worst.episode").write_bytes(file_of(worst, chunks))
    (layout.episodes / "actor-0-4-crash.episode").write_bytes(b'{"format": 9}\n')
    (layout.episodes / "something").write_bytes(b"else")
    return layout.episodes


def asked(rlctl: Rlctl, *arguments: str, read: bool = True) -> tuple[int, str, list[Any]]:
    """Exit code, stderr, and the program that it became with what that would read."""
    became: list[Any] = []

    def become(command: Sequence[str]) -> None:
        file = command[4]
        assert rlctl.backend.reading == 0, "nothing would end what reads the volume"
        if not read:
            became.append(list(command))
            return
        assert os.get_inheritable(int(file.rpartition("/")[2]))
        became.append([*command[:4], Path(file).read_bytes(), *command[5:]])

    chat = io.StringIO()
    world = World(io.StringIO(), chat, environ=rlctl.environ, targets=rlctl.targets, become=become)
    return main.run(["repro", *arguments], world), chat.getvalue(), became


def test_an_episode_that_names_another_environment_than_the_run_is_not_played(rlctl: Rlctl, episodes: Path) -> None:
    header, chunks = crash({"id": f"{HERE}:Lamps"})
    evil = msgspec.structs.replace(header, env={"id": "subprocess:Popen", "kwargs": {"args": ["true"]}})
    (episodes / "actor-3-18-crash.episode").write_bytes(file_of(evil, chunks))
    code, said, became = asked(rlctl, "pole", "actor/3@18")
    assert (code, became) == (1, [])
    assert "episode actor/3@18 of run pole is not played: it names another environment than the run's" in said


def test_what_is_recorded_is_a_table_newest_first(rlctl: Rlctl, episodes: Path) -> None:
    lines = rlctl("repro", "pole", "--utc").out.splitlines()
    assert lines[0].split() == ["EPISODE", "KIND", "STEPS", "RETURN", "MODEL", "RECORDED", "SIZE", "ERROR"]
    assert lines[1].split()[:7] == ["actor/3@17", "crash", "9", "-", "34", "2023-11-14", "22:13:20Z"]
    assert "step raised AssertionError: too bright (tests.repro.worlds:Lamps" in lines[1]
    assert lines[2].split()[:5] == ["evaluator/0@9", "worst", "9", "-3.5", "34"]
    assert lines[3].split()[:2] == ["actor/0@4", "crash"]
    assert "it is in format 9, this release reads format 1" in lines[3]
    told = rlctl("repro", "-o", "json").json["episodes"]
    assert [(one["name"], one["playable"], one["return"]) for one in told] == [
        ("actor/3@17", True, None), ("evaluator/0@9", True, -3.5), ("actor/0@4", False, None),
    ]  # fmt: skip
    assert told[0]["file"] == "results/episodes/actor-3-17-crash.episode"


@pytest.mark.parametrize(
    "arguments", [("pole", "actor/3@17"), ("actor/3@17",), ("actor/3@17", "--run", "pole")], ids=" ".join
)
def test_it_becomes_the_program_that_plays_it_which_reads_the_record(
    rlctl: Rlctl, episodes: Path, arguments: tuple[str, ...]
) -> None:
    code, chat, became = asked(rlctl, *arguments, "--pdb", "-o", "json", "-q", "--code", str(rlctl.folder))
    assert (code, chat) == (0, "")
    record = (episodes / "actor-3-17-crash.episode").read_bytes()
    assert became == [
        [
            sys.executable, "-m", "rlctl_agents", "repro", record, "--name=actor/3@17 of run pole", "--json", "--quiet",
            "--pdb", f"--code={rlctl.folder.resolve()}",
        ]
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("pole", "actor/3@99"), 2, "run pole has no episode actor/3@99"),
        (("pole", "actor/3@99"), 2, "it has actor/3@17 (crash), evaluator/0@9 (worst), actor/0@4 (crash); older ones"),
        (("pole", "actor/0@4"), 1, "episode actor/0@4 of run pole: it is damaged: it is in format 9"),
        (("pole", "actor"), 2, "'actor' names no episode"),
        (("poel",), 2, "did you mean pole?"),
        (("poel", "actor/3@17"), 2, "there is no run poel"),
    ],
    ids=str,
)
def test_what_is_not_there_is_told_with_what_is(
    rlctl: Rlctl, episodes: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    ended, chat, became = asked(rlctl, *arguments)
    assert (ended, became) == (code, [])
    assert said in chat


def test_a_run_without_episodes_says_when_one_is_recorded(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl.backend.files = Layout(rlctl.folder / "none")
    result = rlctl("repro")
    assert (result.code, result.out) == (0, "")
    assert "run pole has recorded no episode yet: one is recorded where an environment fails" in result.err
    assert asked(rlctl, "pole", "actor/0@1")[0] == 2


def test_without_the_environments_package_it_names_the_extra(
    rlctl: Rlctl, episodes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *of: None if name == "gymnasium" else there(name, *of)
    )
    code, chat, _ = asked(rlctl, "pole", "actor/3@17")
    assert code == 2
    assert "gymnasium is not installed here" in chat
    assert 'pip install "rlctl[local]"' in chat


def test_a_file_that_was_carried_elsewhere_needs_no_run_and_takes_the_modules_of_its_folder(
    rlctl: Rlctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, said, became = asked(rlctl, "there.episode", read=False)
    assert (code, became) == (2, [])
    assert "there is no file there.episode" in said
    Path("there.episode").touch()
    code, _, became = asked(rlctl, "there.episode", read=False)
    assert code == 0
    assert became == [
        [sys.executable, "-m", "rlctl_agents", "repro", "there.episode", "--name=there.episode", f"--code={Path.cwd()}"]
    ]
