"""A learner's end: rows of all shards by their masses, whichever live, and everything told to the shard it is for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from rlctl_agents.experience.replay.messages import Drawn
from rlctl_agents.experience.replay.priorities import ReplaySettings
from rlctl_agents.experience.replay.source import AGAIN_S, ReplaySource, ShardPart
from rlctl_agents.experience.staging import Staging
from tests.experience.replay.shards import AGREED, N_STEP, Run, T
from tests.experience.replay.test_saving import begin, saved

CPU = torch.device("cpu")


def fed(*scales: float, **settings: float) -> Run:
    """Shards of 400 rows each, of masses in about these proportions."""
    run = Run(len(scales), **settings)  # type: ignore[arg-type]
    for place, scale in zip(run.places, scales, strict=True):
        place.feed(400, scale)
    run.meet()
    return run


def source(run: Run, rows: int) -> ReplaySource:
    """Not started: tests make its steps."""
    return ReplaySource(run.drawer, Staging(CPU), rows)


def whose(parts: list[ShardPart] | None) -> dict[int, int]:
    """Shard -> rows of it."""
    assert parts is not None
    return {one.shard: sum(part.units for part in parts if part.shard == one.shard) for one in parts}


def masses(run: Run) -> NDArray[np.float64]:
    return np.array([place.shard.totals.mass for place in run.places])


def test_so_many_of_each_shard_as_a_multinomial_over_the_masses_says() -> None:
    run = fed(1.0, 3.0, 10.0)
    share = masses(run) / masses(run).sum()
    draws = [whose(run.drawer.draw(100)) for _ in range(300)]
    seen = np.array([[found.get(at, 0) for at in range(3)] for found in draws])
    assert (seen.sum(1) == 100).all()
    np.testing.assert_allclose(seen.mean(0), 100 * share, atol=4 * np.sqrt(100 * share * (1 - share) / 300).max())
    np.testing.assert_allclose(seen.var(0), 100 * share * (1 - share), rtol=0.5)


def test_weights_are_those_of_the_masses_that_were_used_though_they_were_stale() -> None:
    run = fed(1.0, 4.0)
    told = masses(run)  # by the answers until now
    run.places[0].feed(0, scale=20.0)
    now = masses(run)
    assert now[0] > 5 * told[0], "stale"
    memory = Staging(CPU).allocate(run.drawer.schema, 200)
    parts = run.drawer.draw(200)
    assert parts is not None
    run.drawer.fill(memory, parts)
    wanted = []
    size = sum(place.shard.totals.size for place in run.places)
    for part in parts:
        place = run.places[part.shard]
        chance = told[part.shard] / told.sum() * place.shard._tree.mass[part.arrays["slot"]] / now[part.shard]
        wanted.append((size * chance.astype(np.float64)) ** -0.5)
    expected = np.concatenate(wanted)
    np.testing.assert_allclose(memory.fields["weight"], expected / expected.max(), rtol=1e-5)
    assert memory.fields["weight"].max() == 1.0


def test_a_batch_holds_the_rows_of_the_shards_side_by_side() -> None:
    run = fed(1.0, 1.0)
    memory = Staging(CPU).allocate(run.drawer.schema, 50)
    parts = run.drawer.draw(50)
    assert parts is not None
    assert len(parts) == 2
    run.drawer.fill(memory, parts)
    for name in ("action", "terminated"):
        np.testing.assert_array_equal(memory.fields[name][0], np.concatenate([one.arrays[name] for one in parts]))
    np.testing.assert_array_equal(memory.fields["obs.big"], np.concatenate([p.arrays["obs.big"] for p in parts], 1))
    np.testing.assert_array_equal(memory.fields["rewards"], np.concatenate([p.arrays["rewards"].T for p in parts]))
    np.testing.assert_array_equal(memory.version[0], np.concatenate([one.arrays["version"] for one in parts]))
    assert memory.fields["valid"].all()
    assert memory.fields["rewards"].shape == (50, N_STEP)


def test_a_shard_that_dies_in_the_middle_of_a_draw_is_made_up_for_by_the_others() -> None:
    run = fed(1.0, 1.0, 1.0)
    run.places[1].kill_at_draw = True
    found = whose(run.drawer.draw(90))
    assert sum(found.values()) == 90
    assert 1 not in found
    assert sorted(run.drawer.shards.live) == [0, 2]


def test_when_the_last_shard_dies_in_a_draw_there_is_nothing_and_later_there_is() -> None:
    run = fed(1.0)
    run.places[0].kill_at_draw = True
    assert run.drawer.draw(10) is None
    assert run.drawer.draw(10) is None
    run.places[0].start()
    run.places[0].feed(200)
    run.meet()
    assert whose(run.drawer.draw(10)) == {0: 10}


@pytest.mark.parametrize("ratio", [0.0, 8.0])
def test_a_run_whose_only_shard_has_lost_its_rows_draws_once_as_many_as_at_first_are_there(ratio: float) -> None:
    run = Run(1, starts=120, ratio=ratio)
    place = run.places[0]
    for _ in range(40):
        place.feed(20)
        for _ in range(10):
            run.drawer.draw(16)
    place.alive = False
    run.drawer.draw(16)
    place.start()
    for _ in range(5):
        assert place.feed(20) == 20, "its actors are not held while it is filled again"
        run.now += AGAIN_S
        assert run.drawer.draw(16) is None
    assert run.drawer.limit is not None
    assert run.drawer.limit.missing == 120 - 100
    place.feed(40)
    run.drawer.draw(16)
    drawn = 0
    while drawn < 100 and run.drawer.draw(16):
        drawn += 1
    assert drawn == (100 if not ratio else pytest.approx(20 * ratio / 16, abs=1 + ratio)), "rows refilled pay for none"


def test_shards_that_hold_enough_go_on_where_one_of_them_comes_back_empty() -> None:
    run = Run(2, starts=120)
    for place in run.places:
        place.feed(200)
    run.meet()
    run.places[1].alive = False
    run.drawer.draw(16)
    run.places[1].start()
    run.meet()
    assert whose(run.drawer.draw(16)) == {0: 16}


def test_a_shard_that_is_filled_again_while_the_other_is_dead_takes_what_it_lacks_beyond_its_share() -> None:
    run = Run(2, starts=120, ratio=8.0)
    for _ in range(30):
        for place in run.places:
            place.feed(20)
        run.drawer.draw(16)
    run.places[1].alive = False
    run.places[0].alive = False
    run.drawer.draw(16)
    run.places[0].start()
    drawn = 0
    for _ in range(40):
        run.places[0].feed(20)
        run.now += 0.5
        drawn += run.drawer.draw(16) is not None
    assert drawn > 0
    run.places[1].alive = True
    seen = set[int]()
    for _ in range(20):
        run.now += AGAIN_S
        run.places[0].feed(20)
        seen |= whose(run.drawer.draw(16) or []).keys()
    assert seen == {0, 1}


def test_two_learners_of_the_same_shards_hold_the_ratio_together_and_each_step_is_counted_once() -> None:
    run = Run(2, starts=200, ratio=4.0, columns=4000)
    one = run.drawer
    run.learner(seed=2)
    both, counted, drawn = (one, run.drawer), 0, [0, 0]
    for turn in range(400):
        for place in run.places:
            place.feed(20)
        run.now += 0.5
        for at, drawer in enumerate(both):
            if parts := drawer.draw(64):
                drawn[at] += sum(part.units for part in parts)
            counted += drawer.fresh(counts=at == turn // 200) * (at == turn // 200)
    totals = [place.shard.totals for place in run.places]
    inserted, sampled = sum(one.inserted for one in totals), sum(one.sampled for one in totals)
    assert sampled == sum(drawn)
    assert min(drawn) > 0.2 * sampled
    assert sampled / (inserted - 200) == pytest.approx(4.0, rel=0.02)
    assert counted == pytest.approx(sum(one.steps for one in totals), rel=0.02), "the lead passes from one to the other"


def test_a_silent_shard_is_asked_now_and_then_beside_the_draws() -> None:
    run = fed(1.0, 1.0)
    run.places[1].alive = False
    run.drawer.draw(10)
    run.places[1].alive = True
    heard = len(run.places[1].heard)
    for _ in range(5):
        assert whose(run.drawer.draw(10)) == {0: 10}
    assert len(run.places[1].heard) == heard, "it has not been silent for long"
    run.now += AGAIN_S
    run.drawer.draw(10)
    assert len(run.places[1].heard) == heard + 1
    assert 1 in whose(run.drawer.draw(100))


def test_a_shard_that_came_back_with_nothing_is_drawn_from_once_it_has_rows_though_others_never_run_dry() -> None:
    run = fed(1.0, 1.0)
    run.places[1].alive = False
    run.drawer.draw(10)
    run.places[1].start()
    run.meet()
    assert run.drawer.shards.live[1].mass == 0.0
    run.places[1].feed(400)
    run.drawer.draw(10)
    assert 1 in whose(run.drawer.draw(100))


def test_a_shard_that_answers_no_rows_is_asked_no_more_in_that_draw() -> None:
    run = fed(1.0, 1.0)
    run.places[1].start()  # between two draws: what the learner knows of it is of its former life
    assert whose(run.drawer.draw(60)) == {0: 60}
    assert run.drawer.shards.live[1].mass == 0.0


def test_a_shard_whose_answer_does_not_fit_is_left_out() -> None:
    run = fed(1.0, 1.0)

    def cut(drawn: Drawn, arrays: list[memoryview]) -> tuple[Drawn, list[memoryview]]:
        return drawn, arrays[1:]

    run.places[1].answer = cut
    assert whose(run.drawer.draw(50)) == {0: 50}
    assert list(run.drawer.shards.live) == [0]
    run.places[1].answer = None
    run.meet()
    assert 1 in whose(run.drawer.draw(100))


def test_a_shard_that_the_manager_names_no_more_is_left_and_a_new_one_found() -> None:
    run = fed(1.0, 1.0)
    del run.named[0]
    assert whose(run.drawer.draw(20)) == {1: 20}
    run.named[0] = {"rpc": "0"}
    run.meet()
    assert set(whose(run.drawer.draw(100))) == {0, 1}


@pytest.mark.parametrize("fast", ["actors", "learner"])
def test_limits_over_several_shards_hold_both_ways_and_a_dead_one_stops_nobody(fast: str) -> None:
    run = Run(3, starts=600, ratio=4.0, columns=4000)
    for turn in range(300):
        if turn == 100:
            run.places[1].alive = False
        if turn == 200:
            run.places[1].start()
        for place in run.places:
            if place.alive:
                place.feed(100 if fast == "actors" else 20)
        for _ in range(1 if fast == "actors" else 6):
            run.now += 0.5
            run.drawer.draw(64)
        if turn in (99, 199, 299):
            limit = run.drawer.limit
            assert limit is not None
            assert limit.sampled / (limit.inserted - 600) == pytest.approx(4.0, rel=0.05), turn
    assert all(place.shard.totals.sampled > 0 for place in run.places)


@pytest.mark.parametrize(("before", "after"), [(0.0, 4.0), (4.0, 8.0), (8.0, 4.0), (4.0, 0.0)])
def test_shards_that_are_started_again_with_another_ratio_bring_it_to_a_learner_that_lives(
    before: float, after: float
) -> None:
    run = Run(2, starts=100, ratio=before, columns=4000)

    def turns(count: int) -> tuple[int, int]:
        """Rows sampled and inserted meanwhile."""
        was = [(place.shard.totals.sampled, place.shard.totals.inserted) for place in run.places]
        for _ in range(count):
            for place in run.places:
                place.feed(100)
            run.now += 0.5
            run.drawer.draw(64)
        now = [(place.shard.totals.sampled, place.shard.totals.inserted) for place in run.places]
        return tuple(sum(b[at] - a[at] for a, b in zip(was, now, strict=True)) for at in range(2))  # type: ignore[return-value]

    turns(30)
    for place in run.places:  # one after the other, as a rolling update does it
        place.start(after)
        turns(10)
    turns(100)  # the second one had its old limit for longer
    sampled, inserted = turns(200)
    assert inserted > 0, "actors are not stopped for good"
    if after:
        assert sampled / inserted == pytest.approx(after, rel=0.05)
    else:
        assert inserted == 40_000


def test_before_enough_is_there_nothing_is_drawn_and_shards_take_their_part() -> None:
    run = Run(2, starts=1000, ratio=8.0)
    assert run.places[0].feed(5000) == 500, "its part, before anybody has said anything"
    run.meet()
    assert run.drawer.draw(10) is None
    assert run.places[0].feed(5000) > 0, "the other has no actors"
    run.meet()
    run.places[1].feed(5000)
    run.meet()
    assert whose(run.drawer.draw(10))


@pytest.mark.parametrize("shards", [1, 2])
def test_where_learning_starts_makes_no_sequence_yet_shards_are_filled_until_there_is_one(shards: int) -> None:
    """Sixteen streams, each of which sends four segments before a sequence of three and the row after it are there."""
    settings = ReplaySettings(N_STEP, burn_in=T, sequence=2 * T, prioritized=True)
    run = Run(shards, agreed=AGREED, settings=settings, streams=16, starts=50, ratio=4.0, columns=400)
    one, block = source(run, 8), 16 * T
    run.meet()
    assert sum(place.feed(10**6) for place in run.places) == shards * block, "learning_starts, and no more"
    run.meet()
    assert one.waits_for() == f"{shards * block} rows are in the replay, none of which can be drawn yet"
    for _ in range(20):
        drawable = any(shard.mass > 0 for shard in run.drawer.shards.live.values())
        assert run.drawer.held != drawable, "actors are what it waits for"
        assert one.step() == drawable
        if drawable:
            break
        assert all(place.feed(10**6) <= block for place in run.places), "a block with each question"
    assert [place.shard.totals.inserted for place in run.places] == [4 * block] * shards
    for _ in range(30):
        for place in run.places:
            place.feed(10**6)
        for _ in range(40):
            run.drawer.draw(8)
    limit = run.drawer.limit
    assert limit is not None
    assert limit.sampled / (limit.inserted - 50) == pytest.approx(4.0, rel=0.05), "the limit holds from then on"


def test_what_is_told_a_shard_is_for_the_life_it_was_meant_for() -> None:
    run = fed(1.0, ratio=4.0, starts=100)
    for _ in range(20):
        run.drawer.draw(64)
        run.places[0].feed(100)
    run.drawer.fresh()
    run.drawer.draw(10)
    granted = run.places[0].shard.totals.inserted
    run.places[0].start()
    changes = {"slot": np.arange(4), "generation": np.ones(4, np.uint32), "delta": np.full(4, 50, np.float32)}
    run.drawer.shards.known[0].changes.append(changes)
    assert run.places[0].feed(5000) == 100, "learning_starts, of one shard"
    run.drawer.draw(10)  # asked of the former life
    told = run.places[0].heard[-1]
    assert told.may_insert >= granted
    assert told.counted > 0
    assert run.places[0].feed(5000) == 0
    assert run.places[0].shard.totals.highest < 50
    for _ in range(100):
        run.drawer.draw(64)
    assert 0 < run.places[0].feed(5000) < 5000


def test_priorities_of_a_batch_go_to_the_rows_that_it_was_made_of() -> None:
    run = fed(1.0, 1.0)
    one = source(run, 60)
    assert one.step()
    batch = one.take(0.0)
    assert batch is not None
    told = torch.arange(1.0, 61.0)
    told[5] = float("nan")
    before = [place.shard._tree.mass.copy() for place in run.places]
    one.update_priorities(batch, told)
    parts = one._taken[0][2]
    one.give_back(batch)
    one.step()
    one.step()
    first = 0
    for part in parts:
        tree, wanted = run.places[part.shard].shard._tree, before[part.shard]
        for slot, error in zip(part.arrays["slot"], told[first : first + part.units].tolist(), strict=True):
            if error == error:
                wanted[slot] = error  # of a row that came twice the last one counts
        np.testing.assert_allclose(tree.mass, wanted, rtol=1e-4)
        first += part.units
    assert [sum(draw.changes for draw in place.heard) for place in run.places] == [
        sum(part.units for part in parts if part.shard == at) - (parts[0].shard == at) for at in range(2)
    ]


def test_priorities_of_a_shard_that_was_started_again_meanwhile_are_dropped() -> None:
    run = fed(1.0, 1.0)
    one = source(run, 60)
    assert one.step()
    batch = one.take(0.0)
    assert batch is not None
    run.places[1].start()
    run.places[1].feed(400)
    for _ in range(2):
        run.drawer.draw(40)
    before = run.places[1].shard._tree.mass.copy()
    one.update_priorities(batch, torch.full((60,), 77.0))
    one.give_back(batch)
    one.step()
    one.step()
    np.testing.assert_array_equal(run.places[1].shard._tree.mass, before)
    assert run.places[0].shard.totals.highest == pytest.approx(77, rel=1e-4)


def test_rows_of_a_batch_change_for_batches_that_are_not_begun() -> None:
    run = fed(1.0)
    one = source(run, 32)
    assert one.step()
    one.resize(8)
    assert one.step()
    before, after = one.take(0.0), one.take(0.0)
    assert before is not None
    assert after is not None
    assert (before.version.shape, after.version.shape) == ((1, 32), (1, 8))
    one.update_priorities(before, torch.ones(32))
    one.give_back(before)
    assert one.step()
    assert one.step(), "memory that was given back is of the new size"
    assert not one.step(), "as many are ahead as before"
    for _ in range(2):
        batch = one.take(0.0)
        assert batch is not None
        assert batch.version.shape == (1, 8)


def test_a_learner_keeps_ahead_by_two_batches_and_waits_for_those_it_gave_away() -> None:
    run = fed(1.0)
    one = source(run, 16)
    assert [one.step() for _ in range(4)] == [True, True, True, False]
    assert one.waiting_rows == 3 * 16
    batch = one.take(0.0)
    assert batch is not None
    assert not one.step()
    one.give_back(batch)
    assert one.step()


def test_a_failure_of_the_thread_reaches_the_learner() -> None:
    run = fed(1.0)
    one = source(run, 16)

    def broken() -> object:
        raise RuntimeError("out of pinned memory")

    one._told.put(broken)  # type: ignore[arg-type]
    one._run()
    with pytest.raises(RuntimeError, match="out of pinned memory"):
        one.take(0.0)


def learn(one: ReplaySource, batches: int) -> int:
    """Agent steps of so many batches."""
    counted = 0
    for _ in range(batches):
        assert one.step()
        batch = one.take(0.0)
        assert batch is not None
        counted += batch.books.rows
        assert batch.books.taken == batch.books.rows
        one.give_back(batch)
    return counted


def steps(run: Run, of: int | None = None) -> int:
    """Agent steps among the rows that all shards, or one, have had since their start."""
    return sum(place.shard.totals.steps for place in run.places if of in (None, place.number))


def more(run: Run, of: int, rows: int) -> int:
    """Agent steps among so many more rows of a shard: what only ends an episode is none."""
    before = steps(run, of)
    assert run.places[of].feed(rows) == rows
    found = steps(run, of) - before
    assert 0 < found < rows
    return found


def test_steps_are_counted_once_by_the_learner_that_leads_over_restarts_of_learners_and_shards() -> None:
    run = fed(1.0, 1.0)
    one = source(run, 16)
    assert learn(one, 2) == steps(run) < 800
    first = more(run, 0, 100)
    assert learn(one, 2) == first
    second = more(run, 1, 60)
    assert learn(one, 2) == second
    run.drawer.draw(2)  # what was counted is told with the next question
    meanwhile = more(run, 0, 40) + more(run, 1, 40)  # while no learner lives
    run.learner()
    run.meet()
    again = source(run, 16)
    assert learn(again, 2) == meanwhile, "what a learner before has counted is in the books of its generations"
    run.places[1].start()
    anew = more(run, 1, 200)
    assert learn(again, 4) == anew, "new rows, though their shard was met before"


def test_steps_that_came_before_the_first_learner_of_a_new_life_of_all_are_counted() -> None:
    run = fed(1.0, 1.0)
    assert learn(source(run, 16), 2) == steps(run)
    for place in run.places:  # down and up: the learner goes on from its generation, with shards that hold nothing
        place.start()
        place.feed(200)
    run.learner()
    run.meet()
    assert learn(source(run, 16), 2) == steps(run) < 400


def test_steps_that_a_shard_comes_back_with_are_not_counted_again_whoever_else_lived_on(tmp_path: Path) -> None:
    run = fed(1.0, 1.0)
    one = source(run, 16)
    assert learn(one, 2) == steps(run)
    generation = saved(tmp_path, 1, *run.places)
    since = more(run, 1, 60)
    assert learn(one, 2) == since
    begin(run.places[1], tmp_path, generation)  # the learner lives, and so does the other shard
    since = more(run, 1, 40)
    run.meet()
    assert learn(one, 4) == since
    begin(run.places[0], tmp_path, generation)  # then all but a shard come anew
    run.learner()
    run.meet()
    again = source(run, 16)
    assert learn(again, 2) == 0
    since = more(run, 0, 20)
    assert learn(again, 2) == since
    for place in run.places:  # and all
        begin(place, tmp_path, generation)
    run.learner()
    run.meet()
    last = source(run, 16)
    assert learn(last, 2) == 0
    since = more(run, 1, 100)
    assert learn(last, 2) == since


def test_a_run_that_comes_back_with_its_rows_draws_at_once_and_keeps_its_ratio(tmp_path: Path) -> None:
    run = Run(2, starts=600, ratio=8.0)
    for place in run.places:
        place.feed(300)
    run.meet()
    for _ in range(40):
        run.drawer.draw(64)
        for place in run.places:
            place.feed(1000)
    before = run.drawer.limit
    assert before is not None
    generation = saved(tmp_path, 1, *run.places)
    for place in run.places:
        begin(place, tmp_path, generation)
        assert place.feed(20) == 0, "before a learner has said anything"
    run.learner()
    run.meet()
    for place in run.places:
        assert place.feed(20) == 20, "as a draw of the meeting has paid"
    run.drawer.draw(1)  # hears of them
    assert whose(run.drawer.draw(16)), "learning_starts is not waited for"
    now = run.drawer.limit
    assert now is not None
    assert now.inserted == before.inserted + 40 > 640
    ahead = 64 + 2 * 20 * 8  # a draw, and a block of each shard
    assert abs(now.sampled - before.sampled) < 20 + ahead, "this draw, those of the meeting, and what either was ahead"
    for _ in range(40):
        run.drawer.draw(64)
        for place in run.places:
            place.feed(1000)
    assert now.sampled > before.sampled
    assert now.sampled / (now.inserted - 600) == pytest.approx(8.0, rel=0.1)


def test_one_that_does_not_lead_counts_nothing_and_tells_no_shard_that_it_did() -> None:
    run = fed(1.0)
    one = source(run, 16)
    one.leads = False
    assert learn(one, 3) == 0
    assert all(draw.counted == -1 for draw in run.places[0].heard)
    one.leads = True
    since = more(run, 0, 40)
    assert learn(one, 2) == since


def test_what_a_learner_waits_for_is_said() -> None:
    run = Run(2, starts=1000, ratio=8.0)
    one = source(run, 16)
    assert one.waits_for() == "no replay shard answers"
    run.places[0].feed(200)
    run.meet()
    assert one.waits_for() == "800 more rows are to come into the replay first (replay.learning_starts)"
    assert one.waiting_rows == 0
