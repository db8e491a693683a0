"""Which dead process is started again and when, and what is named as the cause when a run is given up."""

from __future__ import annotations

from rlctl.backends.local.process.restart_policy import Death, GiveUp, Observation, Restart, RestartPolicy


class Bench:
    """A policy, a clock, and processes that live and die as told. A report is the text of a death."""

    def __init__(self, *names: str) -> None:
        self.policy: RestartPolicy[str] = RestartPolicy()
        self.now = 1000.0
        self.seen = {name: Observation(name, "live", pid) for pid, name in enumerate(names, 100)}
        self.look()

    def look(self) -> list[Death]:
        return self.policy.observe(self.seen.values(), self.now)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.look()

    def die(
        self,
        name: str,
        exit_status: int | None = 1,
        report: str = "",
        *,
        error: str = "",
        startup_s: float | None = 0.0,
    ) -> object:
        self.seen[name] = Observation(name, "dead", exit_status=exit_status, startup_s=startup_s)
        (death,) = self.look()
        assert death.name == name
        return self.policy.judge(death, report or f"{name} died", self.now, error)

    def restart(self, name: str, *, startup_s: float | None = 0.0) -> None:
        due = self.policy.next_due()
        assert due is not None
        self.now = max(self.now, due)
        assert name in self.policy.due(self.now)
        self.policy.started(name)
        self.seen[name] = Observation(name, "live", self.seen[name].pid + int(self.now * 10), startup_s=startup_s)
        self.look()


def test_a_process_that_had_lived_ten_seconds_is_started_again_at_once() -> None:
    bench = Bench("actor-0")
    bench.pass_time(10.0)
    assert bench.die("actor-0") == Restart(0.0)
    assert bench.policy.due(bench.now) == ["actor-0"]


def test_short_lives_wait_longer_each_time_and_the_fifth_gives_up() -> None:
    bench = Bench("actor-0")
    delays = []
    for _ in range(4):
        bench.pass_time(1.0)
        verdict = bench.die("actor-0")
        assert isinstance(verdict, Restart)
        delays.append(verdict.delay_s)
        assert bench.policy.due(bench.now + verdict.delay_s - 0.01) == []
        bench.restart("actor-0")
    assert delays == [1.0, 2.0, 4.0, 8.0]
    bench.pass_time(1.0)
    assert bench.die("actor-0", report="the fifth") == GiveUp("actor-0", "the fifth", 5)


def test_a_long_life_ends_the_row_of_short_ones() -> None:
    bench = Bench("actor-0")
    for _ in range(3):
        bench.die("actor-0")
        bench.restart("actor-0")
    bench.pass_time(10.0)
    bench.die("actor-0")
    bench.restart("actor-0")
    bench.pass_time(1.0)
    assert bench.die("actor-0") == Restart(1.0)


def test_exit_code_3_gives_up_at_once() -> None:
    bench = Bench("actor-0", "actor-1")
    bench.pass_time(60.0)
    assert bench.die("actor-1", 3, "no such environment") == GiveUp("actor-1", "no such environment", 1)


def test_a_manager_that_ends_with_3_because_nothing_came_of_the_run_is_not_the_cause() -> None:
    bench = Bench("manager-0", "learner-0", "actor-0", "actor-1")
    bench.pass_time(20.0)
    bench.die("actor-1", 1, "ValueError: bad step")
    bench.restart("actor-1")
    bench.pass_time(1.0)
    bench.die("actor-0", 1, "ValueError: bad step, too")
    verdict = bench.die("manager-0", 3, "nothing was ever learned from")
    assert verdict == GiveUp("actor-1", "ValueError: bad step", 0), "its first life was a long one"


def test_a_manager_that_ends_with_3_is_the_cause_when_nobody_was_in_trouble_before() -> None:
    bench = Bench("manager-0", "actor-0")
    bench.die("actor-0", 1)
    bench.restart("actor-0")
    bench.pass_time(10.0)
    assert bench.die("manager-0", 3, "live.json: no object") == GiveUp("manager-0", "live.json: no object", 1)


def test_a_manager_that_was_asked_to_leave_is_started_again() -> None:
    bench = Bench("manager-0", "actor-0")
    bench.pass_time(1.0)
    assert bench.die("manager-0", 0) == Restart(5.0)


def test_a_crash_of_the_manager_is_a_crash_like_any_other() -> None:
    bench = Bench("manager-0", "actor-0")
    bench.pass_time(30.0)
    assert bench.die("manager-0", 1) == Restart(0.0)


def test_exit_0_of_another_role_is_no_short_life_and_waits_for_the_end_of_the_run() -> None:
    bench = Bench("actor-0")
    for _ in range(9):
        assert bench.die("actor-0", 0) == Restart(5.0)
        bench.restart("actor-0")


