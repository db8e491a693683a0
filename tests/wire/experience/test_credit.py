from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rlctl_agents.wire.experience.credit import AHEAD_BLOCKS, Credits, Peer


def ask(credits: Credits, peer: Peer, want: int, block_rows: int = 10) -> None:
    credits.hear(peer, sent=peer.sent, want=want, grant=peer.number, block_rows=block_rows)


def send(credits: Credits, peer: Peer, rows: int, want: int = 0) -> None:
    credits.hear(peer, sent=peer.sent + rows, want=want, grant=peer.number)
    credits.queue(peer, rows)


def test_a_lone_sender_gets_one_block_larger_than_the_budget_and_the_next_when_it_is_settled() -> None:
    credits, peer = Credits(30), Peer("a")
    ask(credits, peer, want=500, block_rows=100)
    credits.deal()
    assert peer.unused == 100
    send(credits, peer, 100, want=400)
    assert not credits.deal()
    credits.settle(peer, 100)
    credits.deal()
    assert peer.unused == 100


def test_a_batch_that_ends_inside_a_large_block_can_still_be_filled() -> None:
    strict, credits = Credits(20), Credits(20, batch_size=15)
    for each in (strict, credits):
        ask(each, peer := Peer("a"), want=100, block_rows=20)
        each.deal()
        send(each, peer, 20, want=80)
        each.settle(peer, 15)
        each.deal()
        assert peer.unused == (20 if each is credits else 0)
        assert each.outstanding == (25 if each is credits else 5)


def test_senders_with_rows_waiting_take_turns_when_the_budget_is_short() -> None:
    credits, peers = Credits(10), [Peer(name) for name in "abc"]
    for peer in peers:
        ask(credits, peer, want=1000)
    order = ""
    for _ in range(9):
        for peer in credits.deal():
            order += peer.boot
            send(credits, peer, 10, want=1000)
            credits.settle(peer, 10)
    assert order == "abcabcabc"


def test_the_budget_grows_to_a_block_of_each_sender_up_to_its_most() -> None:
    credits, peers = Credits(16, queue_rows=16, most_rows=45), [Peer(name) for name in "abcdef"]
    for peer in peers:
        ask(credits, peer, want=10)
    assert credits.budget == 45
    assert [peer.boot for peer in credits.deal()] == ["a", "b", "c", "d"], "what one makes keeps no other waiting"
    for peer in peers[1:]:
        credits.forget(peer)
    assert credits.budget == 16
    send(credits, peers[0], 10, want=10)
    credits.queue(peers[0], 6)
    assert not credits.deal(), "what waits to be taken in does"


def test_credit_that_nobody_asks_for_is_given_ahead_but_within_shares() -> None:
    credits, peers = Credits(100), [Peer(name) for name in "ab"]
    for peer in peers:
        ask(credits, peer, want=0)
    credits.deal()
    assert [peer.unused for peer in peers] == [50, 50]
    lone = Credits(10_000)
    ask(lone, peer := Peer("c"), want=0)
    lone.deal()
    assert peer.unused == AHEAD_BLOCKS * 10


def test_unused_credit_is_called_back_for_a_newcomer_and_free_only_when_heeded() -> None:
    credits, old, new = Credits(80), Peer("old"), Peer("new")
    ask(credits, old, want=0)
    credits.deal()
    assert old.unused == 80
    ask(credits, new, want=10)
    assert credits.deal() == [old]
    assert (old.limit, old.bound) == (0, 80), "it may have sent already"
    assert not credits.deal(), "asked once"
    send(credits, old, 10, want=0)  # was on its way, and says that the newest grant was heeded
    assert old.unused == 0
    assert credits.deal()[0] is new
    assert new.unused >= 10


def test_a_sender_with_rows_waiting_keeps_its_share() -> None:
    credits, old, new = Credits(80), Peer("old"), Peer("new")
    ask(credits, old, want=80)
    credits.deal()
    assert old.unused == 80, "alone"
    ask(credits, new, want=10)
    assert credits.deal() == [old]
    assert (old.limit, old.bound) == (40, 80), "it may have sent already"
    assert not credits.deal(), "asked once"
    send(credits, old, 10, want=70)
    assert (old.unused, old.limit) == (30, 40)
    assert credits.deal()[0] is new


