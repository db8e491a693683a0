"""The manager's groups of learners: which are asked to leave, the place of each, and the weights that seed them."""

import pytest

from rlctl_agents.manager.membership.learner_groups import AGAIN_S, FIRST_S, NOTES, Groups
from rlctl_agents.manager.membership.leases import Holder
from rlctl_agents.types.control import Enlist, GroupPlace, Note, NoteAction, StoreReply
from rlctl_agents.types.experience import ModelRef
from tests.manager.world import Time, boot


class Table:
    """Learners with leases, which ask as they would."""

    def __init__(self, expected: int) -> None:
        self.time, self.told = Time(), list[dict[str, int]]()
        self.groups = Groups(self.time, lambda *_, **facts: self.told.append(facts))
        self.expected = expected
        self.live: list[int] = []

    def ask(
        self, number: int, version: int = 0, left: int = -1, lineage: int = 1, learned: bool | None = None
    ) -> GroupPlace:
        if number not in self.live:
            self.live.append(number)
        holders = [Holder("learner", one, boot(one), 0.0, 0.0) for one in sorted(self.live)]
        learned = left >= 0 if learned is None else learned
        ask = Enlist(boot(number), left, learned, ModelRef("main", lineage, version))
        return self.groups.enlist(ask, holders, self.expected)

    def runs(self, *numbers: int, group: int) -> None:
        for number in numbers:
            self.groups.hear(boot(number), group)

    def after(self, seconds: float, *asks: tuple[int, int, int]) -> list[GroupPlace]:
        """Time passes; these ask twice a second with (number, version, left)."""
        end, places = self.time.now + seconds, list[GroupPlace]()
        while self.time.now < end:
            self.time.now += 0.5
            places = [self.ask(*one) for one in asks]
        return places


@pytest.fixture
def two() -> Table:
    """Learners 0 and 1 step together in group 1."""
    table = Table(expected=2)
    table.ask(0)
    table.ask(1)
    table.ask(0)
    table.runs(0, 1, group=1)
    return table


def test_a_group_is_formed_when_all_learners_of_the_spec_ask_and_ranks_follow_indexes() -> None:
    table = Table(expected=3)
    assert table.ask(2) == table.ask(0) == GroupPlace(0)
    last = table.ask(1)
    assert (last.number, last.rank, last.world) == (1, 1, 3)
    assert [table.ask(number).rank for number in (0, 2)] == [0, 2]
    assert table.told == [{"number": 1, "world": 3}], "once"
    assert table.ask(2) == table.ask(2), "an answer that was lost is given again"


def test_one_learner_gets_its_place_at_once() -> None:
    assert Table(expected=1).ask(0).world == 1


def test_learners_that_wait_in_vain_for_another_begin_without_it() -> None:
    table = Table(expected=2)
    table.ask(0)
    assert table.after(FIRST_S - 1.0, (0, 0, -1)) == [GroupPlace(0)]
    assert table.after(1.0, (0, 0, -1))[0].world == 1


def test_survivors_form_the_next_group_and_the_newest_of_them_seeds_it() -> None:
    table = Table(expected=3)
    for number in (0, 1, 2):
        table.ask(number)
    table.runs(0, 1, 2, group=1)
    places = table.after(AGAIN_S + 1, (1, 40, 1), (2, 41, 1))  # 0 is dead, its lease is not over yet
    assert [(one.number, one.rank, one.world, one.seed) for one in places] == [(2, 0, 2, 1), (2, 1, 2, 1)]
    assert places[0].ref == ModelRef("main", 1, 41)


def test_a_newcomer_makes_everybody_leave_and_is_seeded_by_those_who_learned(two: Table) -> None:
    two.after(AGAIN_S + 1, (0, 30, 1))
    two.runs(0, group=2)
    assert two.groups.wanted == 0
    assert two.ask(1, version=20, lineage=2) == GroupPlace(0)
    assert two.groups.wanted == 3, "whoever is in group 2 shall leave it"
    two.ask(0, version=35, left=2)
    place = two.ask(1, version=20, lineage=2)
    assert (place.number, place.rank, place.seed, place.ref) == (3, 1, 0, ModelRef("main", 1, 35))


def test_newcomers_never_begin_without_a_learner_that_runs(two: Table) -> None:
    two.live.append(2)
    assert two.after(3 * FIRST_S, (2, 20, -1)) == [GroupPlace(0)]
    two.live = [2]  # the others lost their leases
    assert two.after(FIRST_S, (2, 20, -1))[0].world == 1


def test_a_newcomer_whose_first_group_broke_up_waits_for_the_survivor_that_notices_it_late(two: Table) -> None:
    two.live = [1]
    two.ask(2, version=20, lineage=4)
    two.ask(1, version=40, left=1)
    assert two.ask(2, version=20, lineage=4).number == 2
    two.time.now += 20.0  # 1 is still about to meet it
    for _ in range(60):
        two.time.now += 0.5
        assert two.ask(2, version=20, lineage=4, left=2, learned=False) == GroupPlace(0)
    place = two.ask(1, version=40, left=2)
    assert (place.number, place.world, place.ref) == (3, 2, ModelRef("main", 1, 40)), "what was learned is not lost"


