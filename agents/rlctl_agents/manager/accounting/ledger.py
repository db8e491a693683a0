"""Ledger of rows: books kept from the reports of senders and receivers, and checks that can fail.

A sender reports how many rows it has produced, dropped, sent to each receiver, and still has. A receiver reports for
each sender how many rows arrived, how many are missing in between, and what became of them. Both report totals since
their boot, so a report that is lost, late or repeated changes nothing. The books balance when

    produced = dropped + sent + at the sender
    sent     = received + missing + on the way
    received = consumed + stale + fenced + invalid + queued

Rows at a sender, on the way or queued are in flight while the processes that hold them live, and lost afterwards. Those
on the way to a receiver that their sender has left for another are lost, too, unless they arrive.

A learner that dies loses what it learned since its newest generation. Rows that only such lost weights were learned
from were consumed as well, but are counted as discarded:

    consumed by all learners ever = consumed (the present weights were learned from them) + discarded

A row is consumed once, however often it is learned from: reuse does not change these books. `learned_steps` of a policy
counts it (`Trainer.learned_steps`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from rlctl_agents.types.control import Account
from rlctl_agents.types.experience import Ledger

TOLERATED_REPORTS = 2
"""Contradictory reports of one process in a row that may be numbers read one after the other; more are a fault."""
LEFT_REPORTS = 10
"""Reports in which a sender has sent to others of the policy alone, after which it has left the receiver before."""
MAX_FAULTS = 5
MOST_RECEIVERS = 1000
"""Receivers of one sender, at most: a process with an actor's key may name any."""
ENDED = "*"
"""Prefix of the key `ENDED + policy`, under which all receivers of a policy that never come back are merged into one: a
sender that lives for months outlives many."""


class Rows(msgspec.Struct):
    """Rows of one policy by their fate."""

    produced: int = 0
    consumed: int = 0
    dropped: int = 0
    stale: int = 0
    fenced: int = 0
    invalid: int = 0
    lost: int = 0
    in_flight: int = 0
    discarded: int = 0

    @property
    def difference(self) -> int:
        """Rows produced, minus the sum over all fates: 0 when the books balance."""
        refused = self.dropped + self.stale + self.fenced + self.invalid
        return self.produced - (self.consumed + self.discarded + refused + self.lost + self.in_flight)

    def add(self, other: Rows) -> None:
        self.produced += other.produced
        self.consumed += other.consumed
        self.dropped += other.dropped
        self.stale += other.stale
        self.fenced += other.fenced
        self.invalid += other.invalid
        self.lost += other.lost
        self.in_flight += other.in_flight


class Pair(msgspec.Struct):
    """Counts of one sender and one receiver."""

    ledger: Ledger = msgspec.field(default_factory=Ledger)  # as the sender says
    account: Account = msgspec.field(default_factory=lambda: Account(Ledger()))  # as the receiver says
    elsewhere: int = 0  # reports since rows were sent to it in which others got some

    @property
    def produced(self) -> int:
        return max(self.ledger.produced, self.account.ledger.produced)

    @property
    def dropped(self) -> int:
        return max(self.ledger.dropped, self.account.ledger.dropped)

    @property
    def sent(self) -> int:
        return max(self.ledger.sent, self.account.ledger.sent)


class SenderLedger(msgspec.Struct):
    """Books of one boot of a sender."""

    pairs: dict[str, Pair] = {}  # by receiver boot, or `ENDED` and a policy
    pending: int = 0  # rows neither sent nor dropped, by its newest report
    contradictions: int = 0  # reports in a row
    fault: str = ""  # the newest contradiction
    claimed: dict[str, int] = {}  # receiver boot -> rows that were known to be sent when it last reported


class Life(msgspec.Struct):
    """Weights of a policy from one start, fresh or from a generation, to the next."""

    boots: set[str]  # of learners that step these weights
    before: int  # rows that other learners have consumed, as far as they had time to report
    base: int  # rows that the weights were learned from when this life began

    @property
    def discarded(self) -> int:
        """Rows consumed before, of which nothing is in these weights.

        A generation may hold rows that its learner had no time to report: these count as lost, none as discarded.
        """
        return max(self.before - self.base, 0)


class StoredLedger(msgspec.Struct):
    """The books, as stored for the next manager."""

    closed: dict[str, Rows] = {}  # policy -> rows of senders with closed books
    senders: dict[str, SenderLedger] = {}
    receivers: dict[str, str] = {}  # boot -> policy
    lives: dict[str, Life] = {}  # policy -> the present one


