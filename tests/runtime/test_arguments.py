"""The command line on a cluster: names, ordinals, addresses."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlctl.spec import names
from rlctl_agents.runtime.addresses import CHANNELS, Addresses
from rlctl_agents.runtime.process import parse
from tests.manager.world import Time

HERE, THERE = "ipc:///m", "tcp://r-manager-0.r-manager:7100"


def prefer(name: str, manager: str, *more: str) -> int | None:
    words = ["actor", "--name", name, "--run-file", "f", "--manager", manager, "--probe", "unix:/p", *more]
    return parse(words).prefer


def test_on_one_machine_the_number_in_the_name_is_the_index() -> None:
    assert prefer("actor-3", HERE) == 3
    assert prefer("actor-7f9c4-x2", HERE) is None


def test_the_random_suffix_of_a_pod_is_no_index_even_when_it_is_all_digits() -> None:
    assert prefer("r-actor-0-7f9c4b6d5-24689", THERE) is None
    assert prefer("actor-3", THERE) is None


def test_an_ordinal_is_the_index_wherever_it_is_given() -> None:
    assert prefer("r-learner-2", THERE, "--ordinal", "r-learner-2") == 2
    assert prefer("x", THERE, "--ordinal", "17") == 17
    assert prefer("actor-3", HERE, "--ordinal", "5") == 5
    assert prefer("actor-3", THERE, "--ordinal", "r-actor-x2") is None


def test_what_a_cluster_needs_is_off_unless_it_is_asked_for() -> None:
    words = ["manager", "--name", "m", "--run-file", "f", "--manager", HERE, "--probe", "unix:/p"]
    plain = parse(words)
    assert (plain.bind, plain.keys, plain.stay, plain.logs, plain.off_host) == ("", None, False, False, False)
    told = parse([*words, "--bind", "10.0.0.7", "--keys", "/keys", "--stay", "--logs"])
    assert (told.bind, told.keys, told.stay, told.logs) == ("10.0.0.7", Path("/keys"), True, True)


def test_every_channel_has_the_port_that_the_services_of_the_cluster_name() -> None:
    assert {channel for channels in CHANNELS.values() for channel in channels} < set(names.PORTS)


def test_a_pattern_with_ports_gives_every_pod_its_name_and_every_channel_its_port() -> None:
    addresses = Addresses("tcp://r-{role}-{index}.r-{role}:{port}", Time())
    assert addresses.bind("modelpool", 1) == {
        "rpc": "tcp://r-modelpool-1.r-modelpool:7100", "notice": "tcp://r-modelpool-1.r-modelpool:7101",
    }  # fmt: skip
    assert addresses.peers("actor", 0)["learner/0"] == {"experience": "tcp://r-learner-0.r-learner:7102"}
    assert not addresses.one_machine


@pytest.mark.parametrize("pattern", ["tcp://{role}:{port}", "tcp://{role}-{index}:71", "tcp://{role}-{index}:{ports}"])
def test_a_pattern_that_does_not_tell_channels_or_pods_apart_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"must hold|only"):
        Addresses(pattern, Time())