def test_after_a_restart_of_the_manager_a_newcomer_whose_group_broke_up_leaves_the_survivor_time_to_be_heard() -> None:
    table = Table(expected=2)
    table.live = [0]
    for _ in range(20):
        table.time.now += 0.5
        assert table.ask(1, version=20, lineage=4, left=4, learned=False) == GroupPlace(0), "0 was not heard of yet"
    table.ask(0, version=40, left=4)
    assert table.ask(1, version=20, lineage=4, left=4, learned=False).ref == ModelRef("main", 1, 40)


def test_a_learner_that_was_left_behind_comes_back_as_one_of_many(two: Table) -> None:
    two.after(AGAIN_S + 1, (0, 30, 1))
    two.runs(0, group=2)
    assert two.after(AGAIN_S + 1, (1, 29, 1)) == [GroupPlace(0)], "its group is not the newest"
    two.ask(0, version=33, left=2)
    assert two.ask(1, version=29, left=1).seed == 0


def test_who_asked_and_died_has_no_place() -> None:
    table = Table(expected=3)
    table.ask(0)
    table.after(5.0, (1, 0, -1))
    assert table.ask(2) == GroupPlace(0)
    assert table.ask(0).world == 3


def test_a_manager_that_starts_anew_learns_from_reports_which_group_there_is() -> None:
    table = Table(expected=2)
    table.live = [0, 1]
    table.runs(0, 1, group=7)
    assert table.groups.wanted == 0
    places = table.after(AGAIN_S + 1, (1, 50, 7))
    assert (places[0].number, places[0].world) == (8, 1)


def test_a_learner_that_learned_alone_leaves_when_a_second_one_comes() -> None:
    table = Table(expected=2)
    table.live = [0]
    table.runs(0, group=0)
    table.ask(1, version=10, lineage=3)
    assert table.groups.wanted == 1
    place = table.ask(0, version=90, left=0)
    assert (place.world, place.rank, place.seed, place.ref) == (2, 0, 0, ModelRef("main", 1, 90))


def test_of_fresh_learners_the_newest_weights_seed_the_group_and_the_newest_lineage_is_its_own() -> None:
    table = Table(expected=2)
    table.ask(0, version=20, lineage=4)
    place = table.ask(1, version=20, lineage=5)
    assert (place.rank, place.seed, place.ref) == (1, 0, ModelRef("main", 5, 20)), "who came last is no newer"
    table = Table(expected=2)
    table.ask(0, version=10, lineage=5)  # it could not read the newest generation
    place = table.ask(1, version=20, lineage=4)
    assert (place.seed, place.ref) == (1, ModelRef("main", 5, 20))


def test_who_is_leaving_gets_no_place() -> None:
    table = Table(expected=1)
    leaving = [Holder("learner", 0, boot(0), 0.0, 0.0, leaving=True)]
    ask = Enlist(boot(0), 3, True, ModelRef("main", 1, 5))
    assert table.groups.enlist(ask, leaving, 1) == GroupPlace(0)


def note(number: int, group: int, action: NoteAction, *keys: str, value: bytes = b"", amount: int = 0) -> Note:
    return Note(boot(number), group, action, [*keys], value, amount)


def test_members_of_a_group_read_what_the_others_leave(two: Table) -> None:
    tell = two.groups.note
    assert tell(note(0, 1, "get", "a", "b")) == StoreReply([None, None])
    tell(note(0, 1, "set", "a", value=b"x"))
    assert tell(note(1, 1, "get", "a", "b")) == StoreReply([b"x", None])
    assert [tell(note(n, 1, "add", "n", amount=2)).count for n in (0, 1)] == [2, 4]
    assert tell(note(0, 1, "get", "n")).values == [b"4"], "as torch's own stores hold it"
    assert tell(note(0, 1, "count")).count == 2
    assert [tell(note(0, 1, "delete", "a")).count for _ in "12"] == [1, 0]


def test_who_has_no_place_in_the_newest_group_reads_and_leaves_nothing(two: Table) -> None:
    two.groups.note(note(0, 1, "set", "a", value=b"x"))
    for wrong in (note(2, 1, "get", "a"), note(0, 2, "get", "a"), note(2, 1, "set", "a", value=b"y")):
        with pytest.raises(ValueError, match="has no place in group"):
            two.groups.note(wrong)
    assert two.ask(0, version=5, left=1).number == 0
    assert two.ask(1, version=5, left=1).number == 2
    with pytest.raises(ValueError, match="not the newest"):
        two.groups.note(note(0, 1, "get", "a"))
    assert two.groups.note(note(0, 2, "get", "a")) == StoreReply([None]), "each group begins with none"


def test_a_group_leaves_no_more_than_so_many_notes(two: Table) -> None:
    for key in range(NOTES):
        two.groups.note(note(0, 1, "set", str(key)))
    with pytest.raises(ValueError, match="no more are kept"):
        two.groups.note(note(0, 1, "set", "one more"))
    assert two.groups.note(note(0, 1, "set", "0", value=b"again")) == StoreReply()
    for wrong in (note(0, 1, "set"), note(0, 1, "delete", "a", "b")):
        with pytest.raises(ValueError, match="takes one key"):
            two.groups.note(wrong)


def test_each_group_has_a_key_that_its_members_alone_are_told(two: Table) -> None:
    keys = {two.ask(number).key for number in (0, 1)}
    assert len(keys) == 1
    assert len(bytes.fromhex(keys.pop())) == 32
    first = two.ask(0).key
    two.ask(0, left=1)
    assert two.ask(1, left=1).key not in (first, "")
    assert two.ask(2).key == ""
