"""V-trace against the paper's sum, and what follows from it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rlctl_agents.ops.vtrace import VTrace, vtrace


def experience(steps: int, streams: int, seed: int, *, end: float = 0.0) -> dict[str, Tensor]:
    """Random fp64 input; `end` is the chance that an episode ends in a row, with the row after it not valid."""
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    ended = torch.rand(steps, streams, generator=random) < end
    valid = torch.ones(steps, streams, dtype=torch.bool)
    for t in range(1, steps):
        valid[t] = ~(ended[t - 1] & valid[t - 1])
    terminated = ended & valid & (torch.rand(steps, streams, generator=random) < 0.5)
    return {
        "log_rho": 0.7 * normal(steps, streams),
        "reward": normal(steps, streams),
        "discount": 0.9 * (~terminated).double(),
        "value": normal(steps + 1, streams),
        "valid": valid,
    }


def run(
    given: dict[str, Tensor],
    *,
    lambda_: float = 1.0,
    rho_max: float = 1.0,
    c_max: float = 1.0,
    pg_rho_max: float = 1.0,
) -> VTrace:
    log_rho, reward, discount, value, valid = given.values()
    return vtrace(
        log_rho, reward, discount, value, valid, lambda_=lambda_, rho_max=rho_max, c_max=c_max, pg_rho_max=pg_rho_max
    )


def papers_sum(
    given: dict[str, Tensor], lambda_: float, rho_max: float, c_max: float, pg_rho_max: float
) -> tuple[Tensor, Tensor]:
    """Equation 1 of the paper written out, stream by stream, quadratic in T; a sum stops before a row not valid."""
    log_rho, reward, discount, value, valid = given.values()
    target, advantage = value.clone(), torch.zeros_like(reward)
    steps, streams = reward.shape
    for b in range(streams):
        for s in range(steps):
            product = 1.0
            for t in range(s, steps):
                if not valid[t, b]:
                    break
                ratio = math.exp(log_rho[t, b])
                delta = min(rho_max, ratio) * (reward[t, b] + discount[t, b] * value[t + 1, b] - value[t, b])
                target[s, b] += product * delta
                product *= float(discount[t, b]) * lambda_ * min(c_max, ratio)
    for b in range(streams):
        for s in range(steps):
            if valid[s, b]:
                ratio = min(pg_rho_max, math.exp(log_rho[s, b]))
                advantage[s, b] = ratio * (reward[s, b] + discount[s, b] * target[s + 1, b] - value[s, b])
    return target[:-1], advantage


@pytest.mark.parametrize(
    ("lambda_", "rho_max", "c_max", "pg_rho_max"),
    [(1.0, 1.0, 1.0, 1.0), (0.9, 1.0, 1.0, 1.0), (0.8, 2.0, 1.5, 0.7), (1.0, math.inf, math.inf, math.inf)],
)
@pytest.mark.parametrize("end", [0.0, 0.3])
def test_equals_the_sum_of_the_paper(
    lambda_: float, rho_max: float, c_max: float, pg_rho_max: float, end: float
) -> None:
    given = experience(11, 6, seed=1, end=end)
    got = run(given, lambda_=lambda_, rho_max=rho_max, c_max=c_max, pg_rho_max=pg_rho_max)
    target, advantage = papers_sum(given, lambda_, rho_max, c_max, pg_rho_max)
    torch.testing.assert_close(got.target, target, rtol=0, atol=1e-12)
    torch.testing.assert_close(got.advantage, advantage, rtol=0, atol=1e-12)


def test_equals_the_n_step_return_when_policies_agree() -> None:
    given = experience(9, 4, seed=2)
    given["log_rho"].zero_()
    returns = [given["value"][-1]]
    for reward, discount in zip(reversed(given["reward"]), reversed(given["discount"]), strict=True):
        returns.append(reward + discount * returns[-1])
    target = torch.stack(returns[:0:-1])
    got = run(given)
    torch.testing.assert_close(got.target, target, rtol=0, atol=1e-12)
    torch.testing.assert_close(got.advantage, target - given["value"][:-1], rtol=0, atol=1e-12)


def test_equals_generalised_advantage_estimation_when_policies_agree() -> None:
    given = experience(9, 4, seed=3)
    given["log_rho"].zero_()
    value, advantage = given["value"], torch.zeros(4, dtype=torch.float64)
    for t in reversed(range(9)):
        advantage = given["reward"][t] + 0.9 * value[t + 1] - value[t] + 0.9 * 0.8 * advantage
        torch.testing.assert_close(run(given, lambda_=0.8).target[t], value[t] + advantage, rtol=0, atol=1e-12)


def joined(before: dict[str, Tensor], after: dict[str, Tensor]) -> dict[str, Tensor]:
    """Two segments as one: the first row of `after` follows the last of `before` and replaces its bootstrap row."""
    long = {name: torch.cat([before[name], after[name]]) for name in before}
    long["value"] = torch.cat([before["value"][:-1], after["value"]])
    return long


@pytest.mark.parametrize("terminated", [True, False], ids=["terminated", "truncated"])
def test_splitting_at_an_end_of_an_episode_changes_nothing(terminated: bool) -> None:
    before, after = experience(5, 3, seed=4), experience(6, 3, seed=5)
    before["discount"][-1] = 0.0 if terminated else 0.9
    after["valid"][0] = False  # the final observation of the episode that ended in the last row of `before`
    before["value"][-1] = after["value"][0]
    whole, first, second = run(joined(before, after)), run(before), run(after)
    torch.testing.assert_close(whole.target, torch.cat([first.target, second.target]), rtol=0, atol=0)
    torch.testing.assert_close(whole.advantage, torch.cat([first.advantage, second.advantage]), rtol=0, atol=0)


def test_truncated_step_bootstraps_from_its_own_successor() -> None:
    given = experience(4, 1, seed=6)
    given["log_rho"].zero_()
    given["valid"][2] = False
    expected = given["reward"][1] + 0.9 * given["value"][2]
    torch.testing.assert_close(run(given).target[1], expected, rtol=0, atol=1e-12)


def test_what_stands_in_a_row_that_is_not_valid_is_not_used() -> None:
    given = experience(6, 2, seed=7)
    given["valid"][3] = False
    clean = run(given)
    for name in ("log_rho", "reward", "discount"):
        given[name][3] = math.nan
    given["log_rho"][3, 1] = math.inf
    dirty = run(given)
    assert torch.equal(clean.target, dirty.target)
    assert torch.equal(clean.advantage, dirty.advantage)
    assert (dirty.advantage[3] == 0).all()


def test_large_ratios_are_clipped() -> None:
    given = experience(5, 2, seed=8)
    on_policy = run({**given, "log_rho": torch.zeros(5, 2, dtype=torch.float64)})
    far = run({**given, "log_rho": torch.full((5, 2), 80.0, dtype=torch.float64)})
    assert torch.equal(far.target, on_policy.target)
    assert torch.equal(far.advantage, on_policy.advantage)


def test_ratio_of_zero_learns_nothing_from_the_step() -> None:
    given = experience(5, 2, seed=9)
    given["log_rho"].fill_(-math.inf)
    got = run(given)
    assert torch.equal(got.target, given["value"][:-1])
    assert (got.advantage == 0).all()


def test_example_of_the_docstring() -> None:
    got = vtrace(
        torch.zeros(2, 1),
        torch.tensor([[1.0], [2.0]]),
        torch.full((2, 1), 0.5),
        torch.tensor([[0.0], [0.0], [8.0]]),
        torch.ones(2, 1, dtype=torch.bool),
    )
    assert got.target.tolist() == [[4.0], [6.0]]
    assert got.advantage.tolist() == [[4.0], [6.0]]


def test_no_gradient_flows_through() -> None:
    given = experience(3, 2, seed=10)
    given["value"].requires_grad_()
    got = run(given)
    assert not got.target.requires_grad
    assert not got.advantage.requires_grad


def test_refuses_what_the_paper_excludes() -> None:
    with pytest.raises(ValueError, match=r"c_max must not exceed rho_max, got c_max=2\.0, rho_max=1\.0"):
        run(experience(3, 2, seed=11), c_max=2.0)


@pytest.mark.parametrize("name", ["log_rho", "discount", "value", "valid"])
def test_names_the_input_whose_shape_does_not_fit(name: str) -> None:
    given = experience(3, 2, seed=12)
    given[name] = given[name][1:]
    with pytest.raises(ValueError, match=f"{name} must be"):
        run(given)


def test_refuses_a_segment_without_rows_and_numbers_for_bools() -> None:
    none = torch.zeros(0, 2)
    with pytest.raises(ValueError, match="T of at least 1"):
        vtrace(none, none, none, torch.zeros(1, 2), none.bool())
    given = experience(3, 2, seed=13)
    given["valid"] = given["valid"].double()
    with pytest.raises(ValueError, match="valid must be bool"):
        run(given)
