"""Limits of samples per insert: actors wait for learners, and learners for actors, over all shards of a replay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class InsertLimit:
    """Rows that one shard may have inserted since its start.

    Args:
        starts: its share of `learning_starts`: rows that may be inserted before the first word of a learner.
        limited: False: all rows that come.
    """

    def __init__(self, starts: int, *, limited: bool = True) -> None:
        self._granted, self._limited = starts, limited

    def may_insert(self, inserted: int) -> bool:
        """Whether one more block may be inserted. Blocks are not taken apart: one may reach beyond the limit."""
        return not self._limited or inserted < self._granted

    def grant(self, rows: int) -> bool:
        """Hear from a learner how many rows may be inserted since the start; what was granted stays so.

        Returns:
            True if there may be more than before.
        """
        more = rows > self._granted
        self._granted = max(rows, self._granted)
        return more


class ShardCounts(NamedTuple):
    """Counts of one shard since its start, as it told them last."""

    boot: str
    inserted: int
    sampled: int
    steps: int = 0  # of the inserted rows, agent steps
    began_inserted: int = 0  # of them, those of a life before
    began_sampled: int = 0
    began_steps: int = 0


class SampleLimit:
    """Rows that learners may draw, and all shards insert, so that sampled / (inserted - starts) stays at a ratio.

    A shard's inserted and sampled rows count once and for good: after its death the others are neither ahead nor
    behind because of it, and the rows with which it begins anew count as new ones. Draws of an earlier learner count
    as the ratio asks for: of shards that are gone nothing is known, and neither side has to catch up. A
    draw begins while sampled <= ratio x (inserted - starts), so sampling is ahead by one draw at most; inserting by as
    many rows as pay for `slack` draws, and by a block of each shard.

    Args:
        ratio: samples per insert; 0: no limit.
        starts: rows inserted before the first is drawn, over all shards.
        slack: draws that inserting may be ahead.
    """

    def __init__(self, ratio: float, starts: int, slack: float = 1.0) -> None:
        self._ratio, self._starts, self._slack = ratio, starts, slack
        self._known: dict[int, ShardCounts] = {}
        self.inserted = self.steps = 0
        """Rows over all shards, dead ones included, and agent steps among them."""
        self.sampled = 0.0

    def hear(self, shard: int, counts: ShardCounts) -> None:
        """Count a shard's inserted and sampled rows since it was heard last, or since its start: with the restored ones
        when it is heard for the first time, without them for another life of a known one."""
        known, paid = self._known.get(shard), self._paid
        if first := known is None:
            known = ShardCounts(counts.boot, 0, 0)
        elif known.boot != counts.boot:
            known = ShardCounts(counts.boot, counts.began_inserted, counts.began_sampled, counts.began_steps)
        self.inserted += max(0, counts.inserted - known.inserted)
        self.steps += max(0, counts.steps - known.steps)
        if first and counts.sampled and self._ratio:  # a learner before has drawn from it
            self.sampled += self._ratio * (self._paid - paid)
        else:
            self.sampled += max(0, counts.sampled - known.sampled)
        self._known[shard] = counts

    def change(self, ratio: float, starts: int) -> None:
        """Go on with other settings, as if the rows until now had been drawn by them: neither side has to catch up."""
        if (ratio, starts) != (self._ratio, self._starts):
            self._ratio, self._starts = ratio, starts
            self.sampled = ratio * self._paid

    @property
    def _paid(self) -> int:
        """Rows that pay for draws."""
        return max(0, self.inserted - self._starts)

    def may_sample(self) -> bool:
        """Whether a draw may begin."""
        if self.inserted < self._starts:
            return False
        return not self._ratio or self.sampled <= self._ratio * self._paid

    def may_insert(self, live: Mapping[int, int], rows: int, *, drawable: bool = True) -> dict[int, int]:
        """Rows that each shard may have inserted since its start.

        Args:
            live: shard -> its weight: how many actors send to it, or 1.
            rows: of one draw.
            drawable: False: the rows make no window or sequence yet, so that a block more has to come.

        Returns:
            Shard -> the limit to tell it; empty where there is none.
        """
        if not self._ratio:
            return {}
        left = max(0.0, self._starts + (self.sampled + self._slack * rows) / self._ratio - self.inserted)
        left = left if drawable else max(left, 1.0)
        whole = sum(live.values())
        return {
            shard: self._known[shard].inserted + int(left * weight / whole) + (left > 0)
            for shard, weight in live.items()
            if shard in self._known
        }
