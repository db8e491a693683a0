"""Generations: ordered one at a time, committed all or nothing, removed when they are old."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from rlctl_agents.manager.checkpoints.manifests import Manifests
from rlctl_agents.manager.checkpoints.schedule import RETRY_S, Checkpoints
from rlctl_agents.manager.state_store import Progress
from rlctl_agents.types.control import Generation
from tests.manager.world import Time, ref


def saved(folder: Path, number: int, *shards: int, of: int = 2) -> Generation:
    """Of a run with a replay that generations hold: parts of these shards, the others are absent."""
    made, files = (
        generation(folder, number),
        {f"replay{one}": f"main-{number:06d}-replay{one}-0.safetensors" for one in shards},
    )
    for file in files.values():
        (folder / file).write_bytes(b"rows")
    absent = {f"replay{one}": "no process" for one in range(of) if one not in shards}
    sums = dict.fromkeys(files, "ab")
    return replace(made, parts=made.parts | files, sha256=made.sha256 | sums, absent=absent)


def generation(folder: Path, number: int, *, steps: int = 0, term: int = 1, policy: str = "main") -> Generation:
    """With its part on the volume."""
    file = f"{policy}-{number:06d}-learner-0123456789ab.safetensors"
    (folder / file).write_bytes(b"weights")
    return Generation(
        number, policy, term, ref(number * 10), steps or number * 1000, 1.7e9, {"learner": file}, {"learner": "ab"}
    )


def test_a_committed_generation_is_a_file_and_is_found_again(tmp_path: Path) -> None:
    manifests = Manifests(tmp_path)
    one = generation(tmp_path, 12)
    manifests.commit(one)
    assert json.loads((tmp_path / "generation-000012.json").read_text())["generation"]["number"] == 12
    again = Manifests(tmp_path)
    assert again.of("main") == (one,)
    assert (again.highest, again.newest_term) == (12, 1)


def test_generations_come_newest_first_and_by_policy(tmp_path: Path) -> None:
    manifests = Manifests(tmp_path)
    for number, policy in ((1, "main"), (2, "exploiter"), (3, "main")):
        manifests.commit(generation(tmp_path, number, policy=policy))
    assert [one.number for one in manifests.of("main")] == [3, 1]
    assert manifests.newest("nobody") is None


def test_a_number_counts_once(tmp_path: Path) -> None:
    manifests, late = Manifests(tmp_path), Manifests(tmp_path)
    manifests.commit(generation(tmp_path, 5))
    with pytest.raises(ValueError, match="not newer than 5"):
        manifests.commit(generation(tmp_path, 5))
    with pytest.raises(ValueError, match="by another process"):
        late.commit(generation(tmp_path, 5))


@pytest.mark.parametrize("file", ["", "../../etc/passwd", "/etc/passwd", ".hidden", "generation-000001.json", "absent"])
def test_a_part_that_is_not_there_or_not_ours_is_refused(tmp_path: Path, file: str) -> None:
    (tmp_path / "generation-000001.json").write_text("x")
    with pytest.raises(ValueError, match="part learner"):
        Manifests(tmp_path).commit(Generation(9, "main", 1, ref(1), 1, 0.0, {"learner": file}, {"learner": "ab"}))


def test_a_part_without_checksum_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="checksum"):
        Manifests(tmp_path).commit(Generation(9, "main", 1, ref(1), 1, 0.0, {"learner": "x"}, {}))


def test_old_generations_go_with_their_parts_and_nothing_else(tmp_path: Path) -> None:
    manifests = Manifests(tmp_path)
    (tmp_path / "mine.txt").write_text("not yours")
    (tmp_path / "main-000009-learner-x.safetensors.tmp.host.1").write_text("being written")
    for number in range(1, 6):
        manifests.commit(generation(tmp_path, number))
    removed = manifests.prune(2)
    assert [one.number for one in removed] == [3, 2, 1]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "generation-000004.json",
        "generation-000005.json",
        "main-000004-learner-0123456789ab.safetensors",
        "main-000005-learner-0123456789ab.safetensors",
        "main-000009-learner-x.safetensors.tmp.host.1",
        "mine.txt",
    ]
    assert manifests.prune(2) == []


def test_a_part_that_a_newer_generation_shares_stays(tmp_path: Path) -> None:
    manifests = Manifests(tmp_path)
    first = generation(tmp_path, 1)
    manifests.commit(first)
    manifests.commit(Generation(2, "main", 1, ref(9), 9, 0.0, first.parts, first.sha256))
    manifests.prune(1)
    assert (tmp_path / first.parts["learner"]).exists()


def test_the_newest_part_of_a_shard_that_could_not_save_since_stays(tmp_path: Path) -> None:
    manifests = Manifests(tmp_path)
    for number, shards in enumerate(((0, 1), (0, 1), (1,), (), (), ()), 1):
        manifests.commit(saved(tmp_path, number, *shards))
        manifests.prune(2)
    assert [one.number for one in manifests.of("main")] == [6, 5, 3, 2], "3 has the rows of shard 1, 2 those of shard 0"
    assert manifests.without("main") == {"replay0": 2, "replay1": 3}
    manifests.commit(saved(tmp_path, 7, 0))
    manifests.prune(2)
    assert [one.number for one in manifests.of("main")] == [7, 6, 3]
    assert manifests.without("main") == {"replay1": 3}
    manifests.commit(saved(tmp_path, 8, 1))
    assert manifests.without("main") == {}, "the generation before has those of shard 0"
    manifests.prune(2)
    assert [one.number for one in manifests.of("main")] == [8, 7]


def test_a_shard_that_is_wanted_no_more_holds_no_generation(tmp_path: Path) -> None:
    manifests = Manifests(tmp_path)
    for number in range(1, 3):
        manifests.commit(saved(tmp_path, number, 0, 1))
    for number in range(3, 5):
        manifests.commit(saved(tmp_path, number, 0, of=1))
    manifests.prune(2)
    assert [one.number for one in manifests.of("main")] == [4, 3]


def test_a_shard_that_has_never_saved_is_named(tmp_path: Path) -> None:
    manifests = Manifests(tmp_path)
    manifests.commit(saved(tmp_path, 1, 0))
    assert manifests.without("main") == {"replay1": None}
    assert manifests.without("exploiter") == {}


def test_each_policy_keeps_its_own(tmp_path: Path) -> None:
    manifests = Manifests(tmp_path)
    for number in range(1, 5):
        manifests.commit(generation(tmp_path, number, policy="main" if number > 1 else "exploiter"))
    manifests.prune(1)
    assert [one.number for one in manifests.of("exploiter")] == [1]


def test_a_damaged_manifest_is_left_alone_and_its_number_is_not_used_again(tmp_path: Path) -> None:
    manifests = Manifests(tmp_path)
    for number in (1, 2):
        manifests.commit(generation(tmp_path, number))
    (tmp_path / "generation-000002.json").write_text('{"format": 1, "gener')
    again = Manifests(tmp_path)
    assert [one.number for one in again.of("main")] == [1]
    assert again.damaged == again.newest_damaged == ["generation-000002.json"]
    assert again.highest == 2
    again.commit(generation(tmp_path, 3))
    assert (again.damaged, again.newest_damaged) == (["generation-000002.json"], [])


def test_a_manifest_that_the_volume_does_not_give_is_not_damaged(tmp_path: Path) -> None:
    Manifests(tmp_path).commit(generation(tmp_path, 1))
    (tmp_path / "generation-000002.json").mkdir()  # reading it fails with EISDIR
    with pytest.raises(IsADirectoryError):
        Manifests(tmp_path)
    (tmp_path / "generation-000002.json").rmdir()
    Manifests(tmp_path).commit(generation(tmp_path, 4))
    (tmp_path / "generation-000002.json").mkdir()  # an old one that cannot be read keeps nothing from going on
    assert Manifests(tmp_path).damaged == ["generation-000002.json"]
    (tmp_path / "generation-000002.json").rmdir()
    (tmp_path / "generation-000003.json").symlink_to("gone")  # removed between the listing and the reading
    again = Manifests(tmp_path)
    assert (again.damaged, again.highest) == ([], 4)


def test_a_manifest_that_was_renamed_is_not_believed(tmp_path: Path) -> None:
    Manifests(tmp_path).commit(generation(tmp_path, 1))
    (tmp_path / "generation-000001.json").rename(tmp_path / "generation-000007.json")
    assert Manifests(tmp_path).of("main") == ()


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def checkpoints(tmp_path: Path, time: Time) -> Checkpoints:
    return Checkpoints(Manifests(tmp_path), Progress(term=3), time, standing_term=lambda: 3)


def test_a_generation_is_due_after_its_time_when_something_was_learned(checkpoints: Checkpoints, time: Time) -> None:
    assert not checkpoints.due("main", 0, 10, 60)
    assert not checkpoints.due("main", 640, 10, 60), "the time begins with the first steps"
    time.now += 60
    assert checkpoints.due("main", 1280, 10, 60)


def test_the_schedule_goes_on_after_a_manager(checkpoints: Checkpoints, time: Time) -> None:
    checkpoints.resume("main", 50.0)
    time.now += 9.0
    assert not checkpoints.due("main", 100, 10, 60.0)
    time.now += 1.0
    assert checkpoints.due("main", 100, 10, 60.0)


def test_an_order_stands_until_it_is_committed(checkpoints: Checkpoints, time: Time, tmp_path: Path) -> None:
    number = checkpoints.order("main")
    time.now += 500
    assert checkpoints.order("main") == number == checkpoints.wanted("main") == 1
    assert not checkpoints.due("main", 10**6, 10, 60)
    assert checkpoints.waiting_s("main") == 500
    checkpoints.commit(generation(tmp_path, number, term=3, steps=640))
    assert checkpoints.wanted("main") == 0
    assert not checkpoints.due("main", 640, 10, 60)
    time.now += 60
    assert not checkpoints.due("main", 640, 10, 60), "nothing was learned since"
    assert checkpoints.due("main", 640, 11, 60), "more was learned from the rows of a replay"
    assert checkpoints.due("main", 1280, 10, 60)
    assert checkpoints.order("main") == 2


def test_a_generation_that_came_to_nothing_is_wanted_again_under_another_number(
    checkpoints: Checkpoints, time: Time
) -> None:
    first = checkpoints.order("main")
    assert not checkpoints.note_failure("main", 0)
    assert not checkpoints.note_failure("main", first)
    time.now += RETRY_S
    assert checkpoints.note_failure("main", first)
    assert checkpoints.wanted("main") > first
    assert checkpoints.waiting_s("main") == RETRY_S
    assert not checkpoints.note_failure("main", first)


def test_after_a_failure_the_learner_saves_first_and_what_others_had_added_is_removed(
    checkpoints: Checkpoints, time: Time, tmp_path: Path
) -> None:
    first = checkpoints.order("main")
    assert not checkpoints.came_to_nothing("main")
    generation(tmp_path, first)  # of shards: the learner had no room
    checkpoints.note_failure("main", first)
    assert checkpoints.came_to_nothing("main")
    assert parts(tmp_path) == [str(first)], "one that is still written may be committed by another learner"
    time.now += RETRY_S
    assert checkpoints.note_failure("main", first)
    assert parts(tmp_path) == []
    assert checkpoints.came_to_nothing("main")
    checkpoints.commit(generation(tmp_path, checkpoints.wanted("main"), term=3))
    assert not checkpoints.came_to_nothing("main")


def test_parts_of_a_generation_that_waits_for_others_stay_though_the_next_learner_cannot_save(
    checkpoints: Checkpoints, time: Time, tmp_path: Path
) -> None:
    checkpoints.assembly._owners = lambda: {"replay0": True}
    first = checkpoints.order("main")
    assert checkpoints.assembly.hold(generation(tmp_path, first, term=3))
    checkpoints.note_failure("main", first)
    time.now += RETRY_S
    assert checkpoints.note_failure("main", first)
    assert parts(tmp_path) == [str(first)]


def test_an_old_failure_does_not_touch_a_newer_order(checkpoints: Checkpoints, time: Time, tmp_path: Path) -> None:
    first = checkpoints.order("main")
    checkpoints.commit(generation(tmp_path, first, term=3))
    second = checkpoints.order("main")
    assert not checkpoints.note_failure("main", first)
    time.now += RETRY_S
    assert not checkpoints.note_failure("main", first)
    assert checkpoints.wanted("main") == second


def test_a_generation_of_another_term_is_refused(checkpoints: Checkpoints, tmp_path: Path) -> None:
    for term in (2, 4):
        with pytest.raises(ValueError, match=f"under term {term}, the run is at 3"):
            checkpoints.commit(generation(tmp_path, 1, term=term))
    assert not list(tmp_path.glob("generation-*"))


def test_numbers_that_any_manager_issued_are_not_issued_again(tmp_path: Path, time: Time) -> None:
    assert (
        Checkpoints(Manifests(tmp_path), Progress(term=3, issued=41), time, standing_term=lambda: 3).order("main") == 42
    )


def test_a_learner_that_saves_on_its_own_account_is_believed(checkpoints: Checkpoints, tmp_path: Path) -> None:
    checkpoints.order("main")
    checkpoints.commit(generation(tmp_path, 6, term=3))
    assert checkpoints.wanted("main") == 0
    assert checkpoints.order("main") == 7


def test_a_learner_that_went_back_to_an_older_generation_saves_again(checkpoints: Checkpoints, tmp_path: Path) -> None:
    checkpoints.commit(generation(tmp_path, 1, term=3, steps=9000))
    assert not checkpoints.worth_saving("main", 9000, 10)
    assert checkpoints.worth_saving("main", 4000, 4)
    assert not checkpoints.worth_saving("main", 0, 0)


def parts(folder: Path) -> list[str]:
    """Numbers of the generations with parts on the volume."""
    return sorted(path.name[5:11].lstrip("0") for path in folder.glob("main-*.safetensors"))


def test_parts_whose_commit_came_to_nothing_go_with_the_next_commit(checkpoints: Checkpoints, tmp_path: Path) -> None:
    checkpoints.commit(generation(tmp_path, 1, term=3))
    with pytest.raises(ValueError, match="under term 2"):
        checkpoints.commit(generation(tmp_path, 2, term=2))
    generation(tmp_path, 3)  # nobody heard of it
    generation(tmp_path, 5)  # it may be on its way
    generation(tmp_path, 3, policy="exploiter")
    (tmp_path / "main-000002-notes.txt").write_text("not ours")
    newest = generation(tmp_path, 4, term=3)
    checkpoints.commit(newest)
    checkpoints.tidy(newest, keep=2)
    assert checkpoints.failure == ""
    assert parts(tmp_path) == ["1", "4", "5"]
    assert len(list(tmp_path.glob("exploiter-*"))) == 1
    assert (tmp_path / "main-000002-notes.txt").exists()


def test_what_was_half_written_for_a_generation_before_the_newest_goes_too(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    """Of a shard that was killed and scaled away, gigabytes that nobody else would remove."""
    gone = ["main-000002-replay3.safetensors.tmp.replay-3.1", "main-000003-learner-0123456789ab.safetensors.tmp.x.7"]
    kept = ["main-000004-replay0.safetensors.tmp.replay-0.1", "exploiter-000002-replay0.safetensors.tmp.a.1",
            "main-000002-notes.txt.tmp.a.1", "mine.tmp.a.1"]  # fmt: skip
    for name in (*gone, *kept):
        (tmp_path / name).write_bytes(b"half")
    newest = generation(tmp_path, 4, term=3)
    checkpoints.commit(newest)
    checkpoints.tidy(newest, keep=1)
    assert sorted(path.name for path in tmp_path.glob("*.tmp.*")) == sorted(kept)


def test_a_part_that_a_generation_names_under_another_number_stays(checkpoints: Checkpoints, tmp_path: Path) -> None:
    shared = generation(tmp_path, 1, term=3).parts
    newest = Generation(2, "main", 3, ref(9), 9, 0.0, shared, {"learner": "ab"})
    checkpoints.commit(newest)
    checkpoints.tidy(newest, keep=1)
    assert parts(tmp_path) == ["1"]


def test_what_a_damaged_generation_may_name_stays(tmp_path: Path, time: Time) -> None:
    for number in (1, 2, 4):
        generation(tmp_path, number)
    (tmp_path / "generation-000002.json").write_text('{"format": 1, "gener')
    checkpoints = Checkpoints(Manifests(tmp_path), Progress(term=3), time, standing_term=lambda: 3)
    newest = generation(tmp_path, 5, term=3)
    checkpoints.commit(newest)
    checkpoints.tidy(newest, keep=1)
    assert parts(tmp_path) == ["1", "2", "5"]


def test_a_manager_that_was_overtaken_after_its_commit_removes_no_part_that_nobody_names(
    tmp_path: Path, time: Time
) -> None:
    standing = [3]
    checkpoints = Checkpoints(Manifests(tmp_path), Progress(term=3), time, standing_term=lambda: standing[0])
    generation(tmp_path, 1)
    newest = generation(tmp_path, 2, term=3)
    checkpoints.commit(newest)
    standing[0] = 4
    checkpoints.tidy(newest, keep=1)
    assert parts(tmp_path) == ["1", "2"]
    with pytest.raises(ValueError, match="a manager of term 4 has taken over"):
        checkpoints.commit(generation(tmp_path, 3, term=3))


def test_where_somebody_else_has_committed_no_part_is_removed(checkpoints: Checkpoints, tmp_path: Path) -> None:
    generation(tmp_path, 1)
    Manifests(tmp_path).commit(generation(tmp_path, 9))
    newest = generation(tmp_path, 2, term=3)
    checkpoints.commit(newest)
    checkpoints.tidy(newest, keep=1)
    assert parts(tmp_path) == ["1", "2", "9"]


def test_what_cannot_be_removed_is_said(checkpoints: Checkpoints, tmp_path: Path) -> None:
    lost = generation(tmp_path, 1).parts["learner"]
    (tmp_path / lost).unlink()
    (tmp_path / lost).mkdir()
    newest = generation(tmp_path, 2, term=3)
    checkpoints.commit(newest)
    checkpoints.tidy(newest, keep=1)
    assert checkpoints.failure.startswith(f"cannot remove old generations: {tmp_path / lost}: ")
