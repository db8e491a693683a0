"""Every command that the documentation shows is run, each page in a folder and a home of its own, or says why not."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from rlctl.spec.schema import Network
from rlctl_agents.models.torso import make_torso
from rlctl_agents.types.spaces import Box, Dict
from tests.docs.blocks import Block, blocks, missing, pages
from tests.end_to_end.conftest import Cli, cli

__all__ = ["cli"]

LEAST_RUN = 0.8
POLE = """
cat > spec.yaml <<'YAML'
run: cartpole
env: {id: CartPole-v1}
algorithm: {name: impala}
evaluation: {episodes: 10, every: 1s}
checkpoint: {every: 1s}
YAML
cat > short.yaml <<'YAML'
run: cartpole
env: {id: CartPole-v1}
evaluation: {episodes: 10, every: 1s}
stop: {agent_steps: 2000}
YAML
"""
PACED = """
sed -i 's/CartPole-v1/paced:CartPole/' spec.yaml
cat > paced.py <<'PYTHON'
import os
import time

import gymnasium


class Paced(gymnasium.Wrapper):
    def step(self, action):
        time.sleep(0.001)
        return super().step(action)


def CartPole(**kwargs):
    made = gymnasium.make("CartPole-v1", **kwargs)
    return Paced(made) if "SUPERVISOR_PROCESS_NAME" in os.environ else made
PYTHON
echo 'code: {path: .}' >> spec.yaml
"""
"""A run that goes on while other commands are tried leaves the processor to them."""
SOLVED = POLE + "rlctl up spec.yaml --set stop.eval_return=15\n"  # which is reached at once


ASSERTION = 'assert self.treasure[0] < 6, "no treasure lies in the last row"'
FAULTY = f"sed -i 's/^        self.position = np.clip/        {ASSERTION}\\n&/' treasure.py"
"""As docs/debugging.md has changed the scaffold's environment."""


class Setting(NamedTuple):
    """Terms that a page takes for granted, and changes to its commands so that they end in seconds."""

    before: str = ""
    instead: Mapping[str, str] = {}


SETTINGS = {
    "README.md": Setting(
        (POLE + PACED).replace("run: cartpole", "run: pole"),
        {
            "rlctl up spec.yaml\n": "rlctl up spec.yaml --set stop.agent_steps=2000\n$ cd ..\n",
            "return>=475": "return>=15",
            "spec.yaml --seeds 5 --set algorithm.lr=1e-4,3e-4": "short.yaml --name few --set algorithm.lr=1e-4",
            "compare pole": "compare few",
        },
    ),
    "docs/policies.md": Setting(
        SOLVED, {"rlctl export cartpole@goal policy.onnx  ": "rlctl export cartpole@goal policy.onnx --force  "}
    ),
    "docs/sweeps.md": Setting(
        POLE,
        {
            "spec.yaml --seeds 5": "short.yaml --name NAME --seeds 1",
            "spec.yaml --search optuna --trials 40": "short.yaml --name searched --search optuna --trials 1",
            "sweep clean NAME": "sweep clean NAME --yes",
            "NAME": "few",
            "pole-1 pole-2 other": "few-1 few-2 searched-1",
            "--steps 500000": "--steps 5000",
        },
    ),
    "docs/debugging.md": Setting(
        "rlctl init .\n", {"$ rlctl debug spec.yaml\n": f"$ {FAULTY}\n$ rlctl debug spec.yaml\n"}
    ),
}
PIP = f"""#!{sys.executable}
import importlib.metadata, re, sys
known = importlib.metadata.metadata("rlctl").get_all("Provides-Extra")
asked = [one for word in sys.argv[2:] for one in re.findall(r"\\[(.*)\\]", word) for one in one.split(",")]
sys.exit(f"no such extra: {{asked}}" if sys.argv[1] != "install" or not asked or set(asked) - set(known) else 0)
"""
"""In place of pip, since all is installed: the extras that are named must be some."""


