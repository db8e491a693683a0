import io
import sys
import time
from pathlib import Path

import pytest

from rlctl.errors import SpecError
from rlctl.spec import load
from rlctl.spec.schema import Spec
from rlctl.spec.yaml import Location
from tests.spec.conftest import ROOMY, Lint, Load

GOOD = "run: a\nenv: {id: CartPole-v1}\nstop: {agent_steps: 1000}\n"


def problems(*paths: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        load([Path(path) for path in paths], machine=ROOMY)
    assert caught.value.exit_code == 3
    return [str(problem) for problem in caught.value.problems]


def test_a_spec_with_five_planted_faults_gives_five_lines_in_the_order_of_the_file(lint: Lint) -> None:
    text = """\
run: five
env: {id: CartPole-v1}
algorithm:
  gama: 0.99
  batch_size: 650
roles:
  learner: {gpu: -1}
  replay: {replicas: 2}
  actor:
    memory: 2GB
"""
    assert lint(text) == [
        "spec.yaml:4:3: algorithm.gama: unknown key; did you mean `gamma`?",
        "spec.yaml:5:3: algorithm.batch_size: must be a multiple of unroll_length, got 650 = 32 x 20 + 10;"
        " choose 640 or 660",
        "spec.yaml:7:13: roles.learner.gpu: must be at least 0, got -1",
        "spec.yaml:8:3: roles.replay: not used by impala; remove it",
        "spec.yaml:10:5: roles.actor.memory: must be memory with its unit, as in 512Mi or 2Gi, got '2GB'",
    ]


def test_a_fault_in_a_list_hides_no_rule_over_several_fields(lint: Lint) -> None:
    text = "algorithm: {name: ppo, batch_size: 1000}\nmodel: {hidden: [64, 0]}\nroles: {learner: {replicas: 4}}\n"
    assert lint(GOOD + text) == [
        "spec.yaml:4:24: algorithm.batch_size: must hold whole blocks of an actor for each learner, roles.actor.envs x"
        " unroll_length = 16 x 32 = 512 steps, or the rest of a block is dropped; got 1000; choose 2048",
        "spec.yaml:5:22: model.hidden.1: must be at least 1, got 0",
        "spec.yaml:6:19: roles.learner.replicas: each learner needs an actor, at most roles.actor.replicas, got 4 > 1",
    ]


def test_the_smallest_spec_loads_and_takes_its_defaults(load_text: Load) -> None:
    loaded = load_text(GOOD)
    assert loaded.spec == Spec.model_validate({"run": "a", "env": {"id": "CartPole-v1"}, "stop": {"agent_steps": 1000}})
    assert loaded.values == {"run": "a", "env": {"id": "CartPole-v1"}, "stop": {"agent_steps": 1000}}
    assert loaded.findings == []


def test_the_stored_form_of_a_spec_reads_back_as_the_same_spec(load_text: Load) -> None:
    spec = load_text(GOOD + "algorithm: {lr: 1e-4}\nroles: {actor: {cpu: 500m, memory: 2048Mi}}\n").spec
    assert Spec.model_validate(spec.model_dump(mode="json")) == spec
    assert spec.roles.actor.memory == "2Gi"


@pytest.mark.parametrize("written", ["1e-4", "1E-4", ".0001", "0.0001"])
def test_a_small_number_is_a_number_in_every_spelling(load_text: Load, written: str) -> None:
    algorithm = load_text(GOOD + f"algorithm: {{lr: {written}}}").spec.policy().algorithm
    assert algorithm.model_dump()["lr"] == 1e-4


def test_a_whole_number_may_be_written_with_an_exponent(load_text: Load) -> None:
    loaded = load_text("run: a\nenv: {id: b, kwargs: {gain: 1e3}}\nstop: {agent_steps: 5e6}")
    assert loaded.spec.stop.agent_steps == 5_000_000
    assert type(loaded.spec.env.kwargs["gain"]) is float


def test_later_files_win_key_by_key_and_lists_replace(load_text: Load) -> None:
    loaded = load_text(
        GOOD + "model: {hidden: [64, 64], activation: tanh}\ncode: {path: .}",
        "model: {hidden: [256]}\ncode: null\n",
        "algorithm: {lr: 0.001}\nrun: c\n",
    )
    assert loaded.values == {
        "run": "c",
        "env": {"id": "CartPole-v1"},
        "stop": {"agent_steps": 1000},
        "model": {"hidden": [256], "activation": "tanh"},
        "code": None,
        "algorithm": {"lr": 0.001},
    }


def test_every_value_knows_the_file_that_it_comes_from(load_text: Load) -> None:
    locate = load_text(
        GOOD + "model:\n  hidden: [64, 64]\n", "model: {hidden: [8]}\n", sets=("algorithm.lr=0.1", "run=b")
    ).places.get
    assert locate(("env", "id")) == Location("spec.yaml", 2, 7)
    assert locate(("model", "hidden")) == Location("over-0.yaml", 1, 9)
    assert locate(("model", "hidden", 0)) == Location("over-0.yaml", 1, 18)
    assert locate(("model", "hidden", 1)) is None
    assert locate(("algorithm", "lr")) == Location("--set algorithm.lr=0.1", 0, 0)
    assert locate(("run",)) == Location("--set run=b", 0, 0)
    assert locate(("seed",)) is None


def test_problems_of_several_files_come_in_the_order_of_the_files(lint: Lint) -> None:
    assert lint(GOOD + "seed: -1", "sync: 3\nx: 1", sets=("target=moon", "algorithm.lr=-1")) == [
        "spec.yaml:4:1: seed: must be at least 0, got -1",
        "over-0.yaml:1:1: sync: must be true or false, got 3",
        "over-0.yaml:2:1: x: unknown key; remove it",
        "--set target=moon: target: must be local or kubernetes, got 'moon'",
        "--set algorithm.lr=-1: algorithm.lr: must be more than 0, got -1",
    ]


def test_a_value_that_a_later_file_corrects_is_no_problem(lint: Lint) -> None:
    assert lint(GOOD + "seed: -1", "seed: 1") == []


@pytest.mark.parametrize(
    ("assignment", "path", "value"),
    [
        ("run=007", ["run"], "007"),
        ("run=null", ["run"], "null"),
        ("run='1e3'", ["run"], "1e3"),
        ("env.id=Pong-v5", ["env", "id"], "Pong-v5"),
        ("roles.actor.replicas=4", ["roles", "actor", "replicas"], 4),
        ("roles.actor.cpu=500m", ["roles", "actor", "cpu"], 0.5),
        ("roles.actor.cpu=2", ["roles", "actor", "cpu"], 2.0),
        ("algorithm.lr=1e-3", ["algorithm", "lr"], 1e-3),
        ("sync=false", ["sync"], False),
        ("stop.agent_steps=5e6", ["stop", "agent_steps"], 5_000_000),
        ("stop.wall_time=5m", ["stop", "wall_time"], 300.0),
        ("stop.agent_steps=null", ["stop", "agent_steps"], None),
        ("storage.path=null", ["storage", "path"], None),
        ("storage.path=1.50", ["storage", "path"], "1.50"),
        ("model.hidden=[32, 16]", ["model", "hidden"], [32, 16]),
        ("model={hidden: [8], width: 4}", ["model", "width"], 4),
        ("env.kwargs.size=3", ["env", "kwargs"], {"size": 3}),
        ("env.kwargs.map.name=a=b", ["env", "kwargs"], {"map": {"name": "a=b"}}),
        ("policies.main.algorithm.lr=1e-2", ["policies"], None),
    ],
)
def test_set_is_typed_by_the_schema(load_text: Load, assignment: str, path: list[str], value: object) -> None:
    if path == ["policies"]:
        spec = load_text(GOOD, sets=(assignment,)).spec
        assert spec.policy().algorithm.model_dump()["lr"] == 1e-2
        return
    found: object = load_text(GOOD, sets=(assignment,)).spec
    for key in path:
        found = getattr(found, key)
    assert found == value
    assert type(found) is type(value)


def test_a_whole_number_is_a_number_where_a_word_may_stand_too(load_text: Load) -> None:
    sets = ["algorithm={name: sac}", "algorithm.temperature=1", "replay.samples_per_insert=32"]
    spec = load_text(GOOD, sets=sets).spec
    assert spec.replay is not None
    assert spec.replay.samples_per_insert == 32
    assert spec.policy().algorithm.temperature == 1  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["sac", "td3"])
