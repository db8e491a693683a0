"""Credit-based flow control: one budget of rows, divided among all senders. Pure bookkeeping, without sockets or
clocks."""

from __future__ import annotations

from dataclasses import dataclass

AHEAD_BLOCKS = 8
"""Most blocks of credit that a sender gets before it asks."""
OUTSIZED = 8
"""Factor above the median of the blocks of live senders at which a block is too large; most of them would have to lie
to move that."""


@dataclass(slots=True)
class Peer:
    """Credit of one sender, in rows; totals since its first block to this receiver."""

    boot: str
    block_rows: int = 0  # of its largest block; 0: not known yet
    sent: int = 0  # as it stated last
    limit: int = 0  # newest granted: it may send until `sent` reaches this
    bound: int = 0  # the highest limit that it may still act on
    most: int = 0  # the highest limit ever granted
    queued: int = 0  # received, not settled
    want: int = 0  # waits at the sender
    number: int = 0  # of the newest grant
    recall: int = 0  # number of the grant that lowered the limit, until it is acknowledged; 0: none
    live: bool = False

    @property
    def unused(self) -> int:
        """Rows that it may send, or has sent and the receiver has not seen."""
        left = self.bound - self.sent
        return left if left > 0 else 0

    @property
    def held(self) -> int:
        """Rows of the budget that it takes up."""
        return self.unused + self.queued


