"""The CURVE keys of a run."""

from __future__ import annotations

import base64

import pytest
import zmq

from rlctl.backends.kubernetes.api.interface import Key, Object
from rlctl.backends.kubernetes.run_state import keys
from rlctl.errors import Conflict
from tests.backends.kubernetes.fakes.lab import Lab

UID = "0123456789abcdef" * 2


def files_of(secret: Object) -> dict[str, str]:
    return {name: base64.b64decode(text).decode() for name, text in secret["data"].items()}


def test_public_keys_are_those_that_zeromq_computes() -> None:
    core = files_of(keys.make("pong", UID))
    actor = files_of(keys.derived(keys.make("pong", UID, random=lambda count: b"\7" * count), "pong", UID))
    for found, name in ((core, "server"), (core, "core"), (actor, "actor")):
        assert zmq.curve_public(found[f"{name}.key"].encode()) == found[f"{name}.pub"].encode()


def test_each_class_holds_its_own_files_and_no_others_secret() -> None:
    core = keys.make("pong", UID)
    actor = keys.derived(core, "pong", UID)
    assert set(core["data"]) == {"server.key", "server.pub", "core.key", "core.pub", "actor.pub"}
    assert set(actor["data"]) == {"server.pub", "actor.key", "actor.pub"}
    for name in ("server.pub", "actor.pub"):
        assert files_of(core)[name] == files_of(actor)[name]
    secrets = {files_of(core)["server.key"], files_of(core)["core.key"], files_of(actor)["actor.key"]}
    assert len(secrets) == 3


def test_all_keys_are_forty_signs_of_z85() -> None:
    core = keys.make("pong", UID)
    for text in (*files_of(core).values(), *files_of(keys.derived(core, "pong", UID)).values()):
        assert len(text) == 40
        assert len(keys.from_z85(text)) == 32


def test_z85_is_that_of_the_specification() -> None:
    data = bytes([0x86, 0x4F, 0xD2, 0x6F, 0xB5, 0x59, 0xF7, 0x5B])
    assert keys.to_z85(data) == "HelloWorld"
    assert keys.from_z85("HelloWorld") == data


@pytest.mark.parametrize("text", ["Hello", "Hell~", "####\x00", "abcd"])
def test_what_is_no_z85_is_refused(text: str) -> None:
    if text == "Hello":
        assert keys.from_z85(text)
        return
    with pytest.raises((ValueError, OverflowError)):
        keys.from_z85(text)


def test_keys_are_made_once_and_survive_everything_but_their_volumes(lab: Lab) -> None:
    lab.up()
    made = files_of(lab.of("Secret", "pong-keys-core"))
    lab.settle()
    lab.up(algorithm={"name": "impala", "lr": 0.001})
    lab.down()
    lab.up()
    assert files_of(lab.of("Secret", "pong-keys-core")) == made


def test_an_actor_secret_that_was_lost_is_made_again_as_it_was(lab: Lab) -> None:
    lab.up()
    made = files_of(lab.of("Secret", "pong-keys-actor"))
    lab.api.remove(Key("Secret", "pong-keys-actor"))
    lab.up()
    assert files_of(lab.of("Secret", "pong-keys-actor")) == made


def test_a_live_run_whose_core_secret_is_lost_gets_no_other_keys(lab: Lab) -> None:
    lab.up()
    lab.settle()
    made = lab.of("Secret", "pong-keys-actor")
    lab.api.remove(Key("Secret", "pong-keys-core"))
    lab.api.new_command()
    with pytest.raises(Conflict, match="Secret pong-keys-core of the live run pong is lost") as error:
        lab.up(roles={"actor": {"replicas": 9}})
    assert "rlctl down pong, then rlctl up SPEC" in error.value.hint
    assert lab.api.requests.writes == 0
    assert lab.of("Secret", "pong-keys-actor") == made


def test_when_the_core_secret_is_lost_both_are_made_anew_once_nothing_runs(lab: Lab) -> None:
    lab.up()
    lab.down()
    made = files_of(lab.of("Secret", "pong-keys-actor"))
    lab.api.remove(Key("Secret", "pong-keys-core"))
    lab.up()
    core, actor = files_of(lab.of("Secret", "pong-keys-core")), files_of(lab.of("Secret", "pong-keys-actor"))
    assert actor["actor.key"] != made["actor.key"]
    assert core["actor.pub"] == actor["actor.pub"]


def test_a_secret_without_keys_is_told_of() -> None:
    with pytest.raises(Conflict, match="does not hold the keys of run pong") as error:
        keys.derived({"data": {"server.key": "AAAA"}}, "pong", UID, "kubectl -n rl")
    assert error.value.hint.endswith("kubectl -n rl delete secret pong-keys-core")


def test_no_key_is_ever_shown(lab: Lab) -> None:
    lab.up()
    secrets = set(files_of(lab.of("Secret", "pong-keys-core")).values())
    for key, thing in lab.api.objects.items():
        if key.kind != "Secret":
            assert not any(secret in str(thing) for secret in secrets), key
