"""Values as text."""

from datetime import UTC, datetime

import pytest

from rlctl.cli.text import age, clock, count, moment, moment_of, number, plain, span, sparkline, stamp, table
from rlctl.errors import UsageError
from rlctl.spec.words import duration

NOW = datetime(2026, 11, 21, 4, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (119.9, "119s"),
        (120, "2m"),
        (7199, "119m"),
        (7200, "2h"),
        (172_800, "2d"),
        (999 * 86_400, "999d"),
        (1000 * 86_400, "2y"),
        (-1, "-"),
        (float("nan"), "-"),
    ],
)
def test_an_age_has_at_most_four_characters(seconds: float, text: str) -> None:
    assert age(seconds) == text
    assert len(text) <= 4


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (7.25, "7.2"), (999, "999"), (999.6, "1.00k"), (1234, "1.23k"), (14_200, "14.2k"), (142_000, "142k"),
        (1_204_000, "1.20M"), (2.5e9, "2.50G"), (None, "-"), (-1500, "-1.50k"),
    ],
)  # fmt: skip
def test_a_count_has_three_digits_and_a_unit(value: float | None, text: str) -> None:
    assert count(value) == text


def test_numbers_and_clocks() -> None:
    assert number(487.34) == "487.3"
    assert number(-20.95) == "-20.95"
    assert number(123_456.7) == "123457"
    assert (number(9999.4), number(9999.7)) == ("9999", "10000")
    assert clock(3 * 3600 + 12 * 60 + 5.9) == "03:12:05"
    assert clock(360_000.9) == "100:00:00"
    assert [duration(one) for one in (45, 7199, 7200, 3 * 86_400)] == ["45 s", "119 min", "2 h", "3 d"]


def test_a_sparkline_runs_from_the_smallest_to_the_largest() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([5, 0, 7], 2) == "▁█"
    assert sparkline([3, 3], 8) == "▁▁"
    assert sparkline([], 8) == ""
    assert sparkline([float("nan"), 1, None, 2], 8) == "▁█"


def test_a_table_is_aligned_and_has_no_trailing_blanks() -> None:
    assert table([("A", "BB"), ("ccc", "")]) == ["A     BB", "ccc"]
    assert table([("a\nb\x1b[1m", "c")]) == ["a b   c"]


@pytest.mark.parametrize(
    ("hostile", "harmless"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07rest", "rest"),
        ("\x1b]52;c;ZXZpbA==\x1b\\rest", "rest"),
        ("\x1bPq#0\x1b\\rest", "rest"),
        ("\x9b2Jrest\x85", "rest"),
        ("a\rb\x08c\x00", "abc"),
        ("left\u202eright", "leftright"),
        ("soft\u00adhyphen, \u2028line, \ufeffmark, \U000e0041tag", "softhyphen, line, mark, tag"),
        ("tab\tand\nline", "tab\tand\nline"),
        ("\x1b", ""),
        ("Grüße ± 雪", "Grüße ± 雪"),
    ],
)
def test_nothing_that_acts_on_a_terminal_is_left(hostile: str, harmless: str) -> None:
    assert plain(hostile) == harmless


@pytest.mark.parametrize(
    ("text", "seconds_ago"), [("5s", 5), ("2m", 120), ("3h", 10_800), ("1d", 86_400), ("1h30m", 5400), ("500ms", 0.5)]
)
def test_a_moment_may_be_an_age(text: str, seconds_ago: float) -> None:
    assert (NOW - moment(text, now=NOW)).total_seconds() == seconds_ago


def test_a_moment_may_be_rfc3339() -> None:
    assert moment("2026-11-21T05:00:00+02:00", now=NOW) == datetime(2026, 11, 21, 3, tzinfo=UTC)


@pytest.mark.parametrize("text", ["", "5", "5 s", "-5s", "s", "5x", "soon", "2026-13-01"])
def test_other_moments_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="neither"):
        moment(text, now=NOW)


def test_a_span_is_seconds_or_has_units() -> None:
    assert span("30", "--grace") == 30
    assert span("0", "--grace") == 0
    assert span("1h30m", "--grace") == 5400
    for wrong in ("", "x", "-1", "1 m", "nan", "inf"):
        with pytest.raises(UsageError, match="not a length"):
            span(wrong, "--grace")


def test_a_stamp_in_utc_says_so() -> None:
    assert stamp(NOW, utc=True) == "04:00:00.000Z"
    assert moment_of(NOW, utc=True) == moment_of(NOW.timestamp(), utc=True) == "2026-11-21 04:00:00Z"


@pytest.mark.parametrize(
    "text", ["1000000d", f"{'9' * 400}s", "0001-01-01T00:00:00+12:00", "9999-12-31T23:00:00-12:00"]
)
def test_a_moment_that_no_calendar_has_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="before or after all times"):
        moment(text, now=NOW)
