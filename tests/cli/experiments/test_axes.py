"""The grammar of `--set` with several values."""

import pytest

from rlctl.cli.experiments.axes import Axis, grid, read, split, words


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1e-4,3e-4", ["1e-4", "3e-4"]),
        ("[64, 64]", ["[64, 64]"]),
        ("[64],[64, 64]", ["[64]", "[64, 64]"]),
        ("{a: 1, b: [2, 3]}, {}", ["{a: 1, b: [2, 3]}", "{}"]),
        ("'x,y',\"z\"", ["'x,y'", '"z"']),
        ("it's,that's", ["it's", "that's"]),
        ("", [""]),
    ],
)
def test_commas_outside_of_brackets_and_quotes_separate_values(text: str, values: list[str]) -> None:
    assert split(text) == values


def test_one_value_is_for_every_trial_and_the_last_set_of_a_path_wins() -> None:
    fixed, axes, problems = read(["a=1,2", "b=3", "c=4,5", "a=6", "b=7,8"], search=False)
    assert (fixed, [axis.text for axis in axes], problems) == (["a=6"], ["c=4,5", "b=7,8"], [])


def test_a_range_is_for_a_search_and_goes_upward() -> None:
    _, (axis,), problems = read(["algorithm.lr=1e-5..1e-3:log"], search=True)
    assert axis == Axis("algorithm.lr", ("1e-5", "1e-3"), range=True, log=True)
    assert (axis.text, problems) == ("algorithm.lr=1e-5..1e-3:log", [])
    _, _, problems = read(["a=2..1", "b=0..1:log", "c=1..5"], search=True)
    assert [(one.path, one.message[:30]) for one in problems] == [
        ("a", "its lower end must be below th"),
        ("b", "a range in logarithms lies abo"),
    ]
    _, _, problems = read(["a=1..2"], search=False)
    assert "needs --search optuna" in problems[0].message


def test_what_no_sweep_can_vary_is_refused() -> None:
    _, _, problems = read(["run=a,b", "target=local,kubernetes", "a=1,,2", "b=1,1"], search=False)
    assert [one.path for one in problems] == ["run", "target", "a", "b"]
    _, _, problems = read(["code.path=old,new", "images.learner=a,b", "seed=1,2"], search=False)
    assert [one.path for one in problems] == ["code.path", "images.learner"], "compare would make one group of each"


def test_a_grid_is_every_combination_and_a_search_tries_each_value_once() -> None:
    two, three = Axis("a", ("1", "2")), Axis("b", ("x", "y", "z"))
    assert [words(one) for one in grid([two, three])][:4] == ["a=1 b=x", "a=1 b=y", "a=1 b=z", "a=2 b=x"]
    assert len(grid([two, three])) == 6
    assert grid([]) == [{}]
    ranged = Axis("c", ("0", "1"), range=True)
    assert [words(one) for one in grid([two, ranged])] == ["a=1 c=0", "a=2 c=0", "a=1 c=1"]
