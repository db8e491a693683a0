"""Where the time of a build has gone, in numbers and in words."""

from __future__ import annotations

from rlctl_ci.core.stages import Event, in_words, seconds
from tests.ci.world import Service

GOOD: list[Event] = [
    (10.0, "received", "hook"), (10.5, "queued", ""), (11.0, "fetching", "attempt 1"), (11.25, "building", ""),
    (12.0, "pushing", ""), (12.0, "deploying", ""), (20.0, "verifying", ""), (50.0, "succeeded", ""),
]  # fmt: skip


def test_redeployed_is_when_every_replica_has_reported_and_verified_when_the_watch_is_over() -> None:
    assert seconds(GOOD) == {
        "stages": {"received": 0.5, "queued": 0.5, "fetching": 0.25, "building": 0.75, "pushing": 0.0,
                   "deploying": 8.0, "verifying": 30.0},
        "redeployed": 10.0, "verified": 40.0,
    }  # fmt: skip
    assert in_words(GOOD).startswith("redeployed 10.0 s after the push, verified after 40.0 s (received 0.5")


def test_attempts_are_added_up_and_a_build_that_is_under_way_is_told_as_far_as_it_has_come() -> None:
    events = [
        *GOOD[:4],
        (13.0, "interrupted", ""),
        (13.0, "queued", ""),
        (18.0, "fetching", ""),
        (19.0, "building", ""),
    ]
    found = seconds(events)
    assert found["stages"]["fetching"] == 1.25
    assert found["stages"]["queued"] == 5.5
    assert (found["redeployed"], found["verified"]) == (None, None)


def test_a_build_without_a_deployment_is_not_verified() -> None:
    events = [*GOOD[:5], (13.0, "ignored", "run pole does not run: built, and nothing redeployed")]
    assert (seconds(events)["redeployed"], seconds(events)["verified"]) == (None, None)


def test_a_build_is_deploying_until_its_target_says_that_everybody_has_reported(service: Service) -> None:
    number = service.hook(1)
    assert number is not None
    seen = []
    verify = service.outside.verify

    def watching(job, deploy, redeployed):  # type: ignore[no-untyped-def]
        seen.append(service.reading.build(number).state)
        said = verify(job, deploy, redeployed)
        seen.append(service.reading.build(number).state)
        return said

    service.outside.verify = watching  # type: ignore[method-assign]
    service.drain()
    assert seen == ["deploying", "verifying"]
    assert "every replica runs the new code" in service.reading.events(number)[6][2]
