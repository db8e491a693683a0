from __future__ import annotations

from rlctl_agents.types.experience import ModelRef
from rlctl_agents.wire.notice import NoticePublisher, NoticeSubscriber
from rlctl_agents.wire.sockets import Wire
from tests.wire.pair import until


def listen(publisher: NoticePublisher, subscriber: NoticeSubscriber, ref: ModelRef) -> None:
    """Publish until the subscription has come through."""
    until(lambda: subscriber.latest() == ref, lambda: publisher.publish(ref))


def last(publisher: NoticePublisher, subscriber: NoticeSubscriber, newest: ModelRef) -> ModelRef | None:
    """The last of what comes until the newest does, and of what comes after it.

    ZeroMQ may hold a message back until the next one is written; a modelpool says the newest again every second.
    """
    found: list[ModelRef | None] = []
    until(lambda: newest in found, lambda: found.append(subscriber.latest()), lambda: publisher.publish(newest))
    subscriber._socket.poll(50)
    return subscriber.latest() or newest


def deliver(publisher: NoticePublisher, subscriber: NoticeSubscriber, frame: bytes) -> None:
    """Send a frame that is no notice, again when it was held back, until it is counted."""
    before = subscriber.rejected
    publisher._socket.send(frame)
    until(
        lambda: subscriber.rejected > before,
        lambda: subscriber._socket.poll(500) or publisher._socket.send(frame),
        subscriber.latest,
    )


def test_a_subscriber_that_looks_late_finds_the_newest_notice_only(wire: Wire, address: str) -> None:
    publisher = NoticePublisher(wire, address)
    subscriber = NoticeSubscriber(wire, address, "main")
    listen(publisher, subscriber, ModelRef("main", 0, 0))
    for version in range(1, 500):
        publisher.publish(ModelRef("main", 1, version))
    assert last(publisher, subscriber, ModelRef("main", 1, 499)) == ModelRef("main", 1, 499)
    assert subscriber.rejected == 0


def test_a_notice_of_one_policy_does_not_displace_that_of_another(wire: Wire, address: str) -> None:
    publisher = NoticePublisher(wire, address)
    main, other = (NoticeSubscriber(wire, address, policy) for policy in ("main", "main-exploiter"))
    listen(publisher, main, ModelRef("main", 0, 0))
    listen(publisher, other, ModelRef("main-exploiter", 0, 0))
    publisher.publish(ModelRef("main", 0, 5))
    for version in range(100):
        publisher.publish(ModelRef("main-exploiter", 0, version))
    assert last(publisher, main, ModelRef("main", 0, 5)) == ModelRef("main", 0, 5)
    assert last(publisher, other, ModelRef("main-exploiter", 0, 99)) == ModelRef("main-exploiter", 0, 99)


def test_publishing_without_subscribers_does_not_wait(wire: Wire, address: str) -> None:
    publisher = NoticePublisher(wire, address)
    for version in range(10_000):
        publisher.publish(ModelRef("main", 0, version))
    late = NoticeSubscriber(wire, address, "main")
    listen(publisher, late, ModelRef("main", 0, 10_000))


def test_garbage_is_counted_and_no_notice(wire: Wire, address: str) -> None:
    publisher = NoticePublisher(wire, address)
    subscriber = NoticeSubscriber(wire, address, "main")
    listen(publisher, subscriber, ModelRef("main", 0, 0))
    for count, frame in enumerate([b"main\0", b"main\0\xff\xff", b"main\0" + b"\x91" * 3000], start=1):
        deliver(publisher, subscriber, frame)
        assert subscriber.rejected >= count
    assert subscriber.latest() is None
