"""The list of slow tests."""

from __future__ import annotations

from pathlib import Path

from tests.support.slow import LIST, listed, measured

REPORT = """<testsuites><testsuite>
<testcase classname="tests.a.test_b" name="test_c[1]" time="0.15"/>
<testcase classname="tests.a.test_b" name="test_c[2]" time="0.15"/>
<testcase classname="tests.a.test_b" name="test_d" time="0.2"/>
<testcase classname="tests.a.test_b.TestE" name="test_f" time="3"/>
</testsuite></testsuites>"""


def test_the_cases_of_a_function_count_together(tmp_path: Path) -> None:
    report = tmp_path / "fast.xml"
    report.write_text(REPORT)
    found = measured(report, {"tests.a.test_b": "tests/a/test_b.py"})
    assert found == ["tests/a/test_b.py::TestE::test_f", "tests/a/test_b.py::test_c"]


def test_every_test_of_the_list_exists() -> None:
    root = LIST.parents[1]
    gone = []
    for name in listed():
        file, *_, function = name.split("::")
        path = root / file
        if not path.is_file() or (function != "runTest" and f"def {function}(" not in path.read_text()):
            gone.append(name)
    assert not gone, f"renamed or deleted: {sorted(gone)}; `make test-fast-list` measures anew"
