"""Trackers in a spec: what is refused, what is missing, and that the manager alone reads of them."""

import importlib.util
from pathlib import Path

import pytest
from pydantic import ValidationError

from rlctl.changes import changes
from rlctl.images.requirements import TRACKERS as EXTRAS
from rlctl.plan import make
from rlctl.spec.fields import resolved
from rlctl.spec.schema import TRACKERS, Spec
from tests.spec.conftest import Lint
from tests.spec.full import IMAGES

UID = "0" * 32
BOTH = {"wandb": {}, "mlflow": {"uri": "http://mlflow:5000"}}


def spec(**more: object) -> Spec:
    return Spec.model_validate({"run": "pole", "env": {"id": "CartPole-v1"}, **more})


def test_only_the_manager_reads_of_trackers_and_is_restarted_by_a_change() -> None:
    before, after = (make(one, uid=UID, base=Path()) for one in (spec(), spec(trackers=BOTH)))
    differs = [old.role for old, new in zip(before.roles, after.roles, strict=True) if old.hash != new.hash]
    assert differs == ["manager"]
    found = {(one.role, one.action) for one in changes(spec(), spec(trackers=BOTH))}
    assert found == {("manager", "restart")}


def test_the_managers_run_file_with_every_default_of_a_tracker_is_a_spec() -> None:
    asked = spec(trackers={"wandb": {}, "mlflow": {}})
    (read,) = [one.run_file["spec"] for one in make(asked, uid=UID, base=Path()).roles if one.role == "manager"]
    assert Spec.model_validate(read).trackers == asked.trackers


def test_trackers_get_the_resolved_spec_in_its_own_shape() -> None:
    plan = make(spec(trackers=BOTH, algorithm={"name": "ppo", "lr": 1e-4}), uid=UID, base=Path())
    assert plan.tracked is not None
    assert (plan.tracked["algorithm"]["lr"], plan.tracked["model"]["hidden"]) == (1e-4, [64, 64])
    assert plan.tracked["env"]["id"] == "CartPole-v1"
    assert not {"policies", "replay", "league", "pbt"} & plan.tracked.keys()
    assert make(spec(), uid=UID, base=Path()).tracked is None, "nothing else reads it"
    assert resolved(spec(policies={"main": {}}))["policies"]["main"]["algorithm"]["name"] == "impala"


def test_weights_and_biases_is_offline_unless_the_spec_says_otherwise() -> None:
    assert spec(trackers={"wandb": {}}).trackers.asked["wandb"].model_dump()["mode"] == "offline"


def test_a_group_is_that_of_the_spec_or_else_of_the_sweep() -> None:
    trackers = spec(trackers={"wandb": {"group": "mine"}, "mlflow": {}}).trackers.grouped("pole")
    assert {name: one.group for name, one in trackers.asked.items()} == {"wandb": "mine", "mlflow": "pole"}


@pytest.mark.parametrize(
    ("uri", "why"),
    [
        ("http://ann:word@mlflow:5000", "MLFLOW_TRACKING_PASSWORD"),
        ("https://ann@mlflow", "MLFLOW_TRACKING_USERNAME"),
        ("postgresql://ann:word@db/mlflow", "MLFLOW_TRACKING_PASSWORD"),
        ("sqlite:///mlflow.db", "a file from the root"),
        ("/home/ann/mlruns", "must begin with http://"),
        ("http://[mlflow", "must be an address"),
    ],
)
def test_an_address_of_mlflow_holds_no_secret_and_no_relative_file(uri: str, why: str) -> None:
    with pytest.raises(ValidationError) as refused:
        spec(trackers={"mlflow": {"uri": uri}})
    message = refused.value.errors()[0]["msg"]
    assert why in message
    assert "word" not in message.replace("PASSWORD", "").replace("a password", "")


@pytest.mark.parametrize("uri", ["http://mlflow:5000", "https://mlflow.example/x", "sqlite:////home/ann/mlflow.db"])
def test_servers_and_files_of_mlflow_are_taken(uri: str) -> None:
    assert spec(trackers={"mlflow": {"uri": uri}}).trackers.mlflow is not None


def test_on_a_cluster_mlflow_is_a_server(lint: Lint) -> None:
    images = "".join(f"  {name}: {image}\n" for name, image in IMAGES.items())
    text = f"run: pole\ntarget: kubernetes\nenv: {{id: CartPole-v1}}\nstop: {{agent_steps: 1}}\nimages:\n{images}"
    (found,) = lint(f"{text}trackers: {{mlflow: {{}}}}\n")
    assert "trackers.mlflow.uri: on a cluster name a server, as in http://mlflow:5000" in found
    assert lint(f"{text}trackers: {{mlflow: {{uri: 'http://mlflow:5000'}}}}\n") == []


@pytest.mark.parametrize("name", TRACKERS)
def test_a_tracker_that_is_not_installed_is_a_finding_with_the_extra_that_brings_it(
    name: str, lint: Lint, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda asked, *more: None if asked == name else real(asked, *more))
    text = f"run: pole\nenv: {{id: CartPole-v1}}\nstop: {{agent_steps: 1}}\ntrackers: {{{name}: {{}}}}\n"
    (found,) = lint(text)
    assert found.endswith(f'trackers.{name}: {name} is not installed here; pip install "rlctl[{name}]"')


def test_words_of_others_lead_to_ours(lint: Lint) -> None:
    text = (
        "run: pole\nenv: {id: CartPole-v1}\nstop: {agent_steps: 1}\nwandb_project: mine\ntracking_uri: x\nwandb: {}\n"
    )
    found = "\n".join(lint(text))
    for ours in ("trackers.wandb.project", "trackers.mlflow.uri", "trackers.wandb"):
        assert f"`{ours}`" in found


def test_a_key_in_a_spec_is_refused_and_not_repeated(lint: Lint) -> None:
    text = "run: pole\nenv: {id: CartPole-v1}\nstop: {agent_steps: 1}\ntrackers: {wandb: {api_key: hushhush}}\n"
    (found,) = lint(text)
    assert "trackers.wandb.api_key: unknown key" in found
    assert "hushhush" not in found


def test_extras_of_trackers_are_sections_of_the_spec() -> None:
    assert set(TRACKERS) == EXTRAS
