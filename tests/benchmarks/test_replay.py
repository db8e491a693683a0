"""The benchmark of replay buffers: ours, and what it says of made-up figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.replay import bench, buffers, killed, soak
from benchmarks.shared import store
from benchmarks.shared.store import Row


@pytest.mark.parametrize("case", buffers.CASES)
@pytest.mark.parametrize("who", ["rlctl, n 3", "rlctl, uniform", "rlctl, 2 shards"])
def test_our_buffer_is_filled_and_drawn_from(who: str, case: str) -> None:
    found = buffers.main(who, case, 1100, 0.001)
    assert found.keys() <= {*bench.COLUMNS, "cpu_us_of_draw"}
    assert found["samples_per_cpu_s"] > 0
    assert ("cpu_us_of_both" in found) == (who != "rlctl, uniform")


def test_the_table_has_ours_first_and_names_who_is_missing(tmp_path: Path) -> None:
    figures = {"cpprb 11.0.0": 2e6, "rlctl": 3e6, "rlctl, n 3": 2.5e6}
    rows: list[Row] = [
        {"case": "vectors", "who": who, "rows": "1000000", "samples_per_cpu_s": store.as_text(rate), "kept_cpu": "1"}
        for who, rate in figures.items()
    ]
    rows.append({"case": "frames", "who": "SB3 2.9.2", "rows": "50000", "failed": "MemoryError"})
    text = "\n".join(bench.table(rows))
    assert text.index("| rlctl |") < text.index("| rlctl, n 3 |") < text.index("| cpprb")
    assert "**Vectors, 1,000,000 rows.**" in text
    assert "Reverb: 0.14.0" in text
    assert "SB3 2.9.2, frames: MemoryError" in text
    bench.plot(rows, tmp_path / "plot.svg")
    assert (tmp_path / "plot.svg").exists()


def test_the_run_whose_shards_are_killed_says_which_goals_it_misses(tmp_path: Path) -> None:
    figures: dict[str, object] = {
        "actors": 100, "shards": 4, "seconds": 600.0, "kill_every_s": 60.0,
        "kills": 9, "not_recovered": 0,
        "recovery_p50_s": 4.0, "recovery_p95_s": 6.0, "learned_from_per_s": 1900.0, "longest_pause_s": 3.0,
        "limiter_error_at_end": 0.001, "limiter_error_most": 0.01, "produced": 10, "lost": 1, "fenced": 0,
        "balanced": True,
        **{f"{role}_mib_{when}": 100.0 for role in soak.CORE for when in killed.AT},
    }  # fmt: skip

    def told(**other: object) -> str:
        row = {name: store.as_text(value) for name, value in (figures | other).items()}
        return "\n".join(killed.table([row]))

    assert "The ledger balances, samples per insert stay within 2 %" in told()
    assert "| shards killed | 9 |" in told()
    missed = told(balanced=False, limiter_error_most=0.021, not_recovered=1, learner_mib_last=106.0)
    for what in ("ledger does not balance", "off by over 2 %", "a shard is not back", "learner has grown by 6%"):
        assert what in missed
    assert "learned from per second | 1,900 (1,900-1,900; n 1) |" in told()
    assert "learned from per second | - (all 1 discarded) |" in told(kept=0)
    assert "Failed: TimeoutError" in told(failed="TimeoutError")
    killed.plot([{name: store.as_text(value) for name, value in figures.items()}], tmp_path / "plot.svg")
    assert (tmp_path / "plot.svg").exists()


def test_the_error_of_samples_per_insert_is_of_the_rows_after_the_first() -> None:
    form = soak.Soak(actors=100, shards=4, seconds=1.0, kill_every_s=1.0, warm_s=0.0)
    paid = 100_000
    counts = {"inserted": paid + soak.starts(form), "sampled": 1.01 * soak.RATIO * paid}
    assert soak.limiter_error(counts, form) == pytest.approx(0.01)
    assert soak.limiter_error({}, form) == 0
