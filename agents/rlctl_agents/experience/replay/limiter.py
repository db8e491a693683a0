"""Rate limits of a replay by samples per insert: actors wait for learners, and learners for actors, over all shards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class InsertLimit:
    """Limit of the rows inserted into one shard since its start.

    Args:
        starts: its share of `learning_starts`: rows that may be inserted before a learner grants any.
        limited: False for no limit.
    """

    def __init__(self, starts: int, *, limited: bool = True) -> None:
        self._granted, self._limited = starts, limited

    def may_insert(self, inserted: int) -> bool:
        """True if one more block may be inserted. Blocks are not split: one may exceed the limit."""
        return not self._limited or inserted < self._granted

    def grant(self, rows: int) -> bool:
        """Raise the limit to a learner's grant, in rows since the start; a lower grant changes nothing.

        Returns:
            True if the limit has risen.
        """
        more = rows > self._granted
        self._granted = max(rows, self._granted)
        return more


class ShardCounts(NamedTuple):
    """Counts of one shard since its start, as it last reported them."""

    boot: str
    inserted: int
    sampled: int
    steps: int = 0  # of the inserted rows, agent steps
    began_inserted: int = 0  # of the inserted rows, those restored from an earlier boot; the next two likewise
    began_sampled: int = 0
    began_steps: int = 0


class SampleLimit:
    """Limits of the rows that learners draw and all shards insert, which hold sampled / (inserted - starts) at a ratio.

    A shard's inserted and sampled rows stay counted: after its crash the other shards are neither ahead nor behind.
    After its restart new rows are counted, restored ones are not counted again; where fewer than `starts` rows are left
    in all, nothing is drawn until the replay holds as many again, and those rows pay for no draws. Draws of an earlier
    learner are counted as the ratio demands: of shards that are gone nothing is known, and neither side has to catch
    up. A draw may begin while sampled <= ratio x (inserted - starts), so sampling is ahead by one draw at most of each
    learner; inserting by the rows that pay for `slack` draws, and by a block of each shard.

    Args:
        ratio: samples per insert; 0: no limit.
        starts: rows inserted before the first is drawn, over all shards.
        slack: number of draws that inserting may be ahead.
    """

    def __init__(self, ratio: float, starts: int, slack: float = 1.0) -> None:
        self._ratio, self._starts, self._slack = ratio, starts, slack
        self._known: dict[int, ShardCounts] = {}
        self._unpaid = self._begins = starts  # inserted rows that pay for no draws; those at which draws begin
        self._refills = False  # draws wait for the second time or later
        self.inserted = self.steps = 0
        """Rows over all shards, dead ones included, and agent steps among them."""
        self.sampled = 0.0

    def hear(self, shard: int, counts: ShardCounts) -> None:
        """Count a shard's inserted and sampled rows since its last report, or since its start: with restored rows in
        its first report, without them after a restart of a known shard."""
        known, pays = self._known.get(shard), self._pays
        if first := known is None:
            known = ShardCounts(counts.boot, 0, 0)
        elif known.boot != counts.boot:
            known = ShardCounts(counts.boot, counts.began_inserted, counts.began_sampled, counts.began_steps)
        self.inserted += max(0, counts.inserted - known.inserted)
        self.steps += max(0, counts.steps - known.steps)
        if first and counts.sampled and self._ratio:  # an earlier learner has drawn from it
            self.sampled += self._ratio * (self._pays - pays)
        else:
            self.sampled += max(0, counts.sampled - known.sampled)
        self._known[shard] = counts

    def change(self, ratio: float, starts: int) -> None:
        """Change the settings, as if the rows until now had been drawn under them: neither side has to catch up."""
        if (ratio, starts) != (self._ratio, self._starts):
            more = starts - self._starts if self.missing or starts > self.inserted else 0
            self._begins, self._unpaid = self._begins + more, self._unpaid + more
            self._ratio, self._starts = ratio, starts
            self.sampled = ratio * self._pays

    def refill(self, stored: int) -> None:
        """Hold draws until `starts` rows are stored again; before the first rows of a restarted shard are counted.

        Args:
            stored: rows of all live shards but those.
        """
        begins = self.inserted + self._starts - stored
        if (more := begins - max(self._begins, self.inserted)) > 0:
            self._begins, self._unpaid, self._refills = begins, self._unpaid + more, True

    def relax(self, stored: int) -> None:
        """Hold draws no longer than until `starts` rows are stored: shards that were silent answer, and have some.

        Args:
            stored: rows of all live shards.
        """
        less = self._begins - max(self.inserted, self.inserted + self._starts - stored)
        self._refills = self._refills and self.missing > 0
        if self._refills and less > 0:
            self._begins, self._unpaid = self._begins - less, self._unpaid - less

    @property
    def missing(self) -> int:
        """Rows that must be inserted before draws begin, at first or again."""
        return max(0, self._begins - self.inserted)

    @property
    def samples_per_insert(self) -> float | None:
        """Rows drawn for each inserted one that pays for draws; None: there is none yet."""
        pays = self._pays  # once: another thread may change it
        return self.sampled / pays if pays else None

    @property
    def _paid(self) -> int:
        """Inserted rows that pay for draws now."""
        return max(0, self.inserted - self._unpaid)

    @property
    def _pays(self) -> int:
        """Inserted rows that pay for draws, once none is missing."""
        return max(0, max(self.inserted, self._begins) - self._unpaid)

    def may_sample(self) -> bool:
        """True if a draw may begin."""
        if self.missing:
            return False
        return not self._ratio or self.sampled <= self._ratio * self._paid

    def may_insert(self, live: Mapping[int, int], rows: int, *, drawable: bool = True) -> dict[int, int]:
        """Limit of each shard, in rows inserted since its start.

        Args:
            live: shard -> its weight: number of actors that send to it, or 1.
            rows: rows of one draw.
            drawable: False if the stored rows make no window or sequence yet, so that one more block is needed.

        Returns:
            Shard -> its limit; empty if there is none.
        """
        if not self._ratio:
            return {}
        left = max(0.0, self._unpaid + (self.sampled + self._slack * rows) / self._ratio - self.inserted)
        # a missing row is granted also where inserting was ahead by a block
        left = max(left, self.missing, 0.0 if drawable else 1.0)
        whole = sum(live.values())
        return {
            shard: self._known[shard].inserted + int(left * weight / whole) + (left > 0)
            for shard, weight in live.items()
            if shard in self._known
        }
