"""images.yaml: what `push --write` writes, and what it leaves alone."""

from pathlib import Path

import pytest

from rlctl.errors import Refused, SpecError, UsageError
from rlctl.images import overlay
from rlctl.images.builders.base import NAMES
from rlctl.spec import load
from rlctl.spec.cluster import Images

CORE = "127.0.0.1:5000/rlctl-core@sha256:" + "1" * 64
ACTOR = "registry.example.org/team/rlctl-actor@sha256:" + "2" * 64
OTHER = "registry.example.org/team/rlctl-actor@sha256:" + "3" * 64


def test_the_images_are_those_of_the_spec() -> None:
    assert tuple(Images.model_fields) == NAMES


def test_an_overlay_is_a_spec_file_that_names_images(tmp_path: Path) -> None:
    path = tmp_path / "images.yaml"
    overlay.write(path, {"actor": ACTOR, "core": CORE}, force=False)
    spec = tmp_path / "spec.yaml"
    spec.write_text("run: pole\nenv: {id: CartPole-v1}\n")
    images = load([spec, path]).spec.images
    assert (images.core, images.actor, images.learner) == (CORE, ACTOR, None)
    assert path.read_text().startswith("# Written by `rlctl image push`.")
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".")] == []


def test_images_that_were_not_pushed_stay(tmp_path: Path) -> None:
    path = tmp_path / "images.yaml"
    overlay.write(path, {"core": CORE, "actor": ACTOR}, force=False)
    assert overlay.write(path, {"actor": OTHER}, force=False) == {"core": CORE, "actor": OTHER}
    assert overlay.read(path) == {"core": CORE, "actor": OTHER}


@pytest.mark.parametrize(
    "text",
    [
        "run: pole\nimages: {}\n",
        "images: {core: x, sidecar: y}\n",
        "images: [x]\n",
        "- images\n",
        "notes\n",
        "images: {core: x\n",
        "\xff\xfe",
    ],
)
def test_a_file_that_holds_anything_else_is_never_overwritten(tmp_path: Path, text: str) -> None:
    path = tmp_path / "spec.yaml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(Refused, match="holds more than images") as caught:
        overlay.write(path, {"core": CORE}, force=False)
    assert caught.value.exit_code == 9
    assert path.read_bytes() == text.encode("latin-1")


def test_force_overwrites_whatever_is_there(tmp_path: Path) -> None:
    path = tmp_path / "images.yaml"
    path.write_text("run: pole\n")
    overlay.write(path, {"core": CORE}, force=True)
    assert overlay.read(path) == {"core": CORE}


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "images: {}\n"])
def test_an_empty_file_is_written(tmp_path: Path, text: str) -> None:
    path = tmp_path / "images.yaml"
    path.write_text(text)
    assert overlay.write(path, {"core": CORE}, force=False) == {"core": CORE}


def test_a_folder_that_is_not_there_is_a_fault_in_words(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written: no such file or directory"):
        overlay.write(tmp_path / "nowhere" / "images.yaml", {"core": CORE}, force=False)


def test_what_is_neither_tag_nor_digest_is_refused_by_the_spec(tmp_path: Path) -> None:
    path = tmp_path / "images.yaml"
    overlay.write(path, {"core": "registry.example.org/rlctl-core"}, force=False)
    spec = tmp_path / "spec.yaml"
    spec.write_text("run: pole\nenv: {id: CartPole-v1}\n")
    with pytest.raises(SpecError):
        load([spec, path])