class RunLedger:
    """The ledger of a run.

    Args:
        name: display name of a boot, for messages: "actor/3".
    """

    def __init__(self, name: Callable[[str], str] = str) -> None:
        self._name = name
        self._closed: dict[str, Rows] = {}
        self._senders: dict[str, SenderLedger] = {}
        self._receivers: dict[str, str] = {}
        self._lives: dict[str, Life] = {}
        self._named: set[str] = set()  # receivers that senders name
        self._faults: dict[str, dict[str, str]] = {}  # receiver -> sender -> contradiction in its newest account

    def receiver(self, boot: str, policy: str) -> None:
        """Register a receiver and the policy of its rows."""
        self._receivers[boot] = policy

    def begin(self, boot: str, base_rows: int | None, together: Iterable[str]) -> None:
        """Register the start of a learner; a repeated call changes nothing.

        Args:
            base_rows: rows in the generation that it resumed from; 0: none; None: another learner gave it weights.
            together: boots that step together with it: their rows do not belong to an earlier life.
        """
        policy, boots = self._policy(boot), {boot, *together}
        life = self._lives.get(policy)
        if life is not None and life.boots & boots:
            if fresh := boots - life.boots:
                life.before -= self._consumed(fresh.__contains__)
                life.boots |= fresh
        elif base_rows is not None:
            closed = self._closed.get(policy, Rows()).consumed
            others = self._consumed(lambda receiver: receiver not in boots and self._policy(receiver) == policy)
            self._lives[policy] = Life(boots, closed + others, base_rows)

    def hear_sender(
        self, boot: str, sent: Mapping[str, Ledger], pending: int, buried: Callable[[str], bool] = lambda _: False
    ) -> None:
        """Take in a report of a sender; receivers by boot.

        Args:
            buried: whether a boot never comes back.
        """
        if not sent and not pending and boot not in self._senders:
            return
        made_up = [receiver for receiver in sent if receiver.startswith(ENDED)]  # a prefix that is ours alone
        sent = self._merged({key: ledger for key, ledger in sent.items() if not key.startswith(ENDED)}, buried)
        sender = self._senders.setdefault(boot, SenderLedger())
        before = _progress(pair.ledger for pair in sender.pairs.values())
        now = _progress([*sent.values(), *(one.ledger for key, one in sender.pairs.items() if key not in sent)])
        if now < before or (now == before and pending == sender.pending and sender.pairs):
            return  # an older report, arriving late, or a repeated one
        contradiction = f"names the receiver {made_up[0][:40]!r}" if made_up else ""
        known = {receiver: pair.ledger.sent for receiver, pair in sender.pairs.items()}
        served = {receiver for receiver, ledger in sent.items() if ledger.sent > known.get(receiver, 0)}
        policies = {self._policy(receiver) for receiver in served}
        for receiver, ledger in sent.items():
            if receiver not in sender.pairs and len(sender.pairs) >= MOST_RECEIVERS:
                contradiction = "names more receivers than there are"
                continue
            pair = sender.pairs.setdefault(receiver, Pair())
            self._named.add(receiver)
            if min(ledger.produced, ledger.dropped, ledger.sent, pending) < 0 or _went_back(pair.ledger, ledger):
                contradiction = "counts rows backwards"
            if ledger.sent < sender.claimed.get(receiver, 0):
                contradiction = (
                    f"has sent {ledger.sent} rows by its own count, {sender.claimed[receiver]} by its receiver's"
                )
            if self._policy(receiver) in policies:
                pair.elsewhere = 0 if receiver in served else pair.elsewhere + 1
            pair.ledger = msgspec.structs.replace(ledger)
        sender.pending = pending
        if sent:
            produced, dropped = (sum(rows.values()) for rows in self._by_policy(sender, reported=True))
            accounted = dropped + sum(one.sent for one in sent.values()) + pending
            if produced != accounted:
                contradiction = f"has produced {produced} rows and accounts for {accounted}"
        sender.contradictions = sender.contradictions + 1 if contradiction else 0
        sender.fault = contradiction
        sender.claimed = {receiver: pair.account.ledger.sent for receiver, pair in sender.pairs.items()}

    def hear_receiver(self, boot: str, accounts: Mapping[str, Account], closed: Callable[[str], bool]) -> None:
        """Take in a report of a receiver; senders by boot.

        Args:
            accounts: accounts that may have changed; the others are as before.
            closed: whether the books of a sender are closed: these no longer change.
        """
        faults = self._faults.setdefault(boot, {})
        for sender_boot, account in accounts.items():
            if closed(sender_boot):
                continue
            pair = self._senders.setdefault(sender_boot, SenderLedger()).pairs.setdefault(boot, Pair())
            self._named.add(boot)
            before, now = _decided(pair.account), _decided(account)
            if now < before:
                continue  # an older report, arriving late
            faults.pop(sender_boot, None)
            if wrong := _contradiction(pair.account, account):
                faults[sender_boot] = f"{wrong} of {self._name(sender_boot)}"
            life = self._lives.get(self._policy(boot))
            if life is not None and boot not in life.boots:  # a late report of a learner of an earlier life
                life.before += account.consumed - pair.account.consumed
            pair.account = msgspec.structs.replace(account, ledger=msgspec.structs.replace(account.ledger))

    def close(self, boot: str, alive: Callable[[str], bool], buried: Callable[[str], bool]) -> bool:
        """Close the books of a process that never comes back: they are added to the sums.

        Args:
            alive: whether a boot holds a lease, so that its newest report is younger than the end of this process.
            buried: whether a boot never comes back.

        Returns:
            False if they stay open, because a receiver may still report on its rows.
        """
        sender = self._senders.get(boot)
        if sender is not None:
            for receiver, pair in sender.pairs.items():
                # a receiver that never said hello, and that a sender may have made up, has nothing more to report
                over = receiver.startswith(ENDED) or buried(receiver) or receiver not in self._receivers
                if not over and (pair.account.queued or not alive(receiver)):
                    return False
            for policy, rows in self._rows_of(boot, sender, alive).items():
                self._closed.setdefault(policy, Rows()).add(rows)
            del self._senders[boot]
            strange = {one for one in sender.pairs if one not in self._receivers and not one.startswith(ENDED)}
            if strange:  # rare: of ten thousand actors that go at once each looks at all others here
                named = (strange.intersection(other.pairs) for other in self._senders.values())
                self._named -= strange.difference(*named)
        self._faults.pop(boot, None)
        for faults in self._faults.values():
            faults.pop(boot, None)
        if boot not in self._named or not self._merge(boot):  # else its senders name it, and its policy must be known
            self._receivers.pop(boot, None)
        self._named.discard(boot)
        return True

    def rows(self, alive: Callable[[str], bool]) -> dict[str, Rows]:
        """Rows of each policy by their fate.

        Args:
            alive: whether a boot holds a lease.
        """
        found = {policy: msgspec.structs.replace(rows) for policy, rows in self._closed.items()}
        for policy in self._receivers.values():
            found.setdefault(policy, Rows())
        for boot, sender in self._senders.items():
            for policy, rows in self._rows_of(boot, sender, alive).items():
                found.setdefault(policy, Rows()).add(rows)
        for policy, life in self._lives.items():
            rows = found.setdefault(policy, Rows())
            rows.discarded = min(life.discarded, rows.consumed)
            rows.consumed -= rows.discarded
        return found

    def faults(self) -> list[str]:
        """Contradictions in words, the first MAX_FAULTS; empty when the books balance."""
        found = [
            f"{self._name(boot)} {sender.fault}"
            for boot, sender in self._senders.items()
            if sender.contradictions > TOLERATED_REPORTS
        ]
        found += [f"{self._name(boot)} {next(iter(told.values()))}" for boot, told in self._faults.items() if told]
        found += [
            f"{self._name(boot)} has sent and dropped more rows than it has produced"
            for boot, sender in self._senders.items()
            if any(kept < 0 for kept in self._kept(sender, *self._by_policy(sender, reported=False)).values())
        ]
        return found[:MAX_FAULTS]

    def quarantined(self) -> dict[str, str]:
        """Boot of a sender -> the first fault in its values, of all senders with open books."""
        pairs = ((boot, pair) for boot, sender in self._senders.items() for pair in sender.pairs.values())
        return {boot: pair.account.fault for boot, pair in pairs if pair.account.fault}

    def boots(self) -> set[str]:
        """Boots of processes with open books."""
        found = set(self._senders) | set(self._receivers)
        found |= {receiver for sender in self._senders.values() for receiver in sender.pairs}
        return {boot for boot in found if not boot.startswith(ENDED)}

    def store(self) -> StoredLedger:
        """The books, for the next manager."""
        return StoredLedger(self._closed, self._senders, self._receivers, self._lives)

    def restore(self, stored: StoredLedger) -> None:
        """Resume the books that another manager stored."""
        self._closed, self._senders, self._receivers = stored.closed, stored.senders, stored.receivers
        self._lives = stored.lives
        self._named = {receiver for sender in self._senders.values() for receiver in sender.pairs}

    def _consumed(self, counts: Callable[[str], bool]) -> int:
        """Rows consumed by the receivers that `counts` selects, from senders with open books."""
        pairs = (pair for sender in self._senders.values() for pair in sender.pairs.items())
        return sum(pair.account.consumed for receiver, pair in pairs if counts(receiver))

    def _policy(self, receiver: str) -> str:
        return receiver[len(ENDED) :] if receiver.startswith(ENDED) else self._receivers.get(receiver, "main")

    def _merged(self, sent: Mapping[str, Ledger], buried: Callable[[str], bool]) -> dict[str, Ledger]:
        """Totals of a sender; receivers that never come back are merged into one per policy."""
        found: dict[str, Ledger] = {}
        for receiver, ledger in sent.items():
            key = ENDED + self._policy(receiver) if buried(receiver) else receiver
            found[key] = _sum(found[key], ledger) if key in found else ledger
        return found

    def _merge(self, receiver: str) -> bool:
        """Merge a receiver that never comes back with those of its policy; True if a sender names it."""
        key, merged = ENDED + self._policy(receiver), False
        for sender in self._senders.values():
            pair = sender.pairs.pop(receiver, None)
            if pair is None:
                continue
            merged, before = True, sender.pairs.get(key)
            if before is not None:
                one, other = before.account, pair.account
                counts = ("received", "lost", "consumed", "stale", "fenced", "invalid", "queued")
                account = Account(
                    _sum(one.ledger, other.ledger),
                    **{name: getattr(one, name) + getattr(other, name) for name in counts},
                    fault=one.fault or other.fault,
                )
                pair = Pair(_sum(before.ledger, pair.ledger), account)
            sender.pairs[key] = pair
            if claimed := sender.claimed.pop(receiver, 0):
                sender.claimed[key] = sender.claimed.get(key, 0) + claimed
        return merged

    def _by_policy(self, sender: SenderLedger, *, reported: bool) -> tuple[dict[str, int], dict[str, int]]:
        """Rows produced and dropped of each policy; the ledgers of all its receivers hold the same."""
        produced: dict[str, int] = {}
        dropped: dict[str, int] = {}
        for receiver, pair in sender.pairs.items():
            policy = self._policy(receiver)
            made, gave_up = (pair.ledger.produced, pair.ledger.dropped) if reported else (pair.produced, pair.dropped)
            produced[policy] = max(produced.get(policy, 0), made)
            dropped[policy] = max(dropped.get(policy, 0), gave_up)
        return produced, dropped

    def _kept(self, sender: SenderLedger, produced: dict[str, int], dropped: dict[str, int]) -> dict[str, int]:
        """Policy -> rows at the sender, by the newest report of either side."""
        kept = {policy: produced[policy] - dropped[policy] for policy in produced}
        for receiver, pair in sender.pairs.items():
            kept[self._policy(receiver)] -= pair.sent
        return kept

    def _rows_of(self, boot: str, sender: SenderLedger, alive: Callable[[str], bool]) -> dict[str, Rows]:
        produced, dropped = self._by_policy(sender, reported=False)
        found = {policy: Rows(produced=produced[policy], dropped=dropped[policy]) for policy in produced}
        if not sender.pairs and sender.pending:  # no receiver has ever listened
            found["main"] = Rows(produced=sender.pending)
            _keep(found["main"], sender.pending, alive(boot))
        for policy, kept in self._kept(sender, produced, dropped).items():
            _keep(found[policy], kept, alive(boot))
        for receiver, pair in sender.pairs.items():
            rows, account = found[self._policy(receiver)], pair.account
            rows.consumed += account.consumed
            rows.stale += account.stale
            rows.fenced += account.fenced
            rows.invalid += account.invalid
            rows.lost += account.lost
            arrives = alive(boot) and alive(receiver) and pair.elsewhere < LEFT_REPORTS
            _keep(rows, pair.sent - account.received - account.lost, arrives)
            _keep(rows, account.queued, alive(receiver))
        return found


