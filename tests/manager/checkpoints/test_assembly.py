"""Generations to which replay shards add their parts: held, whole, without one, or given up; never forgotten."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from rlctl_agents.manager.checkpoints.assembly import ENDING_S, WAIT_S, Assembly
from rlctl_agents.manager.checkpoints.manifests import Manifests
from rlctl_agents.manager.status.problems import LATE_GENERATION_S, LATE_PARTS_S
from rlctl_agents.types.control import Commit, Contribute, Generation, Reply
from tests.manager.checkpoints.test_generations import generation
from tests.manager.world import ACTOR, LEARNER, POOL, Run, Time, boot, everybody, kinds, ref, status

# -- what waits for what -------------------------------------------------------------------------------------------


class Owners(dict[str, bool]):
    """Part -> whether its process lives; changed by tests."""

    def __call__(self) -> dict[str, bool]:
        return self


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def owners() -> Owners:
    return Owners(replay0=True, replay1=True)


@pytest.fixture
def assembly(time: Time, owners: Owners) -> Assembly:
    return Assembly(time, owners, lambda: 60.0)


def told(number: int, file: str = "f", fault: str = "") -> Contribute:
    return Contribute("boot", 1, number, "" if fault else file, "" if fault else f"sha of {file}", fault)


def numbers(found: list[Generation]) -> list[int]:
    return [one.number for one in found]


def test_a_generation_is_whole_once_every_part_is_there_whoever_comes_first(tmp_path: Path, assembly: Assembly) -> None:
    assembly.add("replay1", told(7, "early"))
    assert assembly.hold(generation(tmp_path, 7))
    assert assembly.ready() == []
    assembly.add("replay0", told(7, "late"))
    (whole,) = assembly.ready()
    assert whole.parts == {**generation(tmp_path, 7).parts, "replay0": "late", "replay1": "early"}
    assert whole.sha256 == {"learner": "ab", "replay0": "sha of late", "replay1": "sha of early"}
    assert whole.absent == {}
    assert assembly.ready() == []


def test_one_that_nobody_adds_to_is_not_held(tmp_path: Path, assembly: Assembly, owners: Owners) -> None:
    owners.clear()
    assert not assembly.hold(generation(tmp_path, 7))


def test_a_part_that_failed_is_absent_with_its_reason_and_nobody_waits_for_it(
    tmp_path: Path, assembly: Assembly
) -> None:
    assembly.hold(generation(tmp_path, 7))
    assembly.add("replay0", told(7, fault="no space left on device"))
    assembly.add("replay1", told(7, "there"))
    (whole,) = assembly.ready()
    assert whole.absent == {"replay0": "no space left on device"}
    assert whole.parts.keys() == whole.sha256.keys() == {"learner", "replay1"}


def test_a_process_that_lives_is_waited_for_five_minutes_one_that_does_not_is_not(
    tmp_path: Path, assembly: Assembly, owners: Owners, time: Time
) -> None:
    assembly.hold(generation(tmp_path, 7))
    assembly.add("replay0", told(7, "there"))
    time.now += WAIT_S - 1
    assert assembly.hold(generation(tmp_path, 7)), "it was asked again, and waits since it was asked first"
    assert assembly.ready() == []
    assert assembly.lacks("main") == ["replay1"]
    time.now += 1
    (whole,) = assembly.ready()
    assert whole.absent == {"replay1": f"not there after {WAIT_S:.0f} s"}
    assembly.hold(generation(tmp_path, 8))
    assembly.add("replay0", told(8, "there"))
    owners["replay1"] = False
    assert assembly.lacks("main") == []
    (whole,) = assembly.ready()
    assert whole.absent == {"replay1": "its process does not report"}


def test_parts_are_waited_for_as_long_as_a_generation_is_apart_from_the_next(
    tmp_path: Path, owners: Owners, time: Time
) -> None:
    every = [3 * WAIT_S]
    assembly = Assembly(time, owners, lambda: every[0])
    assembly.hold(generation(tmp_path, 7))
    time.now += 2 * WAIT_S
    assert assembly.ready() == []
    every[0] = 60.0  # of a spec that was changed meanwhile
    (whole,) = assembly.ready()
    assert whole.absent == dict.fromkeys(("replay0", "replay1"), f"not there after {2 * WAIT_S:.0f} s")


def test_the_part_of_a_process_that_died_after_it_was_written_is_there(
    tmp_path: Path, assembly: Assembly, owners: Owners
) -> None:
    assembly.hold(generation(tmp_path, 7))
    assembly.add("replay0", told(7, "of the dead"))
    owners["replay0"] = False
    assembly.add("replay1", told(7, "there"))
    (whole,) = assembly.ready()
    assert whole.parts["replay0"] == "of the dead"


def test_a_process_that_was_started_again_does_not_replace_the_part_of_its_former_life_but_a_failure(
    tmp_path: Path, assembly: Assembly
) -> None:
    assembly.hold(generation(tmp_path, 7))
    assembly.add("replay0", told(7, "all rows"))
    assembly.add("replay0", told(7, "rows of a generation before"))
    assembly.add("replay1", told(7, fault="no space"))
    assembly.add("replay1", told(7, "there after all"))
    (whole,) = assembly.ready()
    assert (whole.parts["replay0"], whole.parts["replay1"]) == ("all rows", "there after all")


@pytest.mark.parametrize(("end", "wait_s"), [("", WAIT_S), ("ending", ENDING_S), ("last", 0.0)])
def test_a_run_that_ends_waits_no_longer_than_its_processes_live(
    end: Any, wait_s: float, tmp_path: Path, assembly: Assembly, time: Time
) -> None:
    assembly.hold(generation(tmp_path, 7))
    if wait_s:
        time.now += wait_s - 0.1
        assert assembly.ready(end) == []
    time.now += 0.1
    assert numbers(assembly.ready(end)) == [7]


def test_parts_are_added_to_the_generation_that_is_held_else_to_the_one_that_is_ordered(
    tmp_path: Path, assembly: Assembly
) -> None:
    assert assembly.number("main", 0) == 0
    assert assembly.number("main", 7) == 7
    assembly.hold(generation(tmp_path, 9))
    assert assembly.number("main", 0) == assembly.number("main", 7) == 9, "a learner saved on its own account"
    assert assembly.number("other", 0) == 0


def test_a_newer_generation_does_not_displace_one_that_waits_and_is_not_committed_before_it(
    tmp_path: Path, assembly: Assembly, time: Time
) -> None:
    """A learner that is asked to end saves a last one while shards still write the one before."""
    assembly.hold(generation(tmp_path, 7))
    assembly.hold(generation(tmp_path, 8))
    assembly.add("replay0", told(7, "a"))
    assembly.add("replay1", told(7, "b"))
    assert numbers(assembly.ready()) == [7]
    assembly.hold(generation(tmp_path, 9))
    assembly.add("replay0", told(8, "a8"))
    assembly.add("replay0", told(9, "a9"))
    assembly.add("replay1", told(9, "b9"))
    first, second = assembly.ready()
    assert (first.number, second.number) == (8, 9)
    assert (first.parts["replay0"], list(first.absent)) == ("a8", ["replay1"])
    assert (second.parts["replay0"], second.parts["replay1"], second.absent) == ("a9", "b9", {})


def test_of_learners_that_step_together_each_saves_a_last_one_and_one_is_held(
    tmp_path: Path, assembly: Assembly
) -> None:
    first = generation(tmp_path, 7)
    others = (replace(first, number=8, created=2.0), replace(first, number=6, ref=ref(60), created=3.0))
    for one in (first, *others, first, *others):
        assert assembly.hold(one)
    for part in ("replay0", "replay1"):
        assembly.add(part, told(7, part))
    assert numbers(assembly.ready()) == [7]


def test_what_came_of_it_is_remembered_for_the_learner_that_asks(tmp_path: Path, assembly: Assembly) -> None:
    asked = generation(tmp_path, 7)
    assembly.hold(asked)
    (whole,) = assembly.ready("last")
    assert assembly.outcome(asked) is None
    assembly.end(whole)
    assert assembly.outcome(asked) == ""
    assert assembly.outcome(replace(asked, created=2.0)) is None, "of another learner, under the same number"
    assembly.end(replace(whole, number=8), "the volume is full")
    assert assembly.outcome(replace(asked, number=8)) == "the volume is full"


def test_what_shards_told_of_generations_that_are_over_is_forgotten(tmp_path: Path, assembly: Assembly) -> None:
    for number in range(1, 50):
        assembly.add("replay0", told(number))
        if number % 7 == 0:
            assembly.hold(generation(tmp_path, number))
            assembly.ready("last")
    assert list(assembly._parts) == []
    assert len(assembly._ended) <= 16


# -- the manager's part --------------------------------------------------------------------------------------------

SHARDS = (51, 52)
FULL: dict[str, Any] = {
    "algorithm": {"name": "apex_dqn"}, "replay": {"checkpoint": "full"}, "roles": {"replay": {"replicas": 2}},
    "checkpoint": {"every": 60, "keep": 2},
}  # fmt: skip


@pytest.fixture
def full(tmp_path: Path) -> Run:
    run = Run(tmp_path, **FULL)
    everybody(run)
    for index, number in enumerate(SHARDS):
        run.join("replay", number, index)
    return run


def shard_part(run: Run, number: int, index: int, made: int = 0) -> str:
    """A shard's part lies on the volume; its file."""
    file = f"main-{number:06d}-replay{index}-{made:012x}.safetensors"
    (run.layout.checkpoints / file).write_bytes(b"rows")
    return file