def test_of_actors_and_critics_each_row_that_comes_in_is_an_optimizer_step(name: str, load_text: Load) -> None:
    for size in (256, 64):
        sets = [f"algorithm={{name: {name}}}", f"algorithm.minibatch_size={size}", "replay.learning_starts=500"]
        spec = load_text(GOOD, sets=sets).spec
        assert spec.replay is not None
        assert spec.replay.ratio_of(spec.policy().algorithm, images=False) == size  # type: ignore[arg-type]


def test_the_last_set_of_a_path_wins(load_text: Load) -> None:
    assert load_text(GOOD, sets=("seed=1", "seed=2")).spec.seed == 2


@pytest.mark.parametrize(
    ("assignment", "fault"),
    [
        ("seed", "must be path=value, as in algorithm.lr=1e-3"),
        ("=1", "must be path=value, as in algorithm.lr=1e-3"),
        ("algorithm..lr=1", "must be path=value, as in algorithm.lr=1e-3"),
        ("roles.actr.replicas=4", "roles.actr: unknown key; did you mean `actor`?"),
        ("algorithm.larning_rate=1", "algorithm.larning_rate: unknown key; remove it"),
        ("batch_size=1", "batch_size: unknown key here; did you mean `algorithm.batch_size`?"),
        ("run.name=x", "run.name: `run` has no keys below it"),
        ("model.hidden.0=3", "model.hidden.0: `model.hidden` has no keys below it"),
        ("seed=[1", "seed: not YAML: a `,` or the closing `]` is missing"),
        ("seed=*x", "seed: aliases (*x) are not allowed; write the value out"),
        ("seed=\udc80", "seed: has a character that is not allowed"),
        ("seed=", "seed: must be a whole number, got nothing"),
        ("roles.actor.cpu=no", "roles.actor.cpu: must be cores, as in 2, 0.5 or 500m, got 'no'"),
    ],
)
def test_a_set_that_does_not_fit_is_refused_by_its_own_text(lint: Lint, assignment: str, fault: str) -> None:
    assert lint(GOOD + "model: {hidden: [1]}", sets=(assignment,)) == [f"--set {assignment}: {fault}"]


