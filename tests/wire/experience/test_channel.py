"""Senders that come, go and fall behind, a receiver that is restarted: in any order the rows add up."""

from __future__ import annotations

import tempfile
import time

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rlctl_agents.types.experience import SegmentBlock
from rlctl_agents.wire.experience import ExperienceSender, Outcome
from rlctl_agents.wire.sockets import Wire
from tests.wire.pair import LIMIT_S, STEPS, Clock, make_receiver, make_sender, offer

BUDGET_ROWS = 10 * STEPS
LARGEST_BLOCK = 3


class ChannelMachine(RuleBasedStateMachine):
    """The real ends over a real socket; only the clock is ours."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.address = f"ipc://{self.folder.name}/socket"
        self.wire, self.clock = Wire(), Clock()
        self.senders: list[ExperienceSender] = []
        self.boots = 0
        self.unsettled: list[tuple[SegmentBlock, int]] = []
        self.term = 1
        self.open_receiver()

    def open_receiver(self) -> None:
        self.boots += 1
        self.receiver = make_receiver(
            self.wire,
            self.address,
            boot=f"receiver-{self.boots}",
            budget_rows=BUDGET_ROWS,
            term=self.term,
            clock=self.clock,
        )

    def pick(self, index: int) -> ExperienceSender:
        return self.senders[index % len(self.senders)]

    @rule(on_policy=st.booleans())
    def start_sender(self, on_policy: bool) -> None:
        if len(self.senders) < 4:
            self.boots += 1
            self.senders.append(
                make_sender(
                    self.wire,
                    self.address,
                    boot=f"sender-{self.boots}",
                    term=self.term,
                    on_policy=on_policy,
                    clock=self.clock,
                )
            )

    @precondition(lambda self: self.senders)
    @rule(index=st.integers(0, 9), streams=st.integers(1, LARGEST_BLOCK), count=st.integers(1, 4))
    def offer(self, index: int, streams: int, count: int) -> None:
        for _ in range(count):
            offer(self.pick(index), streams)

    @precondition(lambda self: self.senders)
    @rule(index=st.integers(0, 9))
    def poll_sender(self, index: int) -> None:
        self.pick(index).poll(0.001)

    @rule()
    def poll_receiver(self) -> None:
        self.unsettled += [(segment, segment.rows) for segment in self.receiver.poll(0.001)]

    @rule(rows=st.integers(1, 12), outcome=st.sampled_from(["consumed", "stale", "invalid", "fenced"]))
    def settle(self, rows: int, outcome: Outcome) -> None:
        if not self.unsettled:  # no precondition: what has come depends on time, and rules must not
            return
        segment, left = self.unsettled.pop(0)
        rows = min(rows, left)
        self.receiver.settle(segment, outcome, rows)
        if left > rows:
            self.unsettled.insert(0, (segment, left - rows))

    @rule(seconds=st.sampled_from([0.3, 1.1, 3.0, 4.5, 7.0]))
    def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule()
    def restart_receiver(self) -> None:
        self.receiver.close()
        self.unsettled.clear()
        self.open_receiver()

    @precondition(lambda self: self.senders)
    @rule(index=st.integers(0, 9))
    def kill_sender(self, index: int) -> None:
        sender = self.senders.pop(index % len(self.senders))
        sender._socket.close(0)

    @rule(senders=st.booleans())
    def change_manager(self, senders: bool) -> None:
        self.term += 1
        self.receiver.term = self.term
        for sender in self.senders if senders else []:
            sender.term = self.term

    @invariant()
    def the_budget_holds(self) -> None:
        assert self.receiver.outstanding <= BUDGET_ROWS

    @invariant()
    def every_row_of_a_sender_is_somewhere(self) -> None:
        for sender in self.senders:
            ledgers = list(sender.ledgers.values())
            if ledgers:
                sent = sum(ledger.sent for ledger in ledgers)
                assert ledgers[0].produced == sent + ledgers[0].dropped + sender.pending

    @invariant()
    def every_row_received_is_somewhere(self) -> None:
        queued = 0
        for account in self.receiver.accounts.values():
            decided = account.consumed + account.stale + account.fenced + account.invalid
            assert account.received == decided + account.queued
            assert account.received + account.lost == account.ledger.sent
            queued += account.queued
        assert queued == self.receiver.queued == sum(rows for _, rows in self.unsettled)

    def teardown(self) -> None:
        """Left in peace, everything that waits arrives, and both ends come to the same totals."""
        try:
            for sender in self.senders:
                sender.term = self.term
            end = time.monotonic() + LIMIT_S
            while not self.at_rest():
                assert time.monotonic() < end, [
                    (sender.ledgers, sender.pending, sender.refused) for sender in self.senders
                ]
                self.clock.now += 0.2
                for sender in self.senders:
                    sender.poll(0.0)
                self.poll_receiver()
                while self.unsettled:
                    self.settle(LARGEST_BLOCK * STEPS, "consumed")
        finally:
            self.wire.close()
            self.folder.cleanup()

    def at_rest(self) -> bool:
        accounts = self.receiver.accounts
        for sender in self.senders:
            account = accounts.get(sender._boot)
            ledger = sender.ledgers.get(self.receiver._boot)
            if sender.pending or account is None or ledger is None or account.ledger != ledger:
                return False
            assert ledger.sent == account.received + account.lost
        return True


TestChannel = pytest.mark.timeout(300)(ChannelMachine.TestCase)
TestChannel.settings = settings(max_examples=25, stateful_step_count=40, deadline=None, derandomize=True)