def contribute(run: Run, number: int, index: int, *, sender: int | None = None, **values: Any) -> Reply:
    values = {"file": shard_part(run, number, index), "sha256": "cd", "term": run.manager.life.term, **values}
    return run.manager.contribute(Contribute(boot(sender or SHARDS[index]), number=number, **values))


def made(run: Run, number: int, *, version: int = 0, lineage: int = 1, term: int | None = None) -> Generation:
    """The learner has written a generation."""
    one = generation(run.layout.checkpoints, number, steps=1000 * number, term=term or run.manager.life.term)
    return replace(one, ref=ref(version or 10 * number, lineage))


def save(run: Run, one: Generation, sender: int = LEARNER) -> Reply:
    return run.manager.commit(Commit(one, boot(sender)))


def orders(run: Run) -> list[int]:
    """Number that the learner and each shard is told to save."""
    told = [run.report("learner", LEARNER, counters={"consumed_steps": 9000.0}, model=ref(90))]
    told += [run.report("replay", number) for number in SHARDS]
    return [one.checkpoint for one in told]


def newest(run: Run) -> Generation:
    found = run.manager.checkpoints.manifests.newest("main")
    assert found is not None
    return found


def test_one_number_is_ordered_of_the_learner_and_of_every_shard(full: Run) -> None:
    assert orders(full) == [0, 0, 0]
    number = full.manager.order_checkpoint()
    assert orders(full) == [number] * 3
    assert full.report("actor", ACTOR).checkpoint == full.report("modelpool", POOL).checkpoint == 0


