"""The Dockerfiles: clean by hadolint, and in step with the rest of the repository."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rlctl.images.code import UID
from rlctl.images.ignore import Ignore
from rlctl.images.requirements import LOCK, default_torch, parse

ROOT = Path(__file__).parents[2]
OWN = "--no-deps --no-build-isolation --no-index -e ."
FILES = [ROOT / "Dockerfile.actor", ROOT / "Dockerfile.learner"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_hadolint_finds_nothing(file: Path) -> None:
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    program = shutil.which("hadolint", path=places)
    assert program, "hadolint is missing: make .venv/.dev"
    done = subprocess.run([program, "--no-color", str(file)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_torch_is_the_one_that_is_tested(file: Path) -> None:
    pinned = default_torch(parse((ROOT / LOCK).read_text()))
    assert re.findall(r"^ARG TORCH=(.*)$", file.read_text(), re.MULTILINE) == [pinned]


@pytest.mark.parametrize("file", [*FILES, ROOT / "Makefile"], ids=lambda file: file.name)
def test_packages_come_by_hash_alone_and_no_second_index_is_asked(file: Path) -> None:
    lines = [line for line in file.read_text().splitlines() if not line.lstrip().startswith("#")]
    text = re.sub(r"\\\n\s*", " ", "\n".join(lines)).replace("$(PIP)", "pip install")
    text = re.sub(r'pip="[^"]*"|(?m:^PIP := .*)', "", text).replace("${pip}", "pip install --require-hashes")
    installs = re.findall(r"pip install [^|&;\n]*", text)
    assert len(installs) >= 4
    for command in installs:
        assert "--require-hashes" in command or OWN in command, command
    assert "extra-index-url" not in file.read_text()
    assert "constraints" not in file.read_text()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_our_code_is_the_last_layer_and_nobody_is_root(file: Path) -> None:
    for stage in re.split(r"(?m)^FROM ", file.read_text())[1:]:
        if "LABEL" in stage:  # one that becomes an image
            after = re.split(r"COPY --from=(?:ci-)?code /opt/rlctl /opt/rlctl\n", stage)[1]
            assert not re.search(r"^(RUN|COPY|ADD)", after, re.MULTILINE)
            assert f"USER {UID}:{UID}\n" in after


def test_both_files_build_our_code_and_its_lists_in_the_same_way() -> None:
    stages = [re.search(r"# --- our code.*?(?=\n\n(?:#|FROM))", file.read_text(), re.DOTALL) for file in FILES]
    assert stages[0]
    assert stages[1]
    assert stages[0][0] == stages[1][0]


def test_a_build_by_hand_sees_what_the_dockerfiles_copy_and_little_else() -> None:
    ignore = Ignore.parse((ROOT / ".dockerignore").read_text())
    needed = ["pyproject.toml", "requirements.lock", "rlctl/images/requirements.py", "agents/rlctl_agents/__main__.py"]
    needed += ["ci/rlctl_ci/web/static/style.css"]
    needed += ["templates/init/environment/spec.yaml", "README.md", "LICENSE", "Dockerfile.actor", "Dockerfile.learner"]
    assert [name for name in needed if ignore.leaves_out(name)] == []
    others = [".git/HEAD", "tests/__init__.py", "docs/wire.md", ".venv/bin/python", "rlctl/__pycache__/plan.pyc"]
    assert [name for name in others if not ignore.leaves_out(name)] == []