class Credits:
    """Credit of all senders out of one budget of rows.

    Outstanding are rows granted and not used, and rows received and not settled. They never exceed `budget`, with one
    exception against a deadlock: while fewer rows are queued than the receiver gathers before it settles any,
    and no sender holds credit, one sender may get one block, however large it is.

    Senders with rows waiting are served in the order in which they asked. A sender under its share (the budget over the
    number of live senders) gets up to that; one above it gets one block at a time, and only after it has used its
    credit. What is left is granted to others in advance. When a sender has to wait, credit is recalled from those that
    hold some and have nothing to send, and from those that hold more than their share.

    A block is as large as its sender says. One that is larger than share, batch and OUTSIZED times the median waits
    until none of the others does and none sends, and the receiver recalls its credit as soon as another waits.

    Args:
        budget_rows: at least 1, and at least `batch_size`.
        batch_size: rows that the receiver gathers before it settles any; 0: it settles rows as they come.
        queue_rows: no credit is granted while so many rows are queued, because waiting rows grow old; 0: no such limit,
            else at least `batch_size`.
        most_rows: the budget grows to a block of each live sender, up to this: what one makes while it holds credit for
            it keeps no other from its work. 0: it does not grow.

    Raises:
        ValueError: the limits do not fit each other.
    """

    def __init__(self, budget_rows: int, batch_size: int = 0, queue_rows: int = 0, most_rows: int = 0) -> None:
        self.resize(budget_rows, batch_size, queue_rows)
        self._most_rows = most_rows
        self._block_each = 0  # rows of one block of each live sender
        self._median = ((0, 0), 0)  # of these blocks, and the sum and the number of senders that it is of
        self.outstanding = 0
        self.queued = 0  # of these, received
        self.short = False  # a sender has rows waiting, and others have all the credit
        self._live: dict[str, Peer] = {}
        self._asking: dict[str, Peer] = {}  # in the order in which they asked
        self._idle: dict[str, Peer] = {}  # could use more
        self._spare: dict[str, Peer] = {}  # hold credit that they cannot or need not use
        self._ahead: dict[str, Peer] = {}  # hold credit for several blocks
        self._recalled: dict[str, Peer] = {}  # have been asked to give credit back

    def resize(self, budget_rows: int, batch_size: int, queue_rows: int) -> None:
        """Change the limits. A smaller budget is met as soon as enough outstanding rows have come back.

        Raises:
            ValueError: they do not fit each other.
        """
        if budget_rows < max(batch_size, 1):
            raise ValueError(f"budget_rows must be at least {max(batch_size, 1)}, got {budget_rows}")
        if queue_rows and queue_rows < batch_size:
            raise ValueError(f"queue_rows must be at least {batch_size}, got {queue_rows}")
        self.budget_rows = budget_rows
        self.batch_size = batch_size
        self.queue_rows = queue_rows

    def hear(self, peer: Peer, *, sent: int, want: int, grant: int, block_rows: int = 0) -> None:
        """Record a sender's newest state: its total, its waiting rows, and the newest grant it acknowledges."""
        before = peer.held
        self._block_each -= peer.block_rows if peer.live else 0
        peer.live = True
        self._live[peer.boot] = peer
        peer.sent = max(sent, peer.sent)
        peer.want = want
        peer.block_rows = max(block_rows, peer.block_rows, 1 if want else 0)
        self._block_each += peer.block_rows
        if peer.recall and grant >= peer.recall:
            peer.recall = 0
            peer.bound = peer.limit = max(peer.limit, peer.sent)
        self.outstanding += peer.held - before
        self._place(peer)

    def queue(self, peer: Peer, rows: int) -> None:
        """Record rows that came and wait to be settled."""
        peer.queued += rows
        self.queued += rows
        self.outstanding += rows

    def settle(self, peer: Peer, rows: int) -> None:
        """Record rows as settled."""
        assert rows <= peer.queued, "more rows settled than came"
        peer.queued -= rows
        self.queued -= rows
        self.outstanding -= rows
        self._place(peer)

    def pause(self, peer: Peer) -> None:
        """Grant a sender nothing more until it is heard again; its unused credit stays valid."""
        self._block_each -= peer.block_rows if peer.live else 0
        peer.live = False
        self._live.pop(peer.boot, None)
        self._place(peer)

    def forget(self, peer: Peer) -> None:
        """Take back the unused credit of a sender that is silent or refused; its queued rows stay."""
        self.outstanding -= peer.unused
        peer.bound = peer.limit = peer.sent
        peer.recall = peer.want = 0
        self.pause(peer)

    @property
    def budget(self) -> int:
        """Rows that may be outstanding now."""
        return max(self.budget_rows, min(self._most_rows, self._block_each))

    def deal(self, *, quiet: bool = True) -> list[Peer]:
        """Grant the free credit; returns the senders whose limit has changed, which have to be sent a grant.

        Args:
            quiet: no sender sends at present.
        """
        dealt: list[Peer] = []
        self.short = False
        if self.queue_rows and self.queued >= self.queue_rows:
            return dealt
        budget = self.budget
        share = self._share
        passed: set[str] = set()
        while self._asking:
            peer = next(iter(self._asking.values()))
            if peer.held >= share and peer.unused >= peer.block_rows:
                del self._asking[peer.boot]  # it may have more when it has sent some
                continue
            outsized = self.outsized(peer)
            if outsized and peer.boot not in passed:
                passed.add(peer.boot)
                self._asking[peer.boot] = self._asking.pop(peer.boot)  # to the end of the queue
                continue
            if outsized and not quiet:
                break
            free = budget - self.outstanding
            least = peer.block_rows - peer.unused if peer.unused < peer.block_rows else peer.block_rows
            stuck = self.outstanding - self.queued == peer.unused < peer.block_rows
            if least > free and not (stuck and self.queued < max(self.batch_size, 1)):
                self.short = not outsized
                return dealt + self._call_back(least - free, share)
            more = min(peer.want - peer.unused, share - peer.held, free) - least
            del self._asking[peer.boot]  # and to the end of the queue, if that is not all it wants
            self._give(peer, least + max(more // peer.block_rows, 0) * peer.block_rows)
            dealt.append(peer)
        while self._idle:
            peer = next(iter(self._idle.values()))
            room = min(AHEAD_BLOCKS * peer.block_rows, share - peer.queued) - peer.unused
            free = budget - self.outstanding
            if room >= peer.block_rows > free:
                break
            del self._idle[peer.boot]
            if room >= peer.block_rows:
                self._give(peer, min(room, free) // peer.block_rows * peer.block_rows)
                dealt.append(peer)
        return dealt

    @property
    def _share(self) -> int:
        return self.budget // max(len(self._live), 1)

    def outsized(self, peer: Peer) -> bool:
        """True if a sender says that its block is far larger than those of the others."""
        if peer.block_rows <= max(self._share, self.batch_size):
            return False
        if self._median[0] != (now := (self._block_each, len(self._live))):  # sorted when one has come, gone or grown
            blocks = sorted(other.block_rows for other in self._live.values() if other.block_rows)
            self._median = now, blocks[(len(blocks) - 1) // 2] if blocks else peer.block_rows
        return peer.block_rows > OUTSIZED * self._median[1]

    def _place(self, peer: Peer) -> None:
        boot, unused, free = peer.boot, peer.unused, peer.live and not peer.recall
        asks = free and peer.want > unused
        for place, belongs in (
            (self._asking, asks),
            (self._idle, free and not asks and 2 * unused <= AHEAD_BLOCKS * peer.block_rows > 0),
            (self._spare, free and unused and (peer.want == 0 or unused < peer.block_rows)),
            (self._ahead, free and unused > peer.block_rows),
            (self._recalled, peer.live and peer.recall),
        ):
            if belongs:
                place[boot] = peer  # one that is there already keeps its position
            else:
                place.pop(boot, None)

    def _give(self, peer: Peer, rows: int) -> None:
        assert rows > 0, "a grant of nothing"
        before = peer.held
        peer.limit = peer.bound = max(peer.bound, peer.sent) + rows
        peer.most = max(peer.most, peer.limit)
        peer.number += 1
        self.outstanding += peer.held - before
        self._place(peer)

    def recall(self, peer: Peer, keep: int = 0) -> None:
        """Recall a sender's unused credit, except `keep` rows; the caller has to send the grant."""
        peer.number += 1
        peer.limit, peer.recall = peer.sent + keep, peer.number
        self._place(peer)

    def _call_back(self, rows: int, share: int) -> list[Peer]:
        """Recall so many rows of credit that other senders do not need, or hold beyond their share.

        A sender above its share by less than a block is spared: it got that block in its turn, perhaps just now, and
        is sent one grant for both: it would not see a recall of credit that it has not heard of, and would not reply.
        """
        called: list[Peer] = []
        rows -= sum(min(peer.unused, peer.bound - peer.limit) for peer in self._recalled.values())
        for peer in sorted(self._spare.values(), key=lambda peer: -peer.unused):
            if rows <= 0:
                return called
            rows -= peer.unused
            self.recall(peer)
            called.append(peer)
        if rows > 0:
            ahead = [peer for peer in self._ahead.values() if peer.unused >= share + peer.block_rows]
            for peer in ahead:
                self.recall(peer, keep=max(share // peer.block_rows, 1) * peer.block_rows)
                called.append(peer)
        return called