def test_without_full_no_shard_is_asked_for_a_part_and_no_generation_waits(tmp_path: Path) -> None:
    run = Run(tmp_path, **{**FULL, "replay": {}})
    everybody(run)
    leases = [run.join("replay", number, index) for index, number in enumerate(SHARDS)]
    assert orders(run) == [0, 0, 0]
    run.manager.order_checkpoint()
    assert orders(run) == [1, 0, 0]
    assert save(run, made(run, 1)) == Reply(True)
    assert newest(run).absent == {}
    assert [one.generations for one in leases] == [(), ()]


def test_a_generation_is_committed_when_the_parts_of_all_shards_are_there(full: Run) -> None:
    number = full.manager.order_checkpoint()
    one = made(full, number)
    assert save(full, one).again
    assert contribute(full, number, 0).ok
    full.manager.turn()
    assert save(full, one).again
    assert Manifests(full.layout.checkpoints).newest("main") is None
    assert orders(full)[1:] == [number, number], "an order stands: whoever comes anew saves its part, too"
    assert contribute(full, number, 1).ok
    full.manager.turn()
    assert save(full, one) == Reply(True)
    stored = Manifests(full.layout.checkpoints).newest("main")
    assert stored == newest(full)
    assert stored is not None
    assert stored.parts.keys() == {"learner", "replay0", "replay1"}
    assert orders(full) == [0, 0, 0]
    assert "refused" not in kinds(full)