def test_a_sender_that_uses_nothing_gets_no_more_than_its_share() -> None:
    credits, greedy, honest = Credits(80), Peer("greedy"), Peer("honest")
    ask(credits, honest, want=0)
    ask(credits, greedy, want=10**12)
    for _ in range(20):
        credits.deal()
        ask(credits, greedy, want=10**12)
    assert greedy.unused == 40
    ask(credits, honest, want=40)
    credits.deal()
    assert honest.unused == 40


def test_a_sender_that_states_a_huge_block_neither_stops_the_others_nor_takes_their_credit() -> None:
    credits, greedy, honest = Credits(80, batch_size=20), Peer("greedy"), [Peer(name) for name in "ab"]
    for peer in honest:
        ask(credits, peer, want=30)
    ask(credits, greedy, want=1, block_rows=81)
    for turn in range(9):
        credits.deal()
        assert greedy.unused == 0
        assert all(peer.unused >= 10 for peer in honest), f"it stands before them in turn {turn}"
        assert not credits.short, "nor are they blamed for what they hold"
        for peer in honest:
            send(credits, peer, 10, want=30)
            credits.settle(peer, 10)
    smaller = Peer("smaller")
    ask(credits, smaller, want=1, block_rows=81)
    credits.forget(greedy)
    for peer in honest:
        credits.forget(peer)
        ask(credits, peer, want=0)
    credits.deal(quiet=False)
    assert smaller.unused == 0
    for peer in honest:
        credits.forget(peer)
        ask(credits, peer, want=0)
    credits.deal()
    assert smaller.unused == 81, "it has its turn when no other wants or holds any"


def test_a_block_given_in_turn_is_not_called_back_before_its_sender_has_heard_of_it() -> None:
    credits, peers = Credits(40), [Peer(name) for name in "abc"]
    for peer, want in zip(peers, (24, 24, 0), strict=True):  # a share is 13 rows, and a block 12
        ask(credits, peer, want=want, block_rows=12)
    told = credits.deal()
    assert [peer.unused for peer in peers] == [24, 12, 0]
    assert {peer.boot for peer in told} == {"a", "b"}
    assert credits.short
    assert peers[0].recall == 0


def test_credit_is_short_when_others_have_it_and_not_when_the_learner_is_slow() -> None:
    credits, one, other = Credits(20, 10, queue_rows=10), Peer("one"), Peer("other")
    ask(credits, one, want=10)
    credits.deal()
    assert not credits.short
    send(credits, one, 10, want=10)
    ask(credits, other, want=10)
    credits.deal()
    assert (other.unused, credits.short) == (0, False), "so many are queued that nobody gets any"
    credits.settle(one, 10)
    credits.deal()
    assert one.unused == other.unused == 10
    ask(credits, Peer("third"), want=10)
    credits.deal()
    assert credits.short


def test_a_forgotten_sender_returns_what_it_did_not_use() -> None:
    credits, gone, other = Credits(20), Peer("gone"), Peer("other")
    ask(credits, gone, want=20)
    credits.deal()
    send(credits, gone, 10, want=10)
    credits.forget(gone)
    assert credits.outstanding == 10
    ask(credits, other, want=30)
    credits.deal()
    assert other.unused == 10
    credits.settle(gone, 10)
    credits.deal()
    assert other.unused == 20


def test_hundreds_of_senders_all_get_their_turn_from_a_small_budget() -> None:
    credits, peers = Credits(100), [Peer(str(number)) for number in range(500)]
    for peer in peers:
        ask(credits, peer, want=10)
    served: list[str] = []
    for _ in range(60):
        for peer in credits.deal():
            served.append(peer.boot)
            send(credits, peer, 10)
            credits.settle(peer, 10)
    assert sorted(set(served), key=int) == [peer.boot for peer in peers]


@dataclass
class _Sender:
    """A sender as it is: what it believes lags behind what was granted."""

    peer: Peer
    block: int
    sent: int = 0
    pending: int = 0
    number: int = 0
    limit: int = 0


