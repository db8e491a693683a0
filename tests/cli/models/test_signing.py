"""Signatures of models: their signers, what is verified, and what a bad one gets."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

import rlctl_agents
from rlctl import signing
from rlctl.errors import BadSignature, UsageError
from tests.cli.conftest import Rlctl
from tests.cli.models import store
from tests.cli.models.conftest import Pair, pair


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder of three files."""
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("policy.json", "policy.safetensors", "run.json"):
        (folder / name).write_text(name)
    return folder


def test_a_signed_folder_is_verified_wherever_it_is_moved(model: Path, ours: Pair) -> None:
    assert signing.sign(model, ours.private) == model / "model.sig"
    signing.verify(model, ours.public)
    signing.sign(model, ours.private)  # again, over its own signature
    moved = model.rename(model.with_name("moved"))
    signing.verify(moved, ours.public)


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "changed": (lambda model: (model / "run.json").write_text("other"), "run.json is changed"),
    "missing": (lambda model: (model / "run.json").unlink(), "run.json is missing"),
    "added": (lambda model: (model / "code.py").write_text("x"), "code.py is not signed"),
    "added, of git": (lambda model: (model / ".gitignore").write_text("x"), ".gitignore is not signed"),
    "all at once": (
        lambda model: [(model / name).write_text("x") for name in ("policy.json", "z")], "policy.json is changed, z is",
    ),
    "signature cut short": (lambda model: store.flip(model / "model.sig"), "model.sig"),
    "no signature at all": (lambda model: (model / "model.sig").write_text("{}"), "model.sig is no signature"),
    "not signed": (lambda model: (model / "model.sig").unlink(), "is not signed"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "why"), CHANGES.values(), ids=CHANGES)
def test_a_folder_that_is_not_as_it_was_signed_is_refused_with_each_file(
    model: Path, ours: Pair, change: Callable[[Path], object], why: str
) -> None:
    signing.sign(model, ours.private)
    change(model)
    with pytest.raises(BadSignature) as refused:
        signing.verify(model, ours.public)
    if why != "model.sig":
        assert why in refused.value.message
    assert refused.value.exit_code == 1
    assert "\n" not in refused.value.message


def test_a_signature_of_another_key_is_refused(model: Path, ours: Pair, theirs: Pair) -> None:
    signing.sign(model, theirs.private)
    with pytest.raises(BadSignature, match="its signature is of another key"):
        signing.verify(model, ours.public)


def test_files_that_a_signer_left_out_are_not_signed(model: Path, ours: Pair) -> None:
    from model_signing import hashing
    from model_signing import signing as library

    config = hashing.Config().set_ignored_paths(paths=[model / "policy.safetensors"], ignore_git_paths=False)
    signer = library.Config().use_elliptic_key_signer(private_key=ours.private)
    signer.set_hashing_config(config).sign(model, model / "model.sig")
    with pytest.raises(BadSignature, match=r"policy\.safetensors is not signed"):
        signing.verify(model, ours.public)


def test_a_file_has_its_signature_beside_it(tmp_path: Path, ours: Pair) -> None:
    file = tmp_path / "policy.onnx"
    file.write_text("graph")
    assert signing.sign(file, ours.private) == tmp_path / "policy.onnx.sig"
    signing.verify(file, ours.public)
    file.write_text("other")
    with pytest.raises(BadSignature, match=r"policy\.onnx is changed"):
        signing.verify(file, ours.public)


def test_what_is_no_key_is_a_fault_of_the_command_line(model: Path, ours: Pair, tmp_path: Path) -> None:
    of_rsa = pair(tmp_path, "rsa", rsa.generate_private_key(65537, 2048))
    for file in (ours.public, of_rsa.private, tmp_path / "none", model / "run.json"):
        with pytest.raises(UsageError, match="is no private key on an elliptic curve"):
            signing.sign(model, file)
    for file in (ours.private, of_rsa.public, tmp_path / "none", model / "run.json"):
        with pytest.raises(UsageError, match="is no public key on an elliptic curve"):
            signing.verify(model, file)
    assert not (model / "model.sig").exists()


def test_without_the_extra_it_is_named(model: Path, ours: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "model_signing", None)
    with pytest.raises(UsageError) as refused:
        signing.sign(model, ours.private)
    assert refused.value.hint == 'pip install "rlctl[signing]"'
    with pytest.raises(ImportError, match=r"rlctl\[signing\]"):
        rlctl_agents.load(model, verify=ours.public)


def test_pull_signs_and_load_and_the_verbs_verify(pole: Rlctl, tmp_path: Path, ours: Pair, theirs: Pair) -> None:
    there = tmp_path / "there"
    signed = pole("pull", "pole@best", str(there), "--sign", str(ours.private), "-o", "json")
    assert signed.code == 0, signed.err
    assert json.loads(signed.out)["files"][-1] == str(there / "model.sig")
    signing.verify(there, ours.public)
    assert rlctl_agents.load(there, verify=ours.public).described.ref.version == 17
    with pytest.raises(ValueError, match="of another key"):
        rlctl_agents.load(there, verify=theirs.public)
    with pytest.raises(LookupError, match="is for a folder"):
        rlctl_agents.load("pole@best", verify=ours.public)
    file = tmp_path / "policy.safetensors"
    made = pole("export", str(there), str(file), "--verify", str(ours.public), "--sign", str(ours.private))
    assert made.code == 0, made.err
    signing.verify(file, ours.public)
    again = pole("export", str(there), str(tmp_path / "policy.pt2"), "--verify", str(theirs.public))
    assert (again.code, again.out) == (1, "")
    assert "its signature is of another key" in again.err
    (there / "policy.json").write_text("{}")
    for verb in (("eval",), ("play", "--video", str(tmp_path / "films"))):
        refused = pole(verb[0], str(there), *verb[1:], "--verify", str(ours.public))
        assert refused.code == 1
        assert "policy.json is changed" in refused.err


def test_a_key_that_cannot_sign_leaves_nothing_behind(pole: Rlctl, tmp_path: Path, ours: Pair) -> None:
    for verb in (
        ("pull", "pole@best", str(tmp_path / "there")),
        ("export", "pole@best", str(tmp_path / "p.safetensors")),
    ):
        assert pole(*verb, "--sign", str(ours.public)).code == 2
        assert not Path(verb[2]).exists()


def test_a_folder_that_is_not_there_is_not_called_unsigned(pole: Rlctl, tmp_path: Path, ours: Pair) -> None:
    refused = pole("eval", f"{tmp_path}/typo", "--verify", str(ours.public))
    assert (refused.code, f"there is no folder {tmp_path}/typo" in refused.err) == (2, True)
    assert "signed" not in refused.err


def test_a_model_of_a_run_has_no_signature(pole: Rlctl, ours: Pair) -> None:
    refused = pole("eval", "pole@best", "--verify", str(ours.public))
    assert refused.code == 2
    assert "--verify is for a folder" in refused.err