def test_shards_are_leased_with_the_generations_to_begin_from(full: Run) -> None:
    for number in (1, 2):
        save(full, made(full, number))
        for index in range(2):
            contribute(full, number, index)
        full.manager.turn()
    assert [one.number for one in full.join("replay", 61, 1).generations] == [2, 1]


def test_a_shard_that_dies_while_it_is_waited_for_is_absent_and_the_status_and_an_event_say_so(full: Run) -> None:
    save(full, made(full, 1))
    contribute(full, 1, 0)
    others = [("learner", LEARNER), ("actor", ACTOR), ("modelpool", POOL), ("replay", SHARDS[0])]
    full.after(40, *others)
    assert newest(full).absent == {"replay1": "its process does not report"}
    assert status(full)["checkpoint"]["absent"] == {"replay/1": "its process does not report"}
    (event,) = [one for one in full.manager.events.since(0)[0] if one["kind"] == "absent"]
    assert "generation 1 is without replay1: its process does not report" in event["text"]


def test_a_shard_that_hangs_and_still_reports_is_waited_for_no_longer_than_five_minutes(full: Run) -> None:
    number, one = full.manager.order_checkpoint(), made(full, 1)
    save(full, one)
    contribute(full, number, 0)
    everyone = [("learner", LEARNER), ("actor", ACTOR), ("modelpool", POOL), *(("replay", one) for one in SHARDS)]

    def late() -> list[str]:
        return [problem["text"] for problem in status(full)["problems"] if "was ordered" in problem["text"]]

    full.after(LATE_GENERATION_S + 10, *everyone)
    assert late() == [], "a large replay takes its time"
    full.after(LATE_PARTS_S - LATE_GENERATION_S, *everyone)
    assert late() == [f"generation 1 was ordered {LATE_PARTS_S + 10:.0f} s ago and waits for replay/1"]
    assert full.manager.checkpoints.manifests.newest("main") is None
    full.after(WAIT_S - LATE_PARTS_S, *everyone)
    assert list(newest(full).absent) == ["replay1"]
    assert save(full, one) == Reply(True)


def test_a_shard_that_is_started_again_while_it_is_waited_for_adds_its_part(full: Run) -> None:
    number = full.manager.order_checkpoint()
    save(full, made(full, number))
    contribute(full, number, 0)
    full.join("replay", 61, 1)
    assert full.report("replay", 61).checkpoint == number
    assert not contribute(full, number, 1).ok, "the one before is nobody any more"
    assert contribute(full, number, 1, sender=61).ok
    full.manager.turn()
    assert newest(full).absent == {}


def test_where_shards_are_added_or_gone_the_parts_of_those_that_live_or_are_wanted_count(full: Run) -> None:
    full.join("replay", 53, 2)
    save(full, made(full, 1))
    for index in range(2):
        contribute(full, 1, index)
    full.manager.turn()
    assert full.manager.checkpoints.manifests.newest("main") is None
    assert contribute(full, 1, 2, sender=53).ok
    full.manager.turn()
    assert newest(full).parts.keys() == {"learner", "replay0", "replay1", "replay2"}


