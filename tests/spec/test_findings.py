import importlib.util
import json
from pathlib import Path

import pytest

from rlctl.backends.local import LocalBackend
from rlctl.plan import make
from rlctl.spec import Machine, load
from rlctl.spec.algorithms import BUILT
from rlctl.spec.fields import resolved
from rlctl.spec.problems.findings import simulator_missing
from tests.spec.conftest import Lint, Load

TOP = "run: a\nenv: {id: CartPole-v1}\nstop: {agent_steps: 1000}\n"


def test_a_run_without_end_is_a_finding_not_a_problem(lint: Lint) -> None:
    assert lint("run: a\nenv: {id: b}") == [
        "spec.yaml:1:1: stop: no stop condition: the run goes on until `rlctl down`; as in `stop: {eval_return: 475}`"
    ]


def test_more_than_the_machine_has_is_a_finding_with_the_sum(lint: Lint) -> None:
    text = TOP + "roles: {actor: {replicas: 4}, evaluator: {replicas: 0}, manager: {cpu: 500m}}"
    assert lint(text, machine=Machine(cores=4, memory_mib=8192)) == [
        "spec.yaml:4:1: roles: learner 1 x 1 + actor 4 x 1 = 5 cores, this machine has 4",
        "spec.yaml:4:1: roles: manager 1 x 512Mi + modelpool 1 x 1Gi + learner 1 x 4Gi + actor 4 x 2Gi = 13.5Gi of"
        " memory, this machine has 8.0Gi",
    ]


@pytest.mark.parametrize(
    ("lines", "finding"),
    [
        (
            "roles: {actor: {replicas: 0}}",
            "4:17: roles.actor.replicas: no actors: nothing is learned until `rlctl scale actor=1`",
        ),
        (
            "algorithm: {name: dqn}\nroles: {actor: {replicas: 2}, replay: {replicas: 3}}",
            "5:40: roles.replay.replicas: 3 shards, but each actor sends to one: 1 stay empty, and their part of"
            " replay.capacity",
        ),
        (
            "algorithm: {name: r2d2}\nreplay: {capacity: 2559}",
            "5:10: replay.capacity: 2,559, but nothing can be drawn before 160 rows of an environment lie side by side,"
            " and 16 environments send to a shard: at least 2,560, or fewer environments",
        ),
        (
            "algorithm: {name: sac, n_step: 9}\nreplay: {capacity: 1000}\n"
            "roles: {actor: {replicas: 5, envs: 10}, replay: {replicas: 2}}",
            "5:10: replay.capacity: 1,000, but nothing can be drawn before 24 rows of an environment lie side by side,"
            " and 30 environments send to a shard: at least 1,440, or fewer environments",
        ),
        (
            "algorithm: {name: dqn}\nreplay: {capacity: 4000, learning_starts: 4001}",
            "5:26: replay.learning_starts: 4,001 is more than capacity 4,000: the oldest are overwritten before the"
            " first draw",
        ),
        *(
            (
                f"algorithm: {{name: {name}}}\nmodel: {{gaussian: {{std: network}}}}",
                f"5:20: model.gaussian.std: has no effect: {name} has no Gaussian",
            )
            for name in ("dqn", "r2d2", "td3")
        ),
        (
            "algorithm: {name: sac, temperature: 0.1, temperature_lr: 1e-3}",
            "4:42: algorithm.temperature_lr: has no effect with temperature 0.1; say `temperature: auto`",
        ),
        (
            "policies: {main: {algorithm: {name: sac, temperature: 1, target_entropy: -3}}}",
            "4:58: policies.main.algorithm.target_entropy: has no effect with temperature 1; say `temperature: auto`",
        ),
        (
            "algorithm: {name: apex_dqn, prioritized: false, priority_beta: 1}",
            "4:49: algorithm.priority_beta: has no effect with `prioritized: false`",
        ),
        (
            "algorithm: {name: ppo, rmsprop_decay: 0.9}",
            "4:24: algorithm.rmsprop_decay: has no effect with `optimizer: adam`",
        ),
        (
            "algorithm: {optimizer: rmsprop, adam_beta2: 0.9}",
            "4:33: algorithm.adam_beta2: has no effect with `optimizer: rmsprop`",
        ),
        (
            "algorithm: {value_batches: 0, buffer_batches: 9}",
            "4:31: algorithm.buffer_batches: has no effect with `value_batches: 0`",
        ),
        ("roles: {learner: {gpu: 3}}", "4:19: roles.learner.gpu: a learner uses one GPU, the other 2 stay idle"),
        (
            "algorithm: {lr_schedule: {agent_steps: 400}}",
            "4:13: algorithm.lr_schedule: the learning rate is 0 for the last 600 of stop.agent_steps = 1000",
        ),
        (
            "algorithm: {name: ppo, lr_schedule: {agent_steps: 400}}",
            "4:24: algorithm.lr_schedule: the learning rate is 0 for the last 600 of stop.agent_steps = 1000",
        ),
        (
            "algorithm: {name: sac, lr_schedule: {agent_steps: 400}}",
            "4:24: algorithm.lr_schedule: the learning rate is 0 for the last 600 of stop.agent_steps = 1000",
        ),
        (
            "roles: {actor: {replicas: 20}}",
            "1:1: algorithm.max_lag_versions: while one actor plays a block, all of them play actors x envs x"
            " unroll_length = 20 x 16 x 20 = 6400 steps, or 20 updates of 320: what is more than 16 updates old is"
            " dropped; raise this or batch_size, or lower envs",
        ),
        (
            "algorithm: {name: ppo}\nroles: {actor: {replicas: 5}}",
            "4:1: algorithm.batch_size: holds 4 blocks of envs x unroll_length = 16 x 32 steps, so 4 of 5 actors play"
            " at a time and the others wait: 2560 keeps all of them busy",
        ),
        (
            "policies: {main: {algorithm: {name: 'nowhere_at_all:Mine'}}}",
            "4:31: policies.main.algorithm.name: module 'nowhere_at_all' is not installed here; add `code: {path: .}`",
        ),
        (
            "model: {torso: 'nowhere.at_all:Net'}\ncode: {}",
            "4:9: model.torso: module 'nowhere.at_all' is neither below code.path nor installed here",
        ),
    ],
)
def test_what_is_hardly_meant_is_a_finding(lint: Lint, lines: str, finding: str) -> None:
    assert lint(TOP + lines) == [f"spec.yaml:{finding}"]