class Reader:
    """Types what a page says.

    Args:
        cli: gives the home.
        page: path in the repository.
    """

    def __init__(self, cli: Cli, page: str) -> None:
        self.folder, self.setting = cli.folder / "page", SETTINGS.get(page, Setting())
        tools, home = cli.folder / "tools", cli.folder / "home"
        for folder in (self.folder, tools, home):
            folder.mkdir()
        (tools / "pip").write_text(PIP)
        (tools / "pip").chmod(0o755)
        who = {f"GIT_{role}_{key}": "ana@b" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")}
        path = f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.env = {**cli.env, "HOME": str(home), "PATH": path, "SDL_VIDEODRIVER": "dummy", "COLUMNS": "160", **who}
        self._here = cli.folder / "here"  # a step leaves its working directory there
        self._here.write_text(str(self.folder))
        if self.setting.before:
            self.type(self.setting.before)

    def type(self, command: str, before: int = 0, exit_code: int | None = 0) -> tuple[int, str]:
        """One command; returns its exit code and what it said.

        Args:
            before: exit code of the command before, for `$?`.
            exit_code: None: any.
        """
        script = f"cd \"$(cat {self._here})\"\ntrap 'pwd > {self._here}' EXIT\n"
        script += f"(exit {before})\n{command}" if before or "$?" in command else f"set -eo pipefail\n{command}"
        done = subprocess.run(
            ["bash", "-c", script], env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=200,
        )  # fmt: skip
        assert exit_code in (None, done.returncode), f"exit {done.returncode} of\n{command}\n{done.stdout}"
        return done.returncode, done.stdout

    def follow(self, block: Block) -> None:
        """Write the file that a block is, or run its commands and compare what they say."""
        if block.kind == "file":
            (self.folder / block.value).write_text(block.text)
        elif block.run:
            text = block.text
            for word, other in self.setting.instead.items():
                text = text.replace(word, other)
            steps, code = list(block._replace(text=text).steps()), 0
            for number, (command, shown) in enumerate(steps):
                asked = steps[number + 1][0] if number + 1 < len(steps) else ""
                wanted = int(block.value) if block.kind == "exit" and not asked else 0
                code, said = self.type(command, code, None if asked.startswith("echo $?") else wanted)
                lost = missing(shown, said)
                assert lost is None, f"{block}: `{command}` does not say\n  {lost}\nbut\n{said}"


RUN = [page for page in pages() if any(block.run for block in blocks(page))]


@pytest.mark.processes
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", RUN)
def test_the_commands_of_a_page_do_what_it_says(cli: Cli, page: str) -> None:
    reader = Reader(cli, page)
    for block in blocks(page):
        reader.follow(block)


def test_most_blocks_are_run_and_the_others_say_why_not() -> None:
    found = [block for page in pages() for block in blocks(page)]
    assert [str(block) for block in found if block.disguised] == [], "say ```sh or ```console where there are commands"
    commands = [block for block in found if block.commands]
    share = sum(block.run for block in commands) / len(commands)
    print(f"{sum(block.run for block in commands)} of {len(commands)} blocks are run: {share:.0%}")
    assert share >= LEAST_RUN


def test_a_setting_is_of_a_page_and_changes_words_that_are_there() -> None:
    for page, setting in SETTINGS.items():
        commands = "".join(block.text for block in blocks(page) if block.run)
        assert [word for word in setting.instead if word not in commands] == [], page


def test_a_block_is_read_with_its_comment_its_prompts_and_what_they_say() -> None:
    page = (
        "a\n<!-- exit: 3 -->\n```console\n$ one\nsaid\n$ two \\\n> more\n```\n\n1. b\n\n    ```sh\n    three\n    ```\n"
    )
    first, second = blocks("p.md", page)
    assert (first.line, first.kind, first.value, first.run) == (3, "exit", "3", True)
    assert list(first.steps()) == [("one", ["said"]), ("two \\\nmore", [])]
    assert list(second.steps()) == [("three\n", [])]
    assert not blocks("p.md", "<!-- not run: needs a cluster -->\n```sh\na\n```")[0].run
    assert blocks("p.md", "```\nrlctl up\n```")[0].disguised
    with pytest.raises(ValueError, match=r"p\.md:1: the fence is not closed"):
        blocks("p.md", "```sh\na\n")


@pytest.mark.parametrize(
    ("shown", "said", "lost"),
    [
        (["loss 0.5  steps 10"], "x\nupdate loss -12.25 steps 1,000\n", None),
        (["a", "...", "c"], "a\nb\nc\n", None),
        (["c", "a"], "a\nb\nc\n", "a"),
        (["wrote .../policy.onnx"], "wrote /tmp/x/policy.onnx\n", None),
        (["return 5"], "steps 5\n", "return 5"),
    ],
)
def test_numbers_may_differ_and_lines_may_be_left_out(shown: list[str], said: str, lost: str | None) -> None:
    assert missing(shown, said) == lost


@pytest.mark.parametrize("frames", [(), (4,)], ids=["alone", "stacked"])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_the_encoder_of_ones_own_fits_its_observations(
    frames: tuple[int, ...], dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shown,) = [block.text for block in blocks("docs/own-network.md") if block.language == "python"]
    (tmp_path / "encoder_of_the_page.py").write_text(shown)
    monkeypatch.syspath_prepend(tmp_path)
    stack = len(frames) and frames[0]
    camera, state = Box((*frames, 84, 60, 3), "uint8", 0, 255, stack), Box((*frames, 5), dtype, stack=stack)
    torso = make_torso(Dict({"camera": camera, "state": state}), Network(torso="encoder_of_the_page:Seen"))
    assert torso.features == 256


def test_pip_of_the_pages_knows_our_extras() -> None:
    assert {"local", "kubernetes", "ci"} <= set(importlib.metadata.metadata("rlctl").get_all("Provides-Extra") or ())