@pytest.mark.parametrize(
    "file",
    [
        "", "../../etc/passwd", "/etc/passwd", ".hidden", "generation-000001.json", "absent", "mine.txt",
        "main-000001-learner-0123456789ab.safetensors", "main-000001-replay1-000000000000.safetensors",
        "main-000002-replay0-000000000000.safetensors", "main-000001-replay01-000000000000.safetensors",
        "main-000001-replay0.safetensors", "main-000001-replay0-x",
    ],
)  # fmt: skip
def test_a_file_that_is_not_the_shards_part_is_absent_and_does_not_hold_up_the_others(file: str, full: Run) -> None:
    folder = full.layout.checkpoints
    for index, number in ((1, 1), (0, 2)):
        shard_part(full, number, index)
    for name in ("mine.txt", "generation-000001.json", "main-000001-replay01-000000000000.safetensors",
                 "main-000001-replay0.safetensors", "main-000001-replay0-x"):  # fmt: skip
        (folder / name).write_text("x")
    save(full, made(full, 1))
    contribute(full, 1, 0, file=file)
    contribute(full, 1, 1)
    (folder / "generation-000001.json").unlink()
    full.manager.turn()
    assert list(newest(full).absent) == ["replay0"]
    assert newest(full).parts.keys() == {"learner", "replay1"}


