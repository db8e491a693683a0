"""Algorithms by name, and a user's own hyperparameters."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlctl.spec import algorithms as specs
from rlctl.spec.base import Model
from rlctl.spec.schema import Network
from rlctl_agents.algorithms import class_of, find
from rlctl_agents.algorithms.base import Algorithm, AlgorithmError, hyperparameters, own_settings
from rlctl_agents.algorithms.impala import Impala
from rlctl_agents.algorithms.sac import DiscreteSac, Sac
from rlctl_agents.types.spaces import Box, Discrete, Spaces


class Settings(specs.Impala):
    """Hyperparameters as a user declares them."""

    temperature: float = 1.0


class Own(Impala):
    settings = Settings


class Unfinished(Algorithm):
    pass


class Extra(Model):
    """Settings that a variant of SAC adds."""

    pessimism: float = 1.0


class Pessimistic(Sac):
    pass


class Optioned(DiscreteSac):
    pass


def test_a_name_is_a_module_of_the_package() -> None:
    assert find("impala") is Impala


def test_a_path_is_a_class_of_the_users_own() -> None:
    assert find(f"{__name__}:Own") is Own


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dreamer", "algorithm dreamer is not built in; one of your own is package.module:Class"),
        ("nowhere.at_all:Own", "no module nowhere; is its folder named by code.path"),
        (f"{__name__}:Oen", f"{__name__} has no Oen; did you mean Own"),
        (f"{__name__}:Settings", "must be a class derived from rlctl_agents.algorithms.base.Algorithm"),
        (f"{__name__}:Unfinished", "does not define __init__, act, initial_state, loss, make_optimizer, schema"),
    ],
)
def test_says_what_is_wrong_with_a_name(name: str, message: str) -> None:
    with pytest.raises(AlgorithmError, match=message):
        find(name)


def test_says_what_a_users_module_fails_to_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "needs_it.py").write_text("import not_installed_here\n")
    with pytest.raises(AlgorithmError, match="needs_it imports not_installed_here, which is not installed"):
        find("needs_it:Own")
    (tmp_path / "breaks.py").write_text("1 / 0\n")
    with pytest.raises(AlgorithmError, match="importing breaks: ZeroDivisionError: division by zero"):
        find("breaks:Own")


def external(**given: object) -> specs.External:
    return specs.External.model_validate({"name": f"{__name__}:Own", **given})


def test_params_of_an_outside_algorithm_become_its_settings() -> None:
    given = external(unroll_length=7, params={"lr": 0.01, "temperature": 2.0})
    settings = hyperparameters(given, Settings)
    assert (settings.unroll_length, settings.lr, settings.temperature) == (7, 0.01, 2.0)
    own = Own(given, Network(), Spaces(Box((2,), "float32"), Discrete(2)), seed=0)
    assert own.config == settings.model_copy(update={"entropy_coef": 0.001})  # auto, of a discrete action


def test_every_fault_of_the_params_is_named() -> None:
    with pytest.raises(AlgorithmError) as caught:
        hyperparameters(external(params={"lr": -1, "temprature": 2.0}), Settings)
    assert "algorithm.params.lr: Input should be greater than 0" in str(caught.value)
    assert "algorithm.params.temprature: Extra inputs are not permitted" in str(caught.value)


def test_what_the_roles_read_too_is_refused_among_the_params() -> None:
    with pytest.raises(AlgorithmError, match=r"params\.gamma: every algorithm has it, say algorithm\.gamma"):
        hyperparameters(external(params={"gamma": 0.8}), Settings)


def test_a_config_read_back_from_a_run_file_gives_the_same_settings() -> None:
    given = external(params={"lr": 0.01})
    stored = specs.External.model_validate(given.model_dump(mode="json"))
    assert hyperparameters(stored, Settings) == hyperparameters(given, Settings)


def test_a_class_on_ppo_acts_with_what_an_actor_is_told_and_its_lag_is_stated_to_the_learner() -> None:
    assert hyperparameters(external(unroll_length=8), specs.Ppo).max_lag_versions == 0
    with pytest.raises(AlgorithmError, match="max_lag_versions: Input should be 0"):
        hyperparameters(external(max_lag_versions=8), specs.Ppo)


def test_settings_of_another_algorithm_are_refused() -> None:
    with pytest.raises(AlgorithmError, match="has Impala settings, not Settings"):
        hyperparameters(specs.Impala(), Settings)


def test_settings_may_be_a_class_whose_name_field_is_required() -> None:
    assert hyperparameters(external(params={}), specs.Algorithm).name == f"{__name__}:Own"


def sac(**given: object) -> specs.Sac:
    return specs.Sac.model_validate({"class": f"{__name__}:Pessimistic", **given})


def test_a_class_stands_in_the_place_of_a_built_in_one_with_its_settings() -> None:
    spaces = Spaces(Box((2,), "float32"), Box((1,), "float32", -1.0, 1.0))
    config = sac(tau=0.02, params={"pessimism": 0.5})
    assert class_of(specs.Sac()) is Sac
    kind = class_of(specs.Sac.model_validate(config.model_dump(mode="json")))
    assert kind is Pessimistic
    made = kind(config, Network(), spaces, seed=0)
    assert isinstance(made, Pessimistic)
    assert made.config.tau == 0.02
    assert own_settings(made.config, Extra).pessimism == 0.5
    assert class_of(sac(**{"class": f"{__name__}:Optioned"})) is Optioned


def test_faults_of_settings_that_a_class_adds_are_named() -> None:
    with pytest.raises(AlgorithmError, match=r"algorithm\.params\.optimism: Extra inputs are not permitted"):
        own_settings(sac(params={"optimism": 1}), Extra)


def test_a_class_with_batches_from_elsewhere_stands_in_no_built_ones_place() -> None:
    with pytest.raises(
        AlgorithmError,
        match=r"gets its batches from on_policy, and sac from .*; derive it from rlctl_agents\.algorithms\.sac\.Sac",
    ):
        class_of(sac(**{"class": f"{__name__}:Own"}))
