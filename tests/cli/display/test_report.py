"""Lines of `rlctl status` about numbers that environments tell, and about a replay."""

from typing import Any

from rlctl.cli.display.report import info_text, replay_text


def test_numbers_that_environments_tell_are_one_line_and_few() -> None:
    assert info_text({}) == ""
    assert info_text({"is_success": 0.43, "score": 12.0, "odd": None, "bell\x07": 1.0}).startswith(
        "is_success 0.43, score 12"
    )
    assert "\x07" not in info_text({"bell\x07": 1.0})
    assert info_text({f"n{number}": 1.0 for number in range(9)}).endswith("n5 1 and 3 more")


def test_a_replay_is_told_in_three_lines_whatever_is_known_of_it() -> None:
    told: dict[str, Any] = {
        "shards": {"wanted": 2, "answer": 1}, "rows": 80_000, "capacity": 100_000, "drawable": 79_900,
        "inserted": 90_000, "sampled": 712_000, "inserted_per_s": 410.0, "sampled_per_s": 3280.0,
        "wanted_samples_per_insert": 8.0, "samples_per_insert": 8.0021, "stale_priorities": 0.031,
    }  # fmt: skip
    assert replay_text(told) == [
        "80,000 rows of 100,000, 79,900 can be drawn; 1 of 2 shards answer",
        "90,000 inserted, 410/s; 712,000 sampled, 3.28k/s",
        "8.002 samples per insert, 8 wanted; 3 % of the priorities came for rows that are gone",
    ]
    unknown = {"shards": {"wanted": 2, "answer": None}, "wanted_samples_per_insert": None}
    unknown |= {"samples_per_insert": None, "stale_priorities": None}
    first, _, last = replay_text(told | unknown)
    assert first.endswith("; - of 2 shards answer")
    assert last == "- samples per insert, no limit"
    assert replay_text(told | {"capacity": 0}) == ["0 of 2 shards have reported"]
