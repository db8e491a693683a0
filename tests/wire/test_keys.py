from __future__ import annotations

from pathlib import Path

import pytest
import zmq
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from zmq.utils import z85

from rlctl_agents.wire.keys import Keys
from tests.wire.keyring import Keyring


@pytest.fixture
def ring(tmp_path: Path) -> Keyring:
    return Keyring(tmp_path)


def faults(folder: Path) -> str:
    with pytest.raises(ValueError, match=str(folder)) as caught:
        Keys.read(folder)
    return str(caught.value)


def test_a_core_process_may_listen_and_knows_both_classes(ring: Keyring) -> None:
    keys = Keys.read(ring.of("core"))
    assert (keys.whose, keys.public, keys.secret) == ("core", ring.keys["core.pub"], ring.keys["core.key"])
    assert (keys.server_public, keys.server_secret) == (ring.keys["server.pub"], ring.keys["server.key"])
    assert keys.admitted == {ring.keys["core.pub"].decode(): "core", ring.keys["actor.pub"].decode(): "actor"}


@pytest.mark.parametrize(("role", "whose"), [("actor", "actor"), ("evaluator", "core")])
def test_a_process_that_only_connects_has_its_own_pair_and_the_servers_public_key(
    ring: Keyring, role: str, whose: str
) -> None:
    keys = Keys.read(ring.of(role))
    assert (keys.whose, keys.secret) == (whose, ring.keys[f"{whose}.key"])
    assert keys.server_secret is None
    assert keys.admitted == {}


def test_white_space_around_a_key_and_files_that_everybody_may_read_do_no_harm(ring: Keyring) -> None:
    folder = ring.of("actor", actor__key=b" " + ring.keys["actor.key"] + b"\r\n")
    for path in folder.iterdir():
        path.chmod(0o644)
    assert Keys.read(folder).secret == ring.keys["actor.key"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "40 characters, got 0"),
        (b"a" * 39, "40 characters, got 39"),
        (b"a" * 41, "40 characters, got 41"),
        (b"a" * 39 + b'"', "characters that z85 does not have"),
        (b"a" * 20 + b"\n" + b"a" * 19, "characters that z85 does not have"),
        (bytes(range(200, 232)), "32 raw bytes"),
        (b"#" * 40, "more than 32 bits"),
    ],
)
def test_a_file_that_holds_no_key_is_named_with_what_it_holds_instead(ring: Keyring, content: bytes, why: str) -> None:
    folder = ring.of("actor", server__pub=content)
    assert faults(folder).startswith(f"{folder}/server.pub: ")
    assert why in faults(folder)


def test_a_file_that_is_missing_is_named(ring: Keyring) -> None:
    folder = ring.of("core", actor__pub=None, core__pub=None)
    assert faults(folder) == f"{folder}/core.pub: no such file; {folder}/actor.pub: no such file"


def test_a_folder_in_the_place_of_a_key_is_named(ring: Keyring) -> None:
    folder = ring.of("actor", actor__pub=None)
    (folder / "actor.pub").mkdir()
    assert "actor.pub: Is a directory" in faults(folder)


def test_a_folder_that_is_missing_or_empty_is_named(tmp_path: Path) -> None:
    assert "no such folder" in faults(tmp_path / "missing")
    assert "neither actor.key nor core.key" in faults(tmp_path)
    assert "server.pub: no such file" in faults(tmp_path)


def test_halves_that_do_not_belong_together_are_refused(ring: Keyring) -> None:
    other = Keyring(ring.folder / "other").keys
    folder = ring.of("core", server__pub=other["server.pub"], core__key=other["core.key"])
    assert faults(folder) == (
        f"{folder}/server.pub is not the public half of server.key; "
        f"{folder}/core.pub is not the public half of core.key"
    )


def test_classes_with_the_same_key_are_refused(ring: Keyring) -> None:
    folder = ring.of("core", actor__pub=ring.keys["core.pub"])
    assert faults(folder) == f"{folder}/actor.pub and core.pub hold the same key"


def test_a_process_with_two_classes_or_an_actor_that_could_listen_is_refused(ring: Keyring) -> None:
    both = ring.of("core", actor__key=ring.keys["actor.key"])
    assert "a process has one of them" in faults(both)
    listening = ring.of("actor", server__key=ring.keys["server.key"])
    assert "actors do not listen" in faults(listening)


def test_no_secret_is_ever_shown(ring: Keyring) -> None:
    folder = ring.of("core")
    text = repr(Keys.read(folder)) + faults(ring.of("core", core__key=ring.keys["core.key"][:-1]))
    assert not any(ring.keys[name].decode()[:-1] in text for name in ("server.key", "core.key"))


def test_keys_are_x25519_in_z85_so_another_package_can_make_them() -> None:
    private = X25519PrivateKey.generate()
    public = z85.encode(private.public_key().public_bytes_raw())
    assert zmq.curve_public(z85.encode(private.private_bytes_raw())) == public
    assert len(public) == 40
