"""The list of slow tests, `tests/slow.txt`, made anew from what a session measured.

make test-fast-list        measure, and write the list
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

LIST = Path(__file__).parents[1] / "slow.txt"
SLOW_S = 0.25
"""Of all cases of a test function together."""


def listed() -> frozenset[str]:
    """Node ids of test functions, without their parameters."""
    return frozenset(LIST.read_text().split())


def measured(report: Path, files: dict[str, str]) -> list[str]:
    """Test functions that took long in a session, sorted.

    Args:
        report: JUnit XML of pytest.
        files: dotted name of each test module -> its path.

    Raises:
        StopIteration: the report is of other tests.
    """
    seconds: Counter[str] = Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        within = next(name for name in files if f"{case.attrib['classname']}.".startswith(f"{name}."))
        of_class = case.attrib["classname"][len(within) + 1 :]
        name = "::".join([files[within], *filter(None, of_class.split(".")), case.attrib["name"].partition("[")[0]])
        seconds[name] += float(case.attrib["time"])
    return sorted(name for name, took in seconds.items() if took >= SLOW_S)


def main(report: str) -> None:
    root = LIST.parents[1]
    paths = [path.relative_to(root) for path in LIST.parent.rglob("test_*.py")]
    files = {".".join(path.with_suffix("").parts): path.as_posix() for path in paths}
    LIST.write_text("".join(f"{name}\n" for name in measured(Path(report), files)))


if __name__ == "__main__":
    main(sys.argv[1])