def test_the_learners_crash_loop_is_the_cause_when_actors_fail_because_of_it() -> None:
    bench = Bench("learner-0", "actor-0")
    bench.pass_time(100.0)
    bench.die("learner-0", 1, "CUDA out of memory")
    bench.restart("learner-0")
    for _ in range(3):
        bench.die("learner-0", 1, "CUDA out of memory again")
        bench.restart("learner-0")
    bench.die("actor-0", 1, "the learner is gone")
    bench.seen["learner-0"] = Observation("learner-0", "dead", exit_status=1)
    for death in bench.look():
        bench.policy.judge(death, "and again", bench.now)
    verdict: object = None
    for life in range(5):
        bench.now = max(bench.now, bench.policy.records["actor-0"].due or 0.0)
        bench.policy.started("actor-0")
        bench.seen["actor-0"] = Observation("actor-0", "live", 500 + life)
        bench.look()
        verdict = bench.die("actor-0", 1, "the learner is gone")
    assert verdict == GiveUp("learner-0", "CUDA out of memory", 4)


def test_a_trouble_that_is_over_is_no_cause() -> None:
    bench = Bench("learner-0", "actor-0")
    bench.die("learner-0")
    bench.restart("learner-0")
    bench.pass_time(10.0)
    for _ in range(5):  # the first of these lives was a long one
        bench.die("actor-0")
        bench.restart("actor-0")
    assert bench.die("actor-0", report="its own") == GiveUp("actor-0", "its own", 5)


def test_what_a_command_stopped_is_neither_started_again_nor_counted() -> None:
    bench = Bench("actor-0")
    for _ in range(4):
        bench.die("actor-0")
        bench.restart("actor-0")
    bench.seen["actor-0"] = Observation("actor-0", "stopped")
    assert bench.look() == []
    assert bench.policy.due(bench.now + 100) == []
    bench.seen["actor-0"] = Observation("actor-0", "live", 7)
    bench.look()
    assert bench.die("actor-0") == Restart(1.0)


def test_a_death_is_reported_once_until_the_process_was_started_again() -> None:
    bench = Bench("actor-0")
    bench.die("actor-0")
    assert bench.look() == []
    bench.restart("actor-0")
    bench.seen["actor-0"] = Observation("actor-0", "dead", exit_status=1)
    assert len(bench.look()) == 1


def test_a_process_that_a_command_started_meanwhile_waits_no_more() -> None:
    bench = Bench("actor-0")
    bench.die("actor-0")
    bench.seen["actor-0"] = Observation("actor-0", "live", 7)
    bench.look()
    assert bench.policy.next_due() is None


def test_a_removed_process_is_forgotten() -> None:
    bench = Bench("actor-0", "actor-1")
    bench.die("actor-1")
    del bench.seen["actor-1"]
    assert bench.look() == []
    assert bench.policy.due(bench.now + 100) == []


def test_a_process_that_could_not_be_started_counts_as_a_short_life() -> None:
    bench = Bench("actor-0")
    assert bench.die("actor-0", None) == Restart(1.0)


def test_how_long_it_lived_is_measured_from_its_start() -> None:
    bench = Bench("actor-0")
    bench.pass_time(3.0)
    bench.pass_time(4.5)
    bench.seen["actor-0"] = Observation("actor-0", "dead", exit_status=-1)
    assert bench.look() == [Death("actor-0", -1, 7.5)]


def test_a_watch_that_was_killed_goes_on_with_the_counts_of_before() -> None:
    bench = Bench("actor-0")
    for _ in range(3):
        bench.die("actor-0")
        bench.restart("actor-0")
    bench.die("actor-0")
    stored = bench.policy.stored(bench.now, 1.7e9)
    assert stored == {
        "actor-0": {"restarts": 3, "short_lives": 4, "error": "", "in_trouble": True, "next_start": 1.7e9 + 8.0}
    }

    bench.policy = RestartPolicy()
    bench.policy.restore(stored, bench.now)
    assert bench.look() == [], "the death is known"
    assert bench.policy.due(bench.now) == ["actor-0"]
    bench.restart("actor-0")
    assert isinstance(bench.die("actor-0"), GiveUp)


def test_a_life_that_never_joined_is_short_however_long_its_imports_took() -> None:
    bench = Bench("actor-0")
    for delay_s in (1.0, 2.0, 4.0, 8.0):
        bench.pass_time(25.0)
        assert bench.die("actor-0", startup_s=None) == Restart(delay_s)
        bench.restart("actor-0", startup_s=None)
    bench.pass_time(25.0)
    assert bench.die("actor-0", report="the fifth", startup_s=None) == GiveUp("actor-0", "the fifth", 5)


