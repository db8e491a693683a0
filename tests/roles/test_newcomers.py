"""How many boots one address may bring."""

from __future__ import annotations

import pytest

from rlctl_agents.roles.manager import handlers
from rlctl_agents.roles.newcomers import MOST, OTHERS, WITHIN_S, Newcomers
from rlctl_agents.types.control import Hello
from tests.roles.world import Time, boot


def of_pods(time: Time, *, boots_each: int = 1) -> Newcomers:
    """Of a run whose actors are pods."""
    newcomers = Newcomers(time)
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


def test_a_hello_that_is_not_admitted_reaches_nobody() -> None:
    def admit(hello: Hello) -> None:
        raise ValueError("too many")

    def answering() -> None:
        raise AssertionError("asked")

    answers = handlers(answering, admit)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="too many"):
        answers[Hello](Hello("actor", boot(1)), ())
