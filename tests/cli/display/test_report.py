"""Lines of `rlctl status` about numbers that environments tell."""

from rlctl.cli.display.report import info_text


def test_numbers_that_environments_tell_are_one_line_and_few() -> None:
    assert info_text({}) == ""
    assert info_text({"is_success": 0.43, "score": 12.0, "odd": None, "bell\x07": 1.0}).startswith(
        "is_success 0.43, score 12"
    )
    assert "\x07" not in info_text({"bell\x07": 1.0})
    assert info_text({f"n{number}": 1.0 for number in range(9)}).endswith("n5 1 and 3 more")
