"""Share of a machine that this process may use."""

import os
from pathlib import Path

import pytest

from rlctl.spec import Machine
from rlctl.spec.machine import left_bytes

MIB = 2**20


def here(folder: Path, own: str, files: dict[str, str]) -> Machine:
    """With control groups as they are written down in a folder."""
    (folder / "own").write_text(own)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text + "\n")
    return Machine.here(folder, folder / "own")


def test_this_machine_has_cores_and_memory() -> None:
    here = Machine.here()
    assert 0 < here.cores <= len(os.sched_getaffinity(0))
    assert here.memory_mib > 100


@pytest.mark.parametrize(
    ("own", "files"),
    [
        ("0::/\n", {"cpu.max": "50000 100000", "memory.max": str(64 * MIB)}),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "50000 100000", "a/b/memory.max": str(64 * MIB)}),
        ("0::/a/b\n", {"a/b/memory.max": str(99 * MIB), "a/memory.max": str(64 * MIB), "a/b/cpu.max": "20000 40000"}),
        (
            "5:cpu,cpuacct:/\n4:memory:/of/the/host\n0::/\n",
            {
                "cpu/cpu.cfs_quota_us": "50000",
                "cpu/cpu.cfs_period_us": "100000",
                "memory/memory.limit_in_bytes": str(64 * MIB),
            },
        ),
    ],
)
def test_limits_of_all_groups_above_count_and_the_lowest_is_what_there_is(
    own: str, files: dict[str, str], tmp_path: Path
) -> None:
    assert here(tmp_path, own, files) == Machine(cores=0.5, memory_mib=64)


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"cpu.max": "max 100000", "memory.max": "max"},
        {"cpu.max": "99900000 100000", "memory.max": str(2**60)},
        {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000", "memory/memory.limit_in_bytes": str(2**63)},
    ],
)
def test_groups_without_a_limit_or_above_the_machine_leave_all_of_it(files: dict[str, str], tmp_path: Path) -> None:
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / MIB
    found = here(tmp_path, "5:cpu:/\n4:memory:/\n0::/\n", files)
    assert found == Machine(len(os.sched_getaffinity(0)), whole)


STAT = f"anon {9 * MIB}\ninactive_file {3 * MIB}\nactive_file {2 * MIB}"


@pytest.mark.parametrize(
    ("own", "files", "left"),
    [
        ("0::/\n", {}, 50),
        ("0::/a\n", {"a/memory.max": "max", "a/memory.current": str(60 * MIB)}, 50),
        ("0::/a\n", {"a/memory.max": str(64 * MIB), "a/memory.current": str(40 * MIB)}, 24),
        ("0::/a\n", {"a/memory.max": str(64 * MIB), "a/memory.current": str(40 * MIB), "a/memory.stat": STAT}, 29),
        ("0::/a/b\n", {"a/memory.max": str(64 * MIB), "a/memory.current": str(70 * MIB)}, 0),
        (
            "4:memory:/c\n0::/\n",
            {
                "memory/c/memory.limit_in_bytes": str(64 * MIB),
                "memory/c/memory.usage_in_bytes": str(40 * MIB),
                "memory/c/memory.stat": f"inactive_file 0\ntotal_inactive_file {MIB}\ntotal_active_file 0",
            },
            25,
        ),
        ("0::/a\n", {"a/memory.max": str(999 * MIB), "a/memory.current": "0"}, 50),
    ],
)
def test_what_is_left_is_that_of_the_machine_or_of_the_fullest_group(
    own: str, files: dict[str, str], left: int, tmp_path: Path
) -> None:
    here(tmp_path, own, files)
    (tmp_path / "meminfo").write_text(f"MemTotal: 99999 kB\nMemAvailable: {50 * 1024} kB\n")
    assert left_bytes(tmp_path, tmp_path / "own", tmp_path / "meminfo") == left * MIB


def test_this_machine_has_something_left() -> None:
    assert 0 < left_bytes() < 2**60
