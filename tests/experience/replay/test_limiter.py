"""Neither actors nor learners get ahead of each other, over all shards, whichever of them live."""

from __future__ import annotations

import random

import pytest

from rlctl_agents.experience.replay.limiter import InsertLimit, SampleLimit, ShardCounts


class Play:
    """Shards, actors that send blocks of 20 rows as fast as they may, and a learner that draws as soon as it may."""

    def __init__(self, ratio: float, starts: int, shards: int, draw: int) -> None:
        self.limit, self.draw, self.starts = SampleLimit(ratio, starts), draw, starts // shards
        self.shards: dict[int, tuple[ShardCounts, InsertLimit]] = {}
        self.boots = self.inserted = 0
        for number in range(shards):
            self.start(number)

    def start(self, number: int) -> None:
        self.boots += 1
        self.shards[number] = ShardCounts(str(self.boots), 0, 0), InsertLimit(self.starts)

    def insert(self, number: int) -> bool:
        counts, limit = self.shards[number]
        if not limit.may_insert(counts.inserted):
            return False
        self.shards[number] = counts._replace(inserted=counts.inserted + 20), limit
        self.inserted += 20
        return True

    def learn(self) -> bool:
        """Hear all, draw if it may, tell all."""
        for number, (counts, _) in self.shards.items():
            self.limit.hear(number, counts)
        may = self.limit.may_sample()
        if may and self.shards:
            number = random.choice(list(self.shards))
            counts, limit = self.shards[number]
            counts = counts._replace(sampled=counts.sampled + self.draw)
            self.shards[number] = counts, limit
            self.limit.hear(number, counts)
        for number, rows in self.limit.may_insert(dict.fromkeys(self.shards, 1), self.draw).items():
            self.shards[number][1].grant(rows)
        return may


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("ratio", [0.5, 8.0, 256.0])
@pytest.mark.parametrize("fast", ["actors", "learner", "neither"])
def test_samples_per_insert_stay_at_the_ratio(ratio: float, shards: int, fast: str) -> None:
    random.seed(1)
    draw = max(64, int(8 * ratio))
    play = Play(ratio, 1000, shards, draw)
    turns = {"actors": (10, 1), "learner": (1, 10), "neither": (1, 1)}[fast]
    while play.limit.inserted < 12_000:
        for _ in range(turns[0]):
            play.insert(random.choice(list(play.shards)))
        for _ in range(turns[1]):
            play.learn()
    counted = play.limit.inserted - 1000
    assert abs(play.limit.sampled / counted - ratio) / ratio < 0.02


@pytest.mark.parametrize("shards_with_actors", [1, 2])
def test_nothing_is_drawn_before_enough_is_there_wherever_it_is(shards_with_actors: int) -> None:
    play = Play(8.0, 1000, 2, 512)
    for _ in range(1000):
        for number in range(shards_with_actors):
            play.insert(number)
        assert not play.learn() or play.limit.inserted >= 1000
    assert play.limit.sampled > 0


def test_a_shard_that_dies_stops_nobody_and_its_new_rows_count_when_it_is_back() -> None:
    random.seed(2)
    play = Play(8.0, 1000, 4, 512)
    dead = -1
    for turn in range(4000):
        if turn % 400 == 200:
            dead = random.choice(list(play.shards))
            del play.shards[dead]
        if turn % 400 == 300:
            play.start(dead)
        before = play.limit.sampled
        for _ in range(10):
            play.insert(random.choice(list(play.shards)))
        play.learn()
        if turn % 100 == 99:
            assert play.limit.sampled > before or play.learn(), turn
    counted = play.limit.inserted - 1000
    assert abs(play.limit.sampled / counted - 8) / 8 < 0.02
    assert counted == pytest.approx(play.inserted - 1000, rel=0.02), "but what nobody had heard of when it died"