def test_a_part_that_the_volume_does_not_let_us_look_at_is_looked_at_again(
    full: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stale(path: Path) -> bool:
        raise OSError(errno.ESTALE, "Stale file handle", str(path))

    save(full, made(full, 1))
    with monkeypatch.context() as patched:
        patched.setattr(Path, "is_file", stale)
        said = [contribute(full, 1, index) for index in range(2)]
        full.manager.turn()
    why = "the volume does not say whether it is there: Stale file handle; the manager looks again"
    assert said == [Reply(False, why, again=True)] * 2
    assert full.manager.checkpoints.assembly.lacks("main") == ["replay0", "replay1"]
    full.manager.turn()
    assert newest(full).parts.keys() == {"learner", "replay0", "replay1"}


def test_nobody_but_a_live_shard_adds_a_part(full: Run) -> None:
    save(full, made(full, 1))
    for sender in (LEARNER, ACTOR, 99):
        assert not contribute(full, 1, 0, sender=sender).ok
    assert not contribute(full, 1, 0, term=full.manager.life.term + 1).ok
    full.manager.turn()
    assert full.manager.checkpoints.manifests.newest("main") is None
    assert full.manager.checkpoints.assembly.lacks("main") == ["replay0", "replay1"]


def test_a_learner_that_was_killed_while_its_generation_waits_loses_nothing(full: Run) -> None:
    one = made(full, 1)
    assert save(full, one).again
    for index in range(2):
        contribute(full, 1, index)
    full.after(40, ("actor", ACTOR), ("modelpool", POOL), *(("replay", one) for one in SHARDS))
    assert newest(full).number == 1
    assert newest(full).absent == {}


def test_the_learner_after_it_goes_on_from_that_generation_though_shards_still_write(full: Run) -> None:
    """It was durable before the one before died: going back behind it would lose what it holds."""
    save(full, made(full, 1))
    contribute(full, 1, 0)
    lease = full.join("learner", 22, prefer=0)
    assert [one.number for one in lease.generations] == [1]
    assert list(newest(full).absent) == ["replay1"]
    contribute(full, 1, 1)
    full.manager.turn()
    assert [one.number for one in full.manager.checkpoints.manifests.of("main")] == [1]
    assert save(full, made(full, 2, lineage=2), sender=22).again
    assert "refused" not in kinds(full)


def test_another_learner_of_a_group_hurries_nobody(full: Run) -> None:
    save(full, made(full, 1))
    full.join("learner", 22, prefer=1)
    assert full.manager.checkpoints.manifests.newest("main") is None
    assert full.manager.checkpoints.assembly.lacks("main") == ["replay0", "replay1"]


def test_a_manager_that_is_started_again_refuses_what_was_saved_under_the_one_before_at_once(full: Run) -> None:
    number = full.manager.order_checkpoint()
    one = made(full, number)
    assert save(full, one).again
    contribute(full, number, 0)
    full.manager.store()
    full.start()
    everybody(full)
    for index, sender in enumerate(SHARDS):
        full.join("replay", sender, index)
    said = save(full, one)
    assert (said.ok, said.again) == (False, False)
    assert "was saved under term 1, the run is at 2" in said.why
    assert not contribute(full, number, 1, term=1).ok, "an order of a stale term"
    assert orders(full) == [0, 0, 0], "nobody is asked for parts of it"
    again = full.manager.order_checkpoint()
    assert again > number
    assert orders(full) == [again] * 3
    save(full, made(full, again))
    for index in range(2):
        contribute(full, again, index)
    full.manager.turn()
    assert (newest(full).number, newest(full).absent) == (again, {})


def test_a_generation_of_an_older_lineage_does_not_wait_to_be_refused(full: Run) -> None:
    save(full, made(full, 1, lineage=2))
    full.manager.commit_held(last=True)
    said = save(full, made(full, 2, lineage=1))
    assert "is of a lineage before" in said.why
    assert not said.again


def test_a_held_generation_that_the_volume_does_not_take_is_told_to_its_learner_once(full: Run, volume: Any) -> None:
    one = made(full, 1)
    save(full, one)
    for index in range(2):
        contribute(full, 1, index)
    volume.error = 28
    full.manager.turn()
    volume.error = 0
    said = save(full, one)
    assert (said.ok, said.again) == (False, False)
    assert "No space left" in said.why
    assert kinds(full).count("refused") == 1
    full.manager.turn()
    assert full.manager.checkpoints.manifests.newest("main") is None


def test_a_generation_that_was_committed_is_not_held_again_though_the_next_is_ordered_with_the_same_weights(
    full: Run,
) -> None:
    one = made(full, 1)
    save(full, one)
    for index in range(2):
        contribute(full, 1, index)
    full.manager.turn()
    full.manager.order_checkpoint()
    assert save(full, one) == Reply(True)
    assert full.manager.checkpoints.assembly.lacks("main") == []


def test_the_last_generation_of_a_run_is_committed_at_its_end_with_the_parts_that_are_there(full: Run) -> None:
    save(full, made(full, 1))
    contribute(full, 1, 0)
    full.manager.stop.leave()
    full.after(ENDING_S - 1, ("learner", LEARNER), *(("replay", one) for one in SHARDS))
    assert full.manager.checkpoints.manifests.newest("main") is None
    full.manager.commit_held(last=True)
    assert newest(full).parts.keys() == {"learner", "replay0"}
    assert list(newest(full).absent) == ["replay1"]


def test_old_generations_go_with_the_parts_of_shards_and_so_do_parts_that_no_generation_names(full: Run) -> None:
    shard_part(full, 1, 12, made=5)  # of a shard that was too late
    for number in (2, 3, 4):
        save(full, made(full, number))
        for index in range(2):
            contribute(full, number, index)
        full.manager.turn()
    late = shard_part(full, 5, 0)
    (full.layout.checkpoints / f"{late}.tmp.host.1").touch()
    save(full, made(full, 5))
    full.manager.commit_held(last=True)
    names = {path.name for path in full.layout.checkpoints.glob("main-*")}
    assert {name[5:19] for name in names if "-replay" in name} == {"000004-replay0", "000004-replay1", "000005-replay0"}
    assert f"{late}.tmp.host.1" in names, "it may be written now"
