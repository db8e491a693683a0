"""A run that has stored a model, and keys to sign it with."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from rlctl.spec.layout import Layout
from tests.cli.conftest import Rlctl
from tests.cli.models import store
from tests.training.test_stored_policy import KINDS

PEM = serialization.Encoding.PEM


class Pair(NamedTuple):
    private: Path
    public: Path


def pair(folder: Path, name: str, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> Pair:
    """Two PEM files."""
    made = Pair(folder / f"{name}.pem", folder / f"{name}.pub")
    private, public = serialization.PrivateFormat.PKCS8, serialization.PublicFormat.SubjectPublicKeyInfo
    made.private.write_bytes(key.private_bytes(PEM, private, serialization.NoEncryption()))
    made.public.write_bytes(key.public_key().public_bytes(PEM, public))
    return made


@pytest.fixture
def ours(tmp_path: Path) -> Pair:
    return pair(tmp_path, "ours", ec.generate_private_key(ec.SECP256R1()))


@pytest.fixture
def theirs(tmp_path: Path) -> Pair:
    return pair(tmp_path, "theirs", ec.generate_private_key(ec.SECP384R1()))


@pytest.fixture
def pole(rlctl: Rlctl, tmp_path: Path) -> Rlctl:
    """A run that has stored a model."""
    rlctl.up()
    layout = Layout(tmp_path / "pole-00000000")
    store.best(layout, store.generation(layout, *KINDS[0]), *KINDS[0])
    rlctl.backend.files = layout
    return rlctl