@pytest.mark.parametrize("name", BUILT)
def test_a_spec_with_every_default_written_out_has_no_finding(lint: Lint, load_text: Load, name: str) -> None:
    text = f"{TOP}algorithm: {{name: {name}}}\n"
    assert lint(text) == []
    assert lint(json.dumps(resolved(load_text(text).spec))) == []


def test_modules_of_ones_own_are_looked_for_without_importing_them(lint: Lint, tmp_path: Path) -> None:
    (tmp_path / "my_env.py").write_text("raise SystemExit('imported')")
    text = "run: a\nenv: {id: 'my_env:make'}\nstop: {agent_steps: 1}\n"
    assert lint(text + "code: {path: .}") == []
    assert lint(text.replace("my_env", "json")) == []
    assert lint(text) == ["spec.yaml:2:7: env.id: module 'my_env' is not installed here; add `code: {path: .}`"]


@pytest.mark.parametrize("module", ["..", "/etc/x", "*", "__main__", "a b", "json.nothing"])
def test_odd_module_names_are_findings_at_most(lint: Lint, module: str) -> None:
    assert len(lint(f"run: a\nenv: {{id: '{module}:x'}}\nstop: {{agent_steps: 1}}\ncode: {{}}")) <= 1


def test_requirements_that_are_not_installed_here_are_named(lint: Lint, tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_text("# ours\npydantic>=2\n-r other.txt\nsurely-not-there==1.0 ; python_version > '3'\n")
    assert lint(TOP + "code: {requirements: r.txt}") == [
        "spec.yaml:4:8: code.requirements: not installed here: surely-not-there"
    ]


def test_findings_wait_until_there_are_no_problems(lint: Lint) -> None:
    assert lint("run: a\nenv: {id: b}\nseed: x") == ["spec.yaml:3:1: seed: must be a whole number, got 'x'"]


def test_patches_beside_another_spec_file_are_named_and_those_that_are_read_are_not(tmp_path: Path) -> None:
    image = "r.example/i@sha256:" + "ab" * 32
    first, second = tmp_path / "mine" / "spec.yaml", tmp_path / "team" / "cluster.yaml"
    for path in (first, second):
        (path.parent / "templates").mkdir(parents=True)
        (path.parent / "templates" / "actor.patch.yaml").write_text("spec: {}")
    first.write_text(TOP)
    second.write_text(f"target: kubernetes\nimages: {{core: {image}, actor: {image}, learner: {image}}}\n")
    found = [str(each) for each in load([first, second]).findings]
    assert found == [
        f"{second.parent / 'templates' / 'actor.patch.yaml'}: is not read: patches are looked for beside the first spec"
        f" file ({first.parent}) and below code.path"
    ]
    assert load([first, second], ["code.path=../team"]).findings == []
    assert load([first, second], ["target=local"]).findings == []


@pytest.mark.parametrize(
    ("id", "package", "extra"), [("ALE/Pong-v5", "ale_py", "atari"), ("LunarLander-v3", "Box2D", "box2d")]
)
def test_a_simulator_that_is_not_installed_is_found_before_anything_starts(
    lint: Lint, load_text: Load, monkeypatch: pytest.MonkeyPatch, id: str, package: str, extra: str
) -> None:
    text = f"run: r\nenv: {{id: {id}}}\nstop: {{agent_steps: 1}}\n"
    assert not [line for line in lint(text) if "needs" in line]
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == package else real(name, *more))
    (found,) = [line for line in lint(text) if "needs" in line]
    assert f"{id} needs {package}, not installed here" in found
    assert f'pip install "rlctl[{extra}]"' in found
    plan = make(load_text(text).spec, uid="0" * 32, base=Path())
    (check,) = LocalBackend().preflight(plan, [])
    assert (check.verdict, check.next) == ("problem", f'pip install "rlctl[{extra}]"')


@pytest.mark.parametrize(
    ("id", "extra"), [("HalfCheetah-v5", "mujoco"), ("Humanoid-v5", "mujoco"), ("minatar.gym:BaseEnv", "minatar")]
)
def test_simulators_of_the_learning_table_have_extras_of_their_own(
    monkeypatch: pytest.MonkeyPatch, id: str, extra: str
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    text, command = simulator_missing(id) or ("", "")
    assert text.startswith(f"{id} needs {extra}")
    assert command == f'pip install "rlctl[{extra}]"'