def test_standard_input_is_a_spec_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(GOOD.encode() + b"seed: x")))
    assert problems("-") == ["stdin:4:1: seed: must be a whole number, got 'x'"]
    monkeypatch.setattr(sys, "stdin", None)  # as in rlctl lint - <&-
    assert problems("-") == ["stdin: cannot be read: standard input is closed"]


def test_paths_in_the_spec_are_relative_to_its_folder(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "spec.yaml").write_text(GOOD + "code: {path: code}")
    assert load([tmp_path / "spec.yaml"], machine=ROOMY).base == tmp_path


def test_a_file_that_cannot_be_read_is_one_problem_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("latin.yaml").write_bytes("run: a\nenv: Äö\n".encode("latin-1"))
    Path("wide.yaml").write_bytes("run: a\n".encode("utf-16"))
    Path("empty.yaml").write_text("# nothing\n")
    Path("list.yaml").write_text("\n- run: a\n")
    Path("bom.yaml").write_text("seed: x", encoding="utf-8-sig")
    Path("long.yaml").write_text("a: " + "ä" * 600_000, encoding="utf-8")
    Path("good.yaml").write_text(GOOD)
    assert problems("missing.yaml") == ["missing.yaml: no such file"]
    assert problems(".") == [".: cannot be read: is a directory"]
    assert problems("latin.yaml") == ["latin.yaml:2:6: is not UTF-8; save it as UTF-8"]
    assert problems("wide.yaml") == ["wide.yaml:1:1: is UTF-16; save it as UTF-8"]
    assert problems("list.yaml") == ["list.yaml:2:1: must be a mapping (key: value) at the top"]
    assert problems("long.yaml") == ["long.yaml: cannot be read: longer than 256 KiB"]
    assert problems("empty.yaml") == [
        "empty.yaml: is empty; a spec has at least `run: my-run` and `env: {id: CartPole-v1}`"
    ]
    assert problems("good.yaml", "bom.yaml") == ["bom.yaml:1:1: seed: must be a whole number, got 'x'"]
    assert problems("a\0b") == ["a\0b: cannot be read: embedded null byte"]
    with pytest.raises(SpecError, match="1 problem"):
        load([])


def test_problems_of_every_unreadable_file_are_reported_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.yaml").write_text("a: [1")
    Path("good.yaml").write_text(GOOD + "seed: x")
    assert problems("missing.yaml", "bad.yaml", "good.yaml") == [
        "missing.yaml: no such file",
        "bad.yaml:1:4: not YAML: a `,` or the closing `]` is missing",
    ]


def test_what_a_fault_of_yaml_made_unreadable_is_not_called_missing(lint: Lint) -> None:
    assert lint("run: &r a\nenv: {id: *r}") == [
        "spec.yaml:1:6: run: anchors (&r) are not allowed; remove it",
        "spec.yaml:2:11: env.id: aliases (*r) are not allowed; write the value out",
    ]


def test_of_very_many_problems_the_first_thousand_are_listed_with_their_lines(load_text: Load) -> None:
    began = time.process_time()
    with pytest.raises(SpecError) as caught:
        load_text(GOOD + "".join(f"k{at}: 1\n" for at in range(5_000)))
    assert time.process_time() - began < 4  # seconds; 15 where each is compared with all keys of a spec
    first, *listed = map(str, caught.value.problems)
    assert first.endswith("has 5000 problems; the first 1000 are listed")
    assert len(listed) == 1000
    assert listed[-1].endswith("spec.yaml:1003:1: k999: unknown key; remove it")