def test_rows_of_a_shard_that_was_started_again_count_from_its_first() -> None:
    limit = SampleLimit(8.0, 100)
    for boot, inserted in (("a", 1000), ("b", 600), ("b", 700)):
        limit.hear(0, ShardCounts(boot, inserted, 8 * inserted, steps=inserted // 2))
    assert (limit.inserted, limit.steps) == (1700, 850)
    assert limit.sampled == 8 * (1000 - 100) + 8 * 700


def test_rows_that_a_shard_has_restored_count_once_for_each_learner() -> None:
    restored = ShardCounts("b", 900, 7200, began_inserted=800, began_sampled=6400)
    one = SampleLimit(8.0, 100)
    one.hear(0, ShardCounts("a", 1000, 8000))
    one.hear(0, restored)
    assert (one.inserted, one.sampled) == (1100, 8 * 900 + 800), (
        "what it has inserted and sampled since, nothing of before"
    )
    one.hear(0, restored._replace(inserted=950))
    assert one.inserted == 1150
    another = SampleLimit(8.0, 100)
    another.hear(0, restored)
    assert (another.inserted, another.sampled) == (900, 8 * 800), "all that it holds: it has to wait for no start"
    another.hear(0, ShardCounts("c", 800, 6400, began_inserted=800, began_sampled=6400))
    assert (another.inserted, another.sampled) == (900, 8 * 800), "and of a third life likewise"
    assert another.may_insert({0: 1}, 80) == {0: 800 + 10 + 1}, "by its own count, and what draws pay"


@pytest.mark.parametrize("sampled", [100, 7000, 90_000])
def test_what_a_learner_before_has_drawn_counts_as_what_the_ratio_asks_for(sampled: int) -> None:
    limit = SampleLimit(8.0, 100)
    limit.hear(0, ShardCounts("a", 600, sampled))
    limit.hear(1, ShardCounts("b", 400, 1))
    limit.hear(2, ShardCounts("c", 50, 0))
    assert limit.sampled == 8 * 900, (
        "of what shards that are no more had drawn, or were not drawn for, nothing is known"
    )
    limit.hear(2, ShardCounts("c", 50, 30))
    assert limit.sampled == 8 * 900 + 30
    assert limit.may_sample(), "the rows of the third are still to be paid"


def test_a_learner_that_is_started_again_after_shards_were_removed_catches_nothing_up() -> None:
    random.seed(3)
    play = Play(8.0, 1000, 4, 512)
    for _ in range(4000):
        play.insert(random.choice(list(play.shards)))
        play.learn()
    for number, of in ((0, 0.8), (1, 1.2)):  # masses are uneven, and so is what was drawn from each
        counts, limit = play.shards[number]
        play.shards[number] = counts._replace(sampled=int(of * counts.sampled)), limit
    del play.shards[2], play.shards[3]
    play.limit = SampleLimit(8.0, 1000)
    play.learn()
    inserted, sampled = play.limit.inserted, play.limit.sampled
    for _ in range(500):
        play.insert(random.choice(list(play.shards)))
        play.learn()
    assert (play.limit.sampled - sampled) / (play.limit.inserted - inserted) == pytest.approx(8.0, rel=0.02)
    assert play.limit.inserted > inserted + 5000


def test_a_learner_that_is_started_again_hears_what_was_counted() -> None:
    play = Play(8.0, 1000, 2, 512)
    for _ in range(2000):
        play.insert(0)
        play.insert(1)
        play.learn()
    before = play.limit
    play.limit = SampleLimit(8.0, 1000)
    play.learn()
    assert (play.limit.inserted, play.limit.sampled) == pytest.approx((before.inserted, before.sampled), rel=0.02)


def test_without_a_ratio_there_is_no_limit_but_the_start() -> None:
    limit = SampleLimit(0.0, 100)
    limit.hear(0, ShardCounts("a", 99, 0))
    assert not limit.may_sample()
    limit.hear(0, ShardCounts("a", 100, 10**9))
    assert limit.may_sample()
    assert limit.may_insert({0: 1}, 512) == {}
    assert InsertLimit(0, limited=False).may_insert(10**12)


def test_what_was_granted_is_not_taken_back() -> None:
    one = InsertLimit(100)
    assert one.grant(200)
    assert not one.grant(150)
    assert one.may_insert(199)
    assert not one.may_insert(200)


def test_a_replay_of_which_nothing_can_be_drawn_may_be_filled_by_a_block_more() -> None:
    limit = SampleLimit(8.0, 100)
    limit.hear(0, ShardCounts("a", 300, 0))
    limit.hear(1, ShardCounts("b", 50, 0))
    shards = {0: 1, 1: 1}
    assert limit.may_insert(shards, 64) == {0: 300, 1: 50}
    assert limit.may_insert(shards, 64, drawable=False) == {0: 301, 1: 51}
    limit.hear(0, ShardCounts("a", 300, 8000))
    assert limit.may_insert(shards, 64) == limit.may_insert(shards, 64, drawable=False), "as far as draws have paid"
    assert SampleLimit(0.0, 100).may_insert(shards, 64, drawable=False) == {}, "no limit"


def test_rows_in_place_of_lost_ones_pay_for_no_draws_also_where_they_are_lost_again() -> None:
    limit = SampleLimit(8.0, 100)
    limit.hear(0, ShardCounts("a", 1000, 7200))
    for boot, first in (("b", 20), ("c", 10)):
        limit.refill(0)
        limit.hear(0, ShardCounts(boot, first, 0))
        limit.hear(0, ShardCounts(boot, 60, 0))
    assert limit.missing == 40
    assert limit.may_insert({0: 1}, 80) == {0: 100 + 10 + 1}
    limit.hear(0, ShardCounts("c", 100, 0))
    assert limit.may_sample()
    assert limit.may_insert({0: 1}, 80) == {0: 100 + 10 + 1}
    assert limit.sampled == 8 * 900, "what the rows of before had paid"


@pytest.mark.parametrize("ahead", [0, 8, 60])
def test_what_is_missing_may_always_be_inserted_however_far_inserting_was_ahead(ahead: int) -> None:
    limit = SampleLimit(8.0, 100)
    limit.hear(0, ShardCounts("a", 1000 + ahead, 7200))
    limit.hear(1, ShardCounts("b", 30, 0))
    limit.refill(30)
    limit.hear(0, ShardCounts("c", 0, 0))
    assert limit.missing == 70
    assert limit.may_insert({0: 1}, 80)[0] >= 70
    limit.change(16.0, 100)
    assert limit.missing == 70
    assert limit.may_insert({0: 1}, 80)[0] >= 70
    limit.hear(0, ShardCounts("c", 70, 0))
    assert limit.may_sample(), "by the new ratio neither side has to catch up"
    assert limit.samples_per_insert == 16


def test_shards_that_answer_later_and_have_rows_end_the_wait() -> None:
    limit = SampleLimit(8.0, 100)
    for shard in range(2):
        limit.hear(shard, ShardCounts("a", 500, 3600))
    paid = limit.samples_per_insert
    limit.refill(60)  # of shard 0, which is restored with these; the other one is silent
    limit.hear(0, ShardCounts("b", 500, 3600, began_inserted=500, began_sampled=3600))
    assert (limit.missing, limit.samples_per_insert) == (40, paid)
    limit.relax(60)
    assert limit.missing == 40
    limit.relax(90)
    assert limit.missing == 10
    limit.relax(500)
    assert limit.missing == 0
    assert limit.may_sample() == (limit.sampled <= 8 * 900)


def test_a_larger_start_holds_draws_where_less_is_stored() -> None:
    limit = SampleLimit(8.0, 100)
    limit.hear(0, ShardCounts("a", 300, 1600))
    limit.change(8.0, 500)
    assert (limit.missing, limit.may_sample()) == (200, False)
    limit.change(8.0, 200)
    assert limit.missing == 0
