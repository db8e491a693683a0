"""The machine that figures belong to."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
WRITTEN = ("benchmarks/results", "docs/performance.md", "docs/learning.md", "README.md")
PACKAGES = ("torch", "numpy", "pyzmq", "gymnasium", "ale-py")
USEFUL_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")


def host_card() -> dict[str, Any]:
    """Processor, cores, quota, load, software and commit."""
    return {
        "processor": processor(),
        "flags": [flag for flag in USEFUL_FLAGS if flag in _cpuinfo("flags").split()],
        "cores": len(os.sched_getaffinity(0)),
        "quota_cores": quota_cores(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load": [round(value, 2) for value in os.getloadavg()],
        "steal_percent": steal_percent(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := installed(name))},
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS", ""),
        "commit": commit(),
        "changed_since_commit": changed(),
    }


def processor() -> str:
    """Its name; "" when the kernel does not say."""
    return _cpuinfo("model name")


def quota_cores() -> float | None:
    """Cores that the control group grants; None without a limit."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


def steal_percent() -> float:
    """Share of CPU time that the hypervisor gave to others, since this machine started."""
    user, nice, system, idle, iowait, irq, softirq, steal, *_ = cpu_ticks()
    total = user + nice + system + idle + iowait + irq + softirq + steal
    return round(100 * steal / total, 2) if total else 0.0


def cpu_ticks() -> list[int]:
    """The first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal, ..."""
    return [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]


def installed(name: str) -> str:
    """The version of a package; "" when it is not there."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def commit() -> str:
    """Of this repository; "" outside one."""
    return _git("rev-parse", "HEAD")


def changed() -> bool:
    """Whether tracked files differ from the commit, those apart that benchmarks write."""
    written = (f":(exclude){path}" for path in WRITTEN)
    return bool(_git("status", "--porcelain", "--untracked-files=no", "--", ".", *written))


def command_line() -> str:
    """The command that measures this."""
    return " ".join(["python -m benchmarks", *sys.argv[1:]])


def _git(*words: str) -> str:
    try:
        done = subprocess.run(["git", *words], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def _cpuinfo(name: str) -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""
