"""Number of boots that one address may bring."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from rlctl_agents.manager.membership.boot_rate import MOST, OTHERS, WITHIN_S, BootRateLimiter
from rlctl_agents.types.control import Hello
from tests.manager.world import Run, Time, boot


def of_pods(time: Time, *, boots_each: int = 1) -> BootRateLimiter:
    """Newcomers of a run with pods as actors."""
    newcomers = BootRateLimiter(time)
    for pod in range(OTHERS):
        for number in range(boots_each):
            newcomers.admit(boot(100 * pod + number), f"10.0.0.{pod}")
    return newcomers


def test_one_pod_cannot_become_a_crowd() -> None:
    time = Time()
    newcomers = of_pods(time)
    for number in range(MOST):
        newcomers.admit(boot(1000 + number), "10.0.1.1")
    for number in range(MOST, 50):
        with pytest.raises(ValueError, match=r"4 actors from 10\.0\.1\.1 have said hello within 120 s"):
            newcomers.admit(boot(1000 + number), "10.0.1.1")
    newcomers.admit(boot(1000), "10.0.1.1")  # again
    newcomers.admit(boot(1), "10.0.0.0")
    time.now += WITHIN_S
    newcomers.admit(boot(1050), "10.0.1.1")


@pytest.mark.parametrize("address", ["127.0.0.6", "::1", "this machine", "10.0.0.9"])
def test_where_addresses_do_not_stand_for_actors_nothing_is_refused(address: str) -> None:
    crowded = address == "10.0.0.9"  # the others share addresses too
    newcomers = of_pods(Time(), boots_each=MOST if crowded else 1)
    for number in range(100):
        newcomers.admit(boot(1000 + number), address)


def test_a_crowd_is_refused_also_long_after_the_others_have_come() -> None:
    time = Time()
    newcomers = of_pods(time)
    time.now += 100 * WITHIN_S  # they run, and say hello no more
    for number in range(MOST):
        newcomers.admit(boot(1000 + number), "10.0.1.1")
    with pytest.raises(ValueError, match="4 actors"):
        newcomers.admit(boot(2000), "10.0.1.1")


def test_actors_that_an_earlier_manager_has_leased_are_not_judged() -> None:
    newcomers = of_pods(Time())
    for number in range(50):
        newcomers.admit(boot(1000 + number), "10.0.1.1", known=True)
    with pytest.raises(ValueError, match="4 actors"):  # and one more that it has not leased is
        newcomers.admit(boot(2000), "10.0.1.1")


def test_of_addresses_without_end_the_newest_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlctl_agents.manager.membership.boot_rate.ADDRESSES", 10)
    newcomers = BootRateLimiter(Time())
    for number in range(50):
        newcomers.admit(boot(number), f"10.0.0.{number}")
    assert len(newcomers._usual) == 10


def test_a_hello_that_is_not_admitted_has_no_lease_and_is_told_in_the_status(tmp_path: Path) -> None:
    asked: list[tuple[str, bool]] = []

    def admit(hello: Hello, known: bool) -> None:
        asked.append((hello.boot, known))
        if len(asked) == 3:
            raise ValueError("too many")

    run = Run(tmp_path)
    run.start(admit=admit)
    for number in (1, 1):
        run.join("actor", number)
    with pytest.raises(ValueError, match="too many"):
        run.join("actor", 2)
    assert asked == [(boot(1), False), (boot(1), True), (boot(2), False)]
    refusal = run.manager.admission.refusal
    assert refusal is not None
    assert refusal[0] == "too many"
    assert [one.boot for one in run.manager.members.leases.live("actor")] == [boot(1)]


@pytest.mark.parametrize("field", ["role", "boot", "run"])
def test_a_hello_whose_words_are_long_is_not_even_read(field: str) -> None:
    """It would be told in an event, and events.jsonl lies beside the models."""
    words = {"role": "actor", "boot": "0" * 16, "run": "r", field: "\0" * 10_000}
    with pytest.raises(msgspec.ValidationError, match=field):
        msgspec.msgpack.decode(msgspec.msgpack.encode(words), type=Hello)
