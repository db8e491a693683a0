"""The layer of the user's code: equal content is an equal layer, on any machine, at any place and time."""

import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from rlctl.errors import UsageError
from rlctl.images import code as layers
from rlctl.images import overlay
from rlctl.images.code import CodeArchive, stage

BASE = "registry.example.org/rlctl-actor@sha256:" + "a" * 64


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    for name, text in (
        ("lights/__init__.py", ""),
        ("lights/guess.py", "LIGHTS = 2\n"),
        ("z.py", ""),
        ("spec.yaml", "run: lights\n"),
        (".git/HEAD", "ref: main"),
        ("lights/__pycache__/guess.cpython-311.pyc", "bytecode"),
        (".venv/bin/python", "program"),
        ("templates/actor.patch.yaml", "spec: {}"),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def collect(folder: Path, *arguments: Any, **more: Any) -> CodeArchive:
    """Into a file beside the folder, another one each time."""
    into = folder.with_name(f"{folder.name}-{len(list(folder.parent.iterdir()))}.tar")
    return layers.collect(folder, *arguments, into=into, **more)


def members(code: CodeArchive) -> list[tarfile.TarInfo]:
    with tarfile.open(code.archive) as tar:
        return tar.getmembers()


def names(code: CodeArchive) -> list[str]:
    return [member.name for member in members(code)]


def test_nothing_of_git_caches_environments_and_patches_is_in_the_layer(project: Path) -> None:
    assert names(collect(project)) == ["lights/__init__.py", "lights/guess.py", "spec.yaml", "z.py"]


def test_specs_are_left_out_so_that_changing_them_changes_no_image(project: Path) -> None:
    before = collect(project, without=[project / "spec.yaml"])
    (project / "spec.yaml").write_text("run: lights\nroles: {actor: {replicas: 8}}\n")
    assert collect(project, without=[project / "lights" / ".." / "spec.yaml"]) == before
    assert "spec.yaml" not in names(before)


def test_a_file_of_digests_is_left_out_under_every_name(project: Path) -> None:
    before = collect(project)
    overlay.write(project / "production.yaml", {"core": BASE}, force=False)
    assert collect(project) == before


def test_what_the_dockerignore_names_is_left_out_and_so_is_the_file_itself(project: Path) -> None:
    (project / ".dockerignore").write_text("*.yaml\nlights\n!lights/guess.py\n")
    assert names(collect(project)) == ["lights/guess.py", "z.py"]


def test_times_owners_and_modes_of_this_machine_do_not_matter(project: Path) -> None:
    before = collect(project)
    os.utime(project / "z.py", (1, 1))
    (project / "z.py").chmod(0o600)
    assert collect(project) == before
    assert {(member.uid, member.gid, member.mtime, member.mode) for member in members(before)} == {
        (10001, 10001, 0, 0o644)
    }


def test_what_can_be_run_stays_so(project: Path) -> None:
    (project / "z.py").chmod(0o755)
    assert members(collect(project))[-1].mode == 0o755


def test_a_link_stays_a_link_and_a_pipe_is_left_out(project: Path) -> None:
    (project / "link.py").symlink_to("z.py")
    os.mkfifo(project / "pipe")
    found = {member.name: member for member in members(collect(project))}
    assert found["link.py"].issym()
    assert found["link.py"].linkname == "z.py"
    assert "pipe" not in found


@pytest.mark.parametrize("to", ["../other.py", "lights/../../other.py", ".."])
def test_a_link_that_would_lead_nowhere_in_an_image_is_named(project: Path, to: str) -> None:
    (project / "up.py").symlink_to(to)
    with pytest.raises(UsageError, match=r"up.py links to .*, which leads out of the code"):
        collect(project)
    (project / ".dockerignore").write_text("up.py\n")
    assert "up.py" not in names(collect(project))


def test_a_link_that_stays_inside_or_names_a_place_of_the_image_is_taken(project: Path) -> None:
    (project / "lights" / "up.py").symlink_to("../z.py")
    (project / "data").symlink_to("/data")
    assert {"lights/up.py", "data"} <= set(names(collect(project)))


def test_the_hash_is_the_same_everywhere(tmp_path: Path) -> None:
    # frozen: another value would build and push the code of every run again
    (tmp_path / "a.py").write_text("A = 1\n")
    assert collect(tmp_path).tag(BASE) == "code-947522cea03f"


@pytest.mark.parametrize("change", ["content", "name", "new file", "requirements", "base"])
def test_every_change_of_content_is_another_tag(project: Path, change: str) -> None:
    before = collect(project).tag(BASE)
    base, requirements = BASE, None
    match change:
        case "content":
            (project / "z.py").write_text("Z = 1\n")
        case "name":
            (project / "z.py").rename(project / "y.py")
        case "new file":
            (project / "y.py").write_text("")
        case "requirements":
            requirements = project / "requirements.txt"
            requirements.write_text("einops\n")
        case "base":
            base = BASE.replace("a", "b")
    assert collect(project, requirements).tag(base) != before


def test_the_layer_lies_over_the_base_and_runs_as_its_user(project: Path, tmp_path: Path) -> None:
    folder = tmp_path / "context"
    folder.mkdir()
    text = stage(collect(project), BASE, folder).read_text()
    assert text.startswith(f"FROM {BASE}\n")
    assert "ENV PYTHONPATH=/code\n" in text
    assert text.index("USER 0") < text.index("ADD --chown=10001:10001 code-") < text.index("USER 10001:10001")
    assert f'LABEL dev.rlctl.base="{BASE}"' in text
    assert "pip" not in text
    assert sorted(path.suffix for path in folder.iterdir()) == ["", ".tar"]


def test_requirements_are_a_layer_below_the_code(project: Path, tmp_path: Path) -> None:
    (tmp_path / "needs.txt").write_text("einops>=0.8\n")
    folder = tmp_path / "context"
    folder.mkdir()
    text = stage(collect(project, tmp_path / "needs.txt"), BASE, folder).read_text()
    assert (folder / "requirements.txt").read_text() == "einops>=0.8\n"
    assert text.index("COPY requirements.txt") < text.index("pip install") < text.index("ADD")


def test_the_archive_is_called_by_its_content(project: Path, tmp_path: Path) -> None:
    """A builder that compares names, sizes and times alone would take yesterday's archive for today's."""
    archives = set()
    for number, content in enumerate(("Z = 1\n", "Z = 2\n")):
        (project / "z.py").write_text(content)
        folder = tmp_path / str(number)
        folder.mkdir()
        stage(collect(project), BASE, folder)
        archives |= {path.name for path in folder.glob("*.tar")}
    assert len(archives) == 2


def test_a_project_that_is_not_there_is_a_fault_in_words(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere cannot be read: no such file"):
        collect(tmp_path / "nowhere")


def test_requirements_have_an_end(project: Path) -> None:
    listed = project / "requirements.txt"
    listed.write_bytes(b"a\n" * (layers.MAX_REQUIREMENTS // 2))
    assert collect(project, listed).requirements == listed.read_bytes()
    listed.write_bytes(b"a\n" * (layers.MAX_REQUIREMENTS // 2) + b"b")
    with pytest.raises(UsageError, match=r"requirements\.txt:524289: the file goes on beyond 1024 KiB"):
        collect(project, listed)


def test_a_dockerignore_of_too_many_patterns_stops_the_collecting_in_words(project: Path) -> None:
    (project / ".dockerignore").write_text("a\n" * 1001)
    with pytest.raises(UsageError, match=r"\.dockerignore:1001: 1001 patterns, and at most 1000 are read"):
        collect(project)