def test_the_time_until_a_process_has_joined_is_no_part_of_a_healthy_life() -> None:
    bench = Bench("actor-0", "actor-1")
    bench.pass_time(25.0)
    assert bench.die("actor-0", startup_s=20.0) == Restart(1.0)
    assert bench.die("actor-1", startup_s=15.0) == Restart(0.0)


def test_the_same_error_life_after_life_gives_up_although_every_life_was_healthy() -> None:
    bench = Bench("actor-0")
    verdicts = []
    for seed in range(6):
        bench.pass_time(30.0)
        error = f"EnvError: reset failed (seed {seed}, <Env at 0x7f{seed}a>)"
        verdicts.append(bench.die("actor-0", report=f"life {seed}", error=error))
        if seed < 5:
            bench.restart("actor-0")
    assert verdicts[:5] == [Restart(0.0), Restart(1.0), Restart(2.0), Restart(4.0), Restart(8.0)]
    assert verdicts[5] == GiveUp("actor-0", "life 5", 5)


def test_another_error_than_in_the_life_before_ends_the_row() -> None:
    bench = Bench("actor-0")
    for error in ("EnvError: a", "EnvError: b", "", "", "EnvError: a"):
        bench.pass_time(30.0)
        assert bench.die("actor-0", error=error) == Restart(0.0)
        bench.restart("actor-0")


def test_ten_minutes_are_a_long_life_even_when_the_same_error_ends_each_of_them() -> None:
    bench = Bench("actor-0")
    for _ in range(9):
        bench.pass_time(600.0)
        assert bench.die("actor-0", error="EnvError: the simulator is tired", startup_s=None) == Restart(0.0)
        bench.restart("actor-0")


def test_who_has_not_joined_since_its_death_is_the_cause_of_a_run_in_vain() -> None:
    bench = Bench("manager-0", "actor-0")
    bench.pass_time(25.0)
    bench.die("actor-0", report="EnvError: no rom", startup_s=None)
    bench.restart("actor-0", startup_s=None)
    bench.pass_time(20.0)
    verdict = bench.die("manager-0", 3, "nothing was ever learned from")
    assert verdict == GiveUp("actor-0", "EnvError: no rom", 1)


def test_who_died_the_same_death_twice_is_the_cause_of_a_run_in_vain_although_it_is_well_just_now() -> None:
    bench = Bench("manager-0", "actor-0")
    for life in range(3):
        bench.pass_time(30.0)
        bench.die("actor-0", report=f"life {life}", error="EnvError: no rom")
        bench.restart("actor-0")
    bench.pass_time(20.0)
    verdict = bench.die("manager-0", 3, "nothing was ever learned from")
    assert verdict == GiveUp("actor-0", "life 0", 2)


def test_a_process_is_in_trouble_from_its_death_until_it_has_been_of_use() -> None:
    bench = Bench("actor-0", "actor-1")
    bench.die("actor-0")
    bench.restart("actor-0", startup_s=None)
    bench.pass_time(30.0)
    assert bench.policy.troubled(bench.now) == {"actor-0"}
    assert bench.policy.unsure(bench.seen["actor-0"])
    assert not bench.policy.unsure(bench.seen["actor-1"])
    bench.seen["actor-0"] = Observation("actor-0", "live", bench.seen["actor-0"].pid, startup_s=22.0)
    bench.pass_time(3.0)
    assert bench.policy.troubled(bench.now) == set()


def test_three_deaths_within_ten_minutes_are_a_trouble_however_well_it_lives_between() -> None:
    bench = Bench("actor-0")
    for _ in range(3):
        bench.pass_time(60.0)
        bench.die("actor-0")
        bench.restart("actor-0")
    bench.pass_time(60.0)
    assert bench.policy.troubled(bench.now) == {"actor-0"}
    bench.pass_time(500.0)
    assert bench.policy.troubled(bench.now) == set()


def test_a_killed_watch_remembers_who_was_in_trouble_and_of_which_error() -> None:
    bench = Bench("actor-0")
    bench.pass_time(30.0)
    bench.die("actor-0", error="EnvError: seed 1")
    bench.restart("actor-0")
    stored = bench.policy.stored(bench.now, 1.7e9)
    bench.policy = RestartPolicy()
    bench.policy.restore(stored, bench.now)
    bench.look()
    assert bench.policy.troubled(bench.now) == {"actor-0"}
    bench.pass_time(30.0)
    assert bench.die("actor-0", error="EnvError: seed 2") == Restart(1.0)
