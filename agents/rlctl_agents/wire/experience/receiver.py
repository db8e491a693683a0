"""Receiver of the experience channel: grants credit, checks every message, accounts for every row."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Literal
from uuid import uuid4

import msgspec
import numpy as np
import zmq
from numpy.typing import NDArray

from rlctl_agents.types.control import Account
from rlctl_agents.types.experience import Arrays, Ledger, ModelRef, Schema, SegmentBlock, SegmentHeader
from rlctl_agents.wire.codec import PROTOCOL, BlockCodec, Rejected, receive
from rlctl_agents.wire.experience.credit import Credits, Peer
from rlctl_agents.wire.experience.protocol import (
    FORGET_AFTER_S,
    BlockMessage,
    Grant,
    Refusal,
    SenderHello,
    encode,
    schema_digest,
    to_receiver,
)
from rlctl_agents.wire.log_throttle import LogThrottle
from rlctl_agents.wire.sockets import Wire

Outcome = Literal["consumed", "stale", "fenced", "invalid"]

QUARANTINE_AFTER = 8
"""Malformed messages of one connection after which its messages are ignored."""
MAX_SENDERS = 65_536
"""Most sender boots whose accounts are kept; the oldest that is gone makes room."""
HELLOS, HELLOS_PER_S = 100.0, 10.0
"""Rate limit of the hellos of a connection: burst, and hellos per second. A block and a recall allow two more each."""
HELD_S = 60.0
"""Seconds after which credit that is not used, while other senders wait for some, is recalled; at once where a
block is far larger than those of the others."""
BARRED_S = 60.0
"""Seconds without credit for a sender that, since its last block, has held credit unused for so long, or has not
acknowledged a recall, for the second time; doubled each further time. Once is free: a simulator may be that slow."""
QUIET_S = 1.0
"""Seconds without a block after which one that is far larger than those of the others may have credit."""
_MALFORMED = frozenset(
    ("boot", "frames", "decode", "fields", "dtype", "shape", "size", "codec", "bool", "ledger", "streams")
)
_BATCH = 256  # most messages of one poll
_LOOK_EVERY_S = 0.5  # between two checks for silent senders
_PAUSE_S = 1.0  # a longer time between two polls is the receiver's absence, not the senders' silence

log = logging.getLogger(__name__)


class _Sender:
    """State of a sender boot: account, credit, lease and route."""

    def __init__(self, boot: str) -> None:
        self.account = Account(Ledger())
        self.peer = Peer(boot)
        self.sequence = 0  # of the next block
        self.route = b""
        self.ticket = ""  # the newest valid one, and when it was made
        self.leased_s = 0
        self.heard = 0.0
        self.used = 0.0  # a block came, or it held no credit
        self.recalled = (0, 0.0)  # number of the recall that it has not acknowledged, and since when
        self.offences = 0  # times that it held credit unused, or heeded no recall, since its last block
        self.barred_until = 0.0  # it gets no credit until then


class _Connection:
    """Connection of a sender, and the limits on its messages."""

    __slots__ = ("boot", "hellos", "looked", "strikes")

    def __init__(self, now: float) -> None:
        self.boot = ""  # the first that it named; no other is accepted
        self.strikes = 0
        self.hellos = HELLOS
        self.looked = now

    def takes_hello(self, now: float) -> bool:
        """True if one more hello may be read; it is counted."""
        self.hellos = min(HELLOS, self.hellos + HELLOS_PER_S * (now - self.looked))
        self.looked = now
        if self.hellos < 1.0:
            return False
        self.hellos -= 1.0
        return True


class ExperienceReceiver:
    """Receives blocks of segments from many senders within one budget of rows.

    Args:
        wire: of this process.
        address: where to listen.
        run: run uid; other runs are refused.
        boot: of this process.
        schema: of the segments; others are refused.
        budget_rows: rows that may be granted and not settled, over all senders; in lock-step at least two batches.
        term: of the manager; rows of an older one are counted as fenced and not delivered.
        leased_since_s: where the address is encrypted, credit is for boots with a ticket that is not older (unix time).
        batch_size: rows that the caller gathers before it settles any. While fewer are queued, one block may go beyond
            the budget, or a batch that ends inside a large block could never be filled.
        queue_rows: no new credit while so many rows are delivered and not settled; 0: no such limit.
        most_rows: the budget grows to a block of each sender, up to this; 0: it does not.
        check: describes the fault in the values of a block, given its `version`, the version of its newest weights and
            its fields; "" for none. After the first fault its sender is quarantined: its rows are counted as invalid.
        clock: monotonic seconds.

    One thread at a time; `accounts` may be read, and `wake` be called, from another.

    Raises:
        ValueError: an address that is not allowed, a schema that cannot be sent, or a budget below a batch.
        OSError: the address cannot be used.
    """

    address: str
    """Bound address."""
    term: int
    leased_since_s: int
    least_version: int
    """Oldest version of rows in a block that is begun with the next credit."""
    rejected: dict[str, int]
    """Rejected messages, by reason; their rows are counted as lost."""

    def __init__(
        self,
        wire: Wire,
        address: str,
        *,
        run: str,
        boot: str,
        schema: Schema,
        budget_rows: int,
        term: int,
        leased_since_s: int = 0,
        batch_size: int = 0,
        queue_rows: int = 0,
        most_rows: int = 0,
        check: Callable[[NDArray[np.int64], int, Arrays], str] = lambda version, newest, fields: "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.term = term
        self.leased_since_s = leased_since_s
        self.least_version = 0
        self.rejected = {}
        self._run, self._boot = run, boot
        self._codec = BlockCodec(schema)
        self._steps = schema.unroll_length
        self._digest = schema_digest(schema)
        self._credits = Credits(budget_rows, batch_size, queue_rows, most_rows)
        self._check = check
        self._clock = clock
        self._senders: dict[str, _Sender] = {}
        self._forgot = False  # True once an account made room: its sender may come back, and its total is trusted
        self._live: dict[str, _Sender] = {}
        self._asked: dict[str, None] = {}  # boots that are sent a grant next
        self._unsettled: dict[tuple[str, int], int] = {}  # (boot, sequence) -> rows
        self._connections: OrderedDict[bytes, _Connection] = OrderedDict()  # by routing id
        self._throttle = LogThrottle(clock)
        self._polled = self._look_at = self._came = clock()  # `_came`: a block
        self._lock = threading.Lock()  # accounts change as a whole
        self._told: dict[str, Account] = {}  # copies of accounts
        self._changed: set[str] = set()  # boots whose accounts differ from these
        self._socket, self.address = wire.bind(
            zmq.ROUTER, address, options={zmq.ROUTER_MANDATORY: 1, zmq.SNDHWM: 64, zmq.RCVHWM: 64}
        )
        self._keys = wire.keys if wire.encrypts(self.address) else None
        self._woken, within = wire.bind(zmq.PULL, f"inproc://wake-{uuid4().hex}")
        self._waker = wire.connect(zmq.PUSH, within)
        self._waking = threading.Lock()
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._woken, zmq.POLLIN)

    @property
    def accounts(self) -> dict[str, Account]:
        """Sender boot -> account of its rows; a copy, each account consistent in itself.

        Of tens of thousands of accounts a few hundred change between two reads, so only these are copied; the others
        are the same objects as before.
        """
        with self._lock:
            for boot in self._changed:
                if (sender := self._senders.get(boot)) is None:
                    self._told.pop(boot, None)
                else:
                    ledger = msgspec.structs.replace(sender.account.ledger)
                    self._told[boot] = msgspec.structs.replace(sender.account, ledger=ledger)
            self._changed.clear()
            return dict(self._told)

    @property
    def queued(self) -> int:
        """Rows delivered and not settled."""
        return self._credits.queued

    @property
    def outstanding(self) -> int:
        """Rows granted and not settled: what the budget bounds."""
        return self._credits.outstanding

    def poll(self, timeout_s: float) -> list[SegmentBlock]:
        """Receive blocks, in order of arrival per sender; waits up to `timeout_s` for the first, or until `wake`.

        Their arrays are read-only views on the message; each must be settled in the end.
        """
        until = time.monotonic() + timeout_s
        while True:
            segments = self._drain()
            self._forget_silent()
            self._deal()
            left = until - time.monotonic()
            if segments or left <= 0:
                return segments
            ready = dict(self._poller.poll(int(min(left, 0.5) * 1000) + 1))
            while self._woken in ready and receive(self._woken, 1, 0) is not None:
                until = 0.0

    def wake(self) -> None:
        """End the wait of `poll`, or of the next one if no thread waits; once closed, do nothing. From any thread."""
        with self._waking, suppress(zmq.Again):  # the queue is full of wake-ups: `poll` will not wait
            if not self._waker.closed:
                self._waker.send(b"", zmq.NOBLOCK)

    def settle(self, segment: SegmentBlock, outcome: Outcome, rows: int | None = None) -> None:
        """Record the outcome of a block, or of the next `rows` rows of it; the credit returns to the budget,
        and the next `poll` gives it out: one grant for all that was settled.

        Raises:
            ValueError: more rows than the block still has.
        """
        key = segment.header.boot, segment.header.sequence
        left = self._unsettled.get(key, 0)
        rows = left if rows is None else rows
        if not 0 < rows <= left:
            raise ValueError(f"{rows} rows of a block of which {left} are not settled")
        if rows == left:
            del self._unsettled[key]
        else:
            self._unsettled[key] = left - rows
        sender = self._senders[key[0]]
        with self._lock:
            self._changed.add(key[0])
            account = sender.account
            account.queued -= rows
            setattr(account, outcome, getattr(account, outcome) + rows)
        self._credits.settle(sender.peer, rows)

    def resize(self, budget_rows: int, batch_size: int, queue_rows: int) -> None:
        """Change the limits; credit that is granted stays granted.

        Raises:
            ValueError: they do not fit each other.
        """
        self._credits.resize(budget_rows, batch_size, queue_rows)
        self._deal()

    def close(self) -> None:
        """Stop listening."""
        self._socket.close(0)
        self._woken.close(0)
        with self._waking:
            self._waker.close(0)

    def _drain(self) -> list[SegmentBlock]:
        segments: list[SegmentBlock] = []
        now = self._clock()
        for _ in range(_BATCH):
            message = receive(self._socket, 2, self._codec.max_frames)
            if message is None:
                break
            head, frames = message
            route = head[0]
            connection = self._connections.get(route) or self._connect(route, now)
            if connection.strikes >= QUARANTINE_AFTER:
                self._count("quarantined", "")
                continue
            try:
                if len(head) < 2 or frames is None:
                    raise Rejected("frames", "not the number of frames of a message")
                said = to_receiver(head[1])
                if said.boot != connection.boot:
                    if connection.boot:
                        raise Rejected("boot", f"boot {said.boot} over the connection of {connection.boot}")
                    connection.boot = said.boot
                if isinstance(said, SenderHello):
                    if frames:
                        raise Rejected("frames", "a hello of several frames")
                    if connection.takes_hello(now):
                        self._hello(route, said, now)
                    else:
                        self._count("hellos", f"more hellos of {said.boot} than are looked at")
                else:
                    segments.append(self._block(said, frames, now))
                    connection.hellos += 2.0
            except Rejected as error:
                self._reject(route, connection, error)
        return segments

    def _connect(self, route: bytes, now: float) -> _Connection:
        if len(self._connections) >= MAX_SENDERS:
            self._connections.popitem(last=False)
        self._connections[route] = connection = _Connection(now)
        return connection

    def _hello(self, route: bytes, hello: SenderHello, now: float) -> None:
        if hello.run != self._run:
            raise Rejected("run", f"run {hello.run} instead of {self._run}")
        if hello.schema != self._digest:
            raise Rejected(
                "schema", f"schema {hello.schema} instead of {self._digest}: another environment or algorithm"
            )
        if hello.block_rows > self._codec.max_rows:
            raise Rejected("size", f"blocks of {hello.block_rows} rows, {self._codec.max_rows} are possible")
        sender = self._senders.get(hello.boot)
        leased_s = self._leased_s(hello, sender) if self._keys is not None else 0
        knows_us = hello.receiver == self._boot
        # a new sender, or one that knows our boot, has stated its totals; another has to hear our boot first
        stated, met = knows_us or sender is None, sender is None
        if sender is None:
            sender = self._meet(hello.boot)
        if knows_us:
            missing = hello.sent - sender.peer.sent
            if missing < 0 or hello.sequence < sender.sequence:
                raise Rejected("ledger", "totals that went back")
            if hello.sent > sender.peer.most and not (met and self._forgot):
                raise Rejected("ledger", f"{hello.sent - sender.peer.most} rows more than were ever granted")
            with self._lock:
                self._changed.add(hello.boot)
                sender.account.lost += missing
                sender.account.ledger = Ledger(hello.produced, hello.dropped, hello.sent)
            sender.sequence = hello.sequence
            if met:  # its account made room: it ignores grants that are older than the newest that it knows
                sender.peer.number, sender.peer.most = hello.grant, hello.sent
        sender.route, sender.heard = route, now
        sender.ticket, sender.leased_s = hello.ticket, leased_s
        if not sender.peer.unused:
            sender.used = now
        self._live[hello.boot] = sender
        self._credits.hear(
            sender.peer,
            sent=hello.sent if knows_us else sender.peer.sent,
            want=hello.want if stated else 0,
            grant=hello.grant if knows_us else 0,
            block_rows=hello.block_rows,
        )
        if sender.account.fault:
            self._credits.forget(sender.peer)
            raise _quarantined(sender)
        if hello.term < self.term:
            self._credits.forget(sender.peer)
            raise Rejected("term", f"term {hello.term}, the run is at {self.term}")
        if now < sender.barred_until:
            self._credits.pause(sender.peer)
        self._asked[hello.boot] = None

    def _leased_s(self, hello: SenderHello, sender: _Sender | None) -> int:
        """Unix time at which the manager last leased this boot, or heard from it."""
        assert self._keys is not None
        try:
            known = sender is not None and sender.ticket == hello.ticket
            made_s = sender.leased_s if known and sender else self._keys.made_s(hello.ticket, self._run, hello.boot)
        except ValueError as fault:
            raise Rejected("lease", str(fault)) from fault
        if made_s < self.leased_since_s:
            if sender is not None:
                self._credits.forget(sender.peer)
            raise Rejected("lease", f"boot {hello.boot} has had no lease for {self.leased_since_s - made_s} s and more")
        return made_s

    def _meet(self, boot: str) -> _Sender:
        sender = _Sender(boot)
        with self._lock:
            if len(self._senders) >= MAX_SENDERS:
                settled = (
                    boot for boot, old in self._senders.items() if boot not in self._live and not old.peer.queued
                )
                oldest = next(settled, None)
                if oldest is None:
                    raise Rejected("senders", f"{MAX_SENDERS} senders are known already")
                del self._senders[oldest]
                self._changed.add(oldest)
                self._forgot = True
            self._senders[boot] = sender
            self._changed.add(boot)
        return sender

    def _block(self, block: BlockMessage, frames: list[zmq.Frame], now: float) -> SegmentBlock:
        if block.run != self._run:
            raise Rejected("run", f"run {block.run} instead of {self._run}")
        if block.receiver != self._boot:
            raise Rejected("receiver", f"meant for {block.receiver}")
        sender = self._senders.get(block.boot)
        if sender is None:
            raise Rejected("unknown", "a block before hello")
        streams = len(block.stream) // 8
        if streams < 1 or len(block.stream) != 8 * streams or len(block.row0) != 8 * streams:
            raise Rejected("streams", f"{len(block.stream)} bytes of stream, {len(block.row0)} of row0")
        rows = streams * self._steps
        peer = sender.peer
        missing, skipped = block.sent - rows - peer.sent, block.sequence - sender.sequence
        if skipped < 0:
            raise Rejected("duplicate", f"block {block.sequence} again")
        if missing < skipped * self._steps or (skipped == 0 and missing):
            raise Rejected("ledger", f"{missing} rows missing in {skipped} blocks")
        fenced, fault = block.term < self.term, sender.account.fault
        if not fault:  # else its blocks are ignored, and it has no credit
            if block.sent > peer.bound:
                raise Rejected("credit", f"{block.sent - peer.bound} rows more than granted")
            version, fields = self._codec.unpack(streams, block.arrays, frames)
            fault = self._check(version, block.version, fields)
        ledger = Ledger(block.produced, block.dropped, block.sent)
        with self._lock:
            self._changed.add(block.boot)
            account = sender.account
            account.ledger = ledger
            account.lost += missing
            account.received += rows
            if fault:
                account.fault = fault
                account.invalid += rows
            elif fenced:
                account.fenced += rows
            else:
                account.queued += rows
        sender.sequence = block.sequence + 1
        sender.heard = sender.used = self._came = now
        sender.offences, sender.barred_until = 0, 0.0
        self._live[block.boot] = sender
        self._credits.hear(peer, sent=block.sent, want=block.want, grant=block.grant)
        if fault:
            self._credits.forget(peer)
            raise _quarantined(sender)
        if fenced:
            self._credits.pause(peer)
            raise Rejected("term", f"term {block.term}, the run is at {self.term}")
        self._credits.queue(peer, rows)
        self._unsettled[block.boot, block.sequence] = rows
        header = SegmentHeader(
            run=block.run,
            term=block.term,
            boot=block.boot,
            sequence=block.sequence,
            receiver=block.receiver,
            model=ModelRef(block.policy, block.lineage, block.version),
            stream=np.frombuffer(block.stream, "<i8").tolist(),
            row0=np.frombuffer(block.row0, "<i8").tolist(),
            ledger=ledger,
            build=block.build,
        )
        return SegmentBlock(header, version, fields)

    def _deal(self) -> None:
        for peer in self._credits.deal(quiet=self._clock() - self._came >= QUIET_S):
            self._asked[peer.boot] = None
        for boot in self._asked:  # one grant each, however often it asked and was dealt to
            self._tell(self._senders[boot])
        self._asked.clear()

    def _tell(self, sender: _Sender) -> None:
        peer = sender.peer
        if peer.recall and (connection := self._connections.get(sender.route)) is not None:
            connection.hellos += 2.0
        self._say(sender.route, Grant(PROTOCOL, self._boot, peer.number, peer.limit, peer.sent, self.least_version))

    def _say(self, route: bytes, message: Grant | Refusal) -> None:
        try:
            self._socket.send_multipart([route, encode(message)], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            # gone, or not reading: a live one says hello again, and limits are totals

    def _forget_silent(self) -> None:
        now = self._clock()
        pause, self._polled = now - self._polled, now
        if pause > _PAUSE_S:
            for sender in self._live.values():
                sender.heard, sender.used = min(sender.heard + pause, now), min(sender.used + pause, now)
                number, since = sender.recalled
                sender.recalled = number, min(since + pause, now)
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_EVERY_S
        for boot, sender in list(self._live.items()):
            if now - sender.heard >= FORGET_AFTER_S:
                self._credits.forget(sender.peer)
                del self._live[boot]
            elif self._keys is not None and sender.leased_s < self.leased_since_s and not sender.peer.recall:
                self._credits.recall(sender.peer)  # it answers with hello, and shows a newer ticket if it has one
                self._asked[boot] = None
            elif sender.peer.unused:
                self._require_use(sender, now)

    def _require_use(self, sender: _Sender, now: float) -> None:
        """Take back credit that others wait for, from a sender that neither uses it nor acknowledges its recall."""
        peer = sender.peer
        if peer.recall:
            number, since = sender.recalled
            if number != peer.recall:
                sender.recalled = peer.recall, now
            elif now - since >= FORGET_AFTER_S:  # it is heard, but does not acknowledge it
                self._bar(sender, now)
                self._credits.forget(peer)
        elif self._credits.short and (now - sender.used >= HELD_S or self._credits.outsized(peer)):
            self._bar(sender, now)
            self._credits.recall(peer)
            self._asked[peer.boot] = None

    def _bar(self, sender: _Sender, now: float) -> None:
        sender.offences += 1
        if sender.offences > 1:
            barred_s = BARRED_S * 2 ** (sender.offences - 2)
            sender.barred_until = now + barred_s
            log.warning("sender %s uses no credit while others wait: none for %g s", sender.peer.boot, barred_s)

    def _reject(self, route: bytes, connection: _Connection, error: Rejected) -> None:
        self._count(error.reason, str(error))
        if error.reason in _MALFORMED:
            connection.strikes += 1
        self._say(route, Refusal(PROTOCOL, self._boot, error.reason, str(error)[:500]))

    def _count(self, reason: str, text: str) -> None:
        self.rejected[reason] = count = self.rejected.get(reason, 0) + 1
        if self._throttle.due(reason):
            log.warning("message rejected (%s, %d so far): %s", reason, count, text)


def _quarantined(sender: _Sender) -> Rejected:
    return Rejected("values", f"quarantined until it is started anew: {sender.account.fault}")