class CreditMachine(RuleBasedStateMachine):
    """Any order of asking, hearing grants late, sending, settling, silence and return."""

    batch_size = 0

    def __init__(self) -> None:
        super().__init__()
        self.credits = Credits(50, batch_size=self.batch_size)
        self.senders: list[_Sender] = []

    def pick(self, index: int) -> _Sender:
        return self.senders[index % len(self.senders)]

    def tell(self, sender: _Sender) -> None:
        self.credits.hear(
            sender.peer, sent=sender.sent, want=sender.pending, grant=sender.number, block_rows=sender.block
        )

    @rule(block=st.integers(1, 80))
    def arrive(self, block: int) -> None:
        if len(self.senders) < 6:
            self.senders.append(_Sender(Peer(str(len(self.senders))), block))
            self.tell(self.senders[-1])

    @precondition(lambda self: self.senders)
    @rule(index=st.integers(0, 9), blocks=st.integers(0, 3))
    def hello(self, index: int, blocks: int) -> None:
        sender = self.pick(index)
        sender.pending += blocks * sender.block
        self.tell(sender)

    @precondition(lambda self: self.senders)
    @rule(index=st.integers(0, 9))
    def hear_grant(self, index: int) -> None:
        sender = self.pick(index)
        sender.number, sender.limit = sender.peer.number, sender.peer.limit

    @precondition(lambda self: self.senders)
    @rule(index=st.integers(0, 9), lost=st.booleans())
    def send(self, index: int, lost: bool) -> None:
        sender = self.pick(index)
        rows = min(sender.block, sender.pending)
        if rows and sender.sent + rows <= sender.limit:
            sender.sent += rows
            sender.pending -= rows
            if not lost and sender.sent <= sender.peer.bound:  # else the receiver rejects it: more than granted
                self.credits.hear(sender.peer, sent=sender.sent, want=sender.pending, grant=sender.number)
                self.credits.queue(sender.peer, rows)

    @precondition(lambda self: self.senders)
    @rule(index=st.integers(0, 9), part=st.integers(1, 80))
    def settle(self, index: int, part: int) -> None:
        peer = self.pick(index).peer
        if peer.queued:
            self.credits.settle(peer, min(part, peer.queued))

    @precondition(lambda self: self.senders)
    @rule(index=st.integers(0, 9), wholly=st.booleans())
    def lose_sight(self, index: int, wholly: bool) -> None:
        peer = self.pick(index).peer
        (self.credits.forget if wholly else self.credits.pause)(peer)

    @rule()
    def deal(self) -> None:
        self.credits.deal()

    @invariant()
    def outstanding_is_the_sum_of_what_each_holds(self) -> None:
        assert self.credits.outstanding == sum(sender.peer.held for sender in self.senders)
        assert self.credits.queued == sum(sender.peer.queued for sender in self.senders)

    @invariant()
    def the_budget_holds_but_for_one_block_of_one_sender(self) -> None:
        if self.credits.outstanding > self.credits.budget_rows:
            holders = [sender.peer for sender in self.senders if sender.peer.unused]
            largest = max(sender.block for sender in self.senders)
            assert len(holders) <= 1
            assert self.credits.outstanding < max(self.batch_size, 1) + largest

    @invariant()
    def a_limit_is_never_above_what_is_accounted_for(self) -> None:
        assert all(sender.peer.limit <= sender.peer.bound for sender in self.senders)

    def settle_batch(self, rows: int) -> None:
        for sender in self.senders:
            part = min(rows, sender.peer.queued)
            if part:
                self.credits.settle(sender.peer, part)
                rows -= part

    def teardown(self) -> None:
        """However it came about: when rows are settled and messages arrive, every waiting row goes out in the end."""
        for _ in range(2000):
            if not any(sender.pending for sender in self.senders):
                return
            self.credits.deal()
            for index, sender in enumerate(self.senders):
                self.hear_grant(index)
                self.tell(sender)
                self.credits.deal()
                self.hear_grant(index)
                self.send(index, lost=False)
            while self.credits.queued >= max(self.batch_size, 1):
                self.settle_batch(max(self.batch_size, 1))
        raise AssertionError("a sender waits for ever")


class GatheringMachine(CreditMachine):
    """The same for a receiver that settles whole batches only."""

    batch_size = 37

    @precondition(lambda self: self.credits.queued >= self.batch_size)
    @rule()
    def settle(self) -> None:
        self.settle_batch(self.batch_size)


TestCreditMachine, TestGatheringMachine = CreditMachine.TestCase, GatheringMachine.TestCase
TestCreditMachine.settings = TestGatheringMachine.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, derandomize=True
)