def _keep(rows: Rows, count: int, live: bool) -> None:
    count = max(count, 0)  # a negative count is a fault that `difference` must show
    if live:
        rows.in_flight += count
    else:
        rows.lost += count


def _sum(one: Ledger, other: Ledger) -> Ledger:
    """Totals of a sender over two of its receivers; produced and dropped rows are the same in both."""
    return Ledger(max(one.produced, other.produced), max(one.dropped, other.dropped), one.sent + other.sent)


def _progress(ledgers: Iterable[Ledger]) -> int:
    return sum(one.produced + one.dropped + one.sent for one in ledgers)


def _went_back(before: Ledger, now: Ledger) -> bool:
    return now.produced < before.produced or now.dropped < before.dropped or now.sent < before.sent


def _decided(account: Account) -> int:
    return account.ledger.sent + account.consumed + account.stale + account.fenced + account.invalid


def _contradiction(before: Account, now: Account) -> str:
    """Contradiction within one account, or between two accounts one after the other; "" when all is well."""
    names = ("received", "lost", "consumed", "stale", "fenced", "invalid")
    if min(now.queued, *(getattr(now, name) for name in names)) < 0:
        return "has fewer than no rows"
    if any(getattr(now, name) < getattr(before, name) for name in names):
        return "counts backwards the rows"
    decided = now.consumed + now.stale + now.fenced + now.invalid
    if now.received != decided + now.queued:
        return f"has received {now.received} rows and accounts for {decided + now.queued}"
    if now.ledger.sent != now.received + now.lost:
        return f"knows of {now.ledger.sent} rows sent and accounts for {now.received + now.lost}"
    return ""
