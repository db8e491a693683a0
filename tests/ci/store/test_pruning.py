"""Which builds are dropped, and what is known of them afterwards."""

from __future__ import annotations

from collections.abc import Collection

from rlctl_ci.core.states import TERMINAL
from rlctl_ci.store import pruning
from rlctl_ci.store.records import Push
from rlctl_ci.web.metrics import ServiceMetrics
from tests.ci.world import MAIN, Service, hopeless, sha


def old(service: Service, *, keep: int = 1, gone: Collection[str] = (), until: float | None = None) -> list[int]:
    later = service.clock() + 1 if until is None else until
    return pruning.old(service.database, keep=keep, until=later, gone=gone)


def built(service: Service, *numbers: int) -> None:
    for number in numbers:
        service.hook(number)
        service.drain()


def failed(service: Service, *numbers: int) -> None:
    for number in numbers:
        service.outside.faults["make"] = [hopeless("make")]
        built(service, number)


def code(*numbers: int) -> list[str]:
    """Code folders that the builds of those commits have made."""
    return [f"/code/{sha(number)}" for number in numbers]


def test_of_each_branch_the_newest_builds_stay_and_those_that_were_deployed_last(service: Service) -> None:
    failed(service, 1)
    built(service, 2, 3)
    failed(service, 4, 5, 6)
    assert old(service, gone=code(2, 3)) == [1, 2, 4, 5], "3 runs, 6 is the newest"
    assert old(service, keep=2, gone=code(2, 3)) == [1, 4]


def test_what_is_young_or_not_over_stays(service: Service) -> None:
    failed(service, 1, 2)
    service.hook(3)
    assert old(service, until=service.clock()) == []
    assert old(service) == [1, 2]


def test_a_build_whose_work_is_still_there_stays_unless_a_later_one_has_made_the_same(service: Service) -> None:
    built(service, 1, 2, 3)
    assert old(service) == []
    assert old(service, gone=code(1)) == [1]
    with service.database.write() as db:
        db.execute("UPDATE artifacts SET reference = ? WHERE build = 1", code(2))
    assert old(service) == [1]


def test_the_build_that_a_branch_is_pinned_for_stays(service: Service) -> None:
    service.outside.bad.add(sha(1))
    built(service, 1)
    failed(service, 2, 3)
    assert old(service, gone=code(1)) == [2]


def test_a_rollback_that_is_not_finished_stays(service: Service) -> None:
    built(service, 1, 2)
    service.queue.take_back("pole", "pole", "ana")
    service.people.resume("pole")
    for number in (3, 4):
        service.queue.cancel(service.hook(number) or 0, "it waits for the run")
    assert old(service, gone=code(1, 2)) == [3]


def test_what_is_dropped_leaves_nothing_and_its_delivery_is_still_known(service: Service) -> None:
    failed(service, *range(1, 401))
    gone = old(service)
    assert gone == list(range(1, 400))
    metrics = ServiceMetrics(service)  # type: ignore[arg-type]
    counted = metrics.page()
    for some in (gone[:300], gone[300:]):
        pruning.forget(service.database, some, delivered_until=0.0)
    assert service.states() == {400: "failed"}
    line = b'rlctl_ci_builds_total{result="failed"} 400.0'
    assert line in counted
    assert line in metrics.page()
    left = service.database.read(
        "SELECT (SELECT count(*) FROM events WHERE build < 400) + (SELECT count(*) FROM artifacts)"
        " + (SELECT count(*) FROM deploys)"
    )
    assert left[0][0] == 0
    again = service.queue.accept("pole", Push(MAIN, sha(7)), recipe="r", delivery=f"d-{MAIN}-7")
    assert (again.build, again.new) == (None, False)
    assert service.states() == {400: "failed"}


def test_a_delivery_that_is_forgotten_and_comes_again_deploys_nothing(service: Service) -> None:
    built(service, 1, 2, 3)
    pruning.forget(service.database, old(service, gone=code(1)), delivered_until=service.clock() + 1)
    service.told(1)
    service.drain()
    assert service.outside.history == [sha(0), sha(1), sha(2), sha(3)]
    assert set(service.states().values()) <= TERMINAL
