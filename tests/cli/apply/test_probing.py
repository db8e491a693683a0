"""The child that tries an environment: it may hang, crash, print, and leave processes behind."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rlctl.probe import Probed, Probing
from rlctl.spec.schema import Network, Spec
from rlctl_agents.algorithms.actor_critic import ActorCriticAlgorithm
from rlctl_agents.algorithms.appo import Appo
from rlctl_agents.algorithms.impala import Impala
from rlctl_agents.algorithms.ppo import Ppo
from rlctl_agents.types.spaces import Box, Discrete, Space, Spaces

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[3]
PLENTY_S = 40.0
VECTOR = Box((4,), "float32")


def probed(id: str, *, within_s: float = PLENTY_S, python: str = sys.executable, **spec: Any) -> Probed:
    env = {"id": id, **spec.pop("env", {})}
    whole = Spec.model_validate({"run": "a", "env": env, "code": {"path": str(ROOT)}, **spec})
    with Probing(whole, ROOT, within_s=within_s, python=python) as asked:
        return asked.answer()


def test_the_child_says_which_leaf_goes_through_which_net() -> None:
    found = probed("tests.acting.owned:Several")
    assert found.verdict == "ok"
    assert found.text == (
        "tests.acting.owned:Several: obs.camera uint8 [84, 84, 3] -> nature_cnn;"
        " obs.room Discrete(5), obs.speed float32 [2] -> mlp; entropy_coef 0.001"
    )


def test_a_mask_within_the_observation_is_told_to_be_none() -> None:
    text = probed("tests.acting.owned:MaskInside").text
    assert "obs.action_mask is an input like others: a mask that is obeyed comes in info" in text


@pytest.mark.parametrize(("algorithm", "drops"), [("ppo", True), ("appo", False)])
def test_segments_that_ppo_drops_where_copies_do_not_fill_them_together_are_told(algorithm: str, drops: bool) -> None:
    text = probed("tests.envs.test_vectors:Same", algorithm={"name": algorithm}).text
    assert ("; ppo drops segments that are half made at each update" in text) is drops


def test_a_network_of_ones_own_is_made_by_the_child() -> None:
    found = probed("Pendulum-v1", model={"torso": "tests.acting.owned_nets:Sound"})
    assert found.verdict == "ok", found.text


@pytest.mark.parametrize(
    ("id", "action", "model"),
    [("CartPole-v1", Discrete(2), {}), ("Pendulum-v1", Box((1,), "float32"), {"core": "lstm"})],
    ids=["discrete", "continuous"],
)
@pytest.mark.parametrize(
    ("algorithm", "left"),
    [(Ppo, {"minibatch_size", "epochs"}), (Appo, {"minibatch_size", "reuse"}), (Impala, set())],
)
def test_what_is_left_to_us_is_said_as_the_algorithm_takes_it(
    algorithm: type[ActorCriticAlgorithm], left: set[str], id: str, action: Space, model: dict[str, Any]
) -> None:
    said = probed(id, algorithm={"name": algorithm.settings().name}, model=model).text.partition("mlp; ")[2]
    built = algorithm(algorithm.settings(), Network(**model), Spaces(VECTOR, action), seed=0).config
    told = dict(one.split() for one in said.split(", "))
    assert told.keys() == {"entropy_coef", *left}
    assert {key: float(value) for key, value in told.items()} == {key: getattr(built, key) for key in told}


@pytest.mark.parametrize(
    ("algorithm", "hint"),
    [({"name": "ppo"}, "; lr 0.0003 is slow for small images: try 0.001"), ({"name": "ppo", "lr": 0.002}, "")],
)
def test_a_learning_rate_that_is_slow_for_small_images_is_told_unless_it_was_chosen(
    algorithm: dict[str, Any], hint: str
) -> None:
    found = probed("tests.acting.owned:Grid", algorithm=algorithm)
    assert found.text == (
        "tests.acting.owned:Grid: obs uint8 [10, 10, 4] -> small_cnn; "
        f"entropy_coef 0.01, epochs 4, minibatch_size 256{hint}"
    )


def test_a_refusal_names_the_value_as_the_user_has_written_it() -> None:
    assert [fault.path for fault in probed("tests.acting.owned:Table").faults] == [("model", "torso")]
    policies = {"main": {}}
    found = probed("tests.acting.owned:Table", policies=policies)
    assert [fault.path for fault in found.faults] == [("policies", "main", "model", "torso")]


def test_a_policy_to_begin_from_that_does_not_fit_is_told_with_every_array() -> None:
    whole = Spec.model_validate({"run": "a", "env": {"id": "CartPole-v1"}, "init": {"run": "b", "parts": ["value"]}})
    arrays = {"value.weight": "float32 [1, 32]", "value.bias": "float32 [2]"}
    with Probing(whole, ROOT, within_s=PLENTY_S, initial={"of": "b@best", "arrays": arrays}) as asked:
        found = asked.answer()
    assert [fault.path for fault in found.faults] == [("init", "run"), ("init", "run")]
    assert found.faults[0].message == "value.weight is float32 [1, 32] in b@best, and float32 [1, 64] in this network"


def test_what_the_users_code_says_does_not_stop_the_child() -> None:
    assert probed("tests.acting.owned:Talking").verdict == "ok"


def test_a_message_of_the_users_code_cannot_act_on_the_terminal() -> None:
    (fault,) = probed("tests.acting.owned:Raising").faults
    assert "RuntimeError: no licence for this host" in fault.message


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("Crashing", "trying it ended with SIGSEGV: about to crash"),
        ("Silent", "trying it ended without an answer"),
    ],
)
def test_a_child_that_dies_is_one_line_with_the_reason(name: str, why: str) -> None:
    found = probed(f"tests.acting.owned:{name}")
    assert (found.verdict, found.text) == ("not checked", f"tests.acting.owned:{name}: {why}")
    assert found.faults == ()


def test_a_child_whose_environment_hangs_is_ended_at_the_deadline() -> None:
    begun = time.monotonic()
    found = probed("tests.acting.owned:Slow", within_s=1.0)
    assert time.monotonic() - begun < 10
    assert (found.verdict, found.text) == ("not checked", "tests.acting.owned:Slow: it took longer than 1 s")


@pytest.mark.parametrize(
    "needs",
    [{"model": {"torso": "tests.acting.owned_nets:Sound"}}, {"algorithm": {"name": "impala", "value_batches": 4}}],
    ids=["own network", "value_batches"],
)
def test_what_needs_torch_has_time_to_import_it(needs: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(1000))
    whole = Spec.model_validate({"run": "a", "env": {"id": "tests.acting.owned:Slow"}, **needs})
    with Probing(whole, ROOT, clock=lambda: float(next(now)), sleep=lambda _: None) as asked:
        assert asked.answer().text == "tests.acting.owned:Slow: it took longer than 20 s"
    monkeypatch.setitem(sys.modules, "torch", None)
    with Probing(whole, ROOT, python="/nowhere/python") as asked:
        assert "torch is not installed here" in asked.answer().text


def test_a_child_whose_import_never_returns_is_ended_at_the_deadline(tmp_path: Path) -> None:
    (tmp_path / "hanging.py").write_text("import time\ntime.sleep(600)\n")
    assert probed("hanging:Env", within_s=1.0, code={"path": str(tmp_path)}).text == (
        "hanging:Env: it took longer than 1 s"
    )


def test_what_the_child_has_started_ends_with_it(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    assert probed("tests.acting.owned:Parent", env={"kwargs": {"pid_file": str(file)}}).verdict == "ok"
    pid = int(file.read_text())
    deadline = time.monotonic() + 20
    while _lives(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _lives(pid)


def _lives(pid: int) -> bool:
    """A process that is there and no zombie: an orphan's new parent may take its time."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:  # no such file, or no such process any more once it is open
        return False


def test_an_interpreter_without_the_agents_is_not_checked_and_says_why() -> None:
    found = probed("CartPole-v1", python="/nowhere/python")
    assert (found.verdict, found.text) == (
        "not checked",
        "CartPole-v1: no process can be started: no such file or directory",
    )
    found = probed("CartPole-v1", python="/bin/false")
    assert found.text == "CartPole-v1: trying it ended with exit code 1"


@pytest.mark.parametrize(
    ("package", "id", "why"),
    [
        ("gymnasium", "CartPole-v1", 'gymnasium is not installed here: pip install "rlctl[local]"'),
        ("ale_py", "ALE/Pong-v5", 'ALE/Pong-v5 needs ale_py, not installed here; pip install "rlctl[atari]"'),
    ],
)
def test_nothing_is_started_where_what_it_needs_is_not_installed(
    package: str, id: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    found = probed(id, python="/nowhere/python")
    assert (found.verdict, found.text) == ("not checked", f"{id}: {why}")


def child(id: str, *options: str) -> subprocess.CompletedProcess[bytes]:
    """Output of the child itself."""
    spec = {"env": {"id": id, "kwargs": {}, "preset": "none", "max_episode_steps": None}, "seed": 0,
            "evaluation": {"video_every": None}, "replay": None}  # fmt: skip
    spec |= {
        "policies": {
            "main": {
                "algorithm": {"name": "impala"},
                "model": {"torso": "auto", "core": "none", "gaussian": {"squash": False}},
            }
        }
    }
    return subprocess.run(
        [sys.executable, *options, "-m", "rlctl_agents", "probe", "--check"],
        input=json.dumps(spec).encode(),
        capture_output=True,
        timeout=60,
        check=True,
        cwd=ROOT,
        env=os.environ,
    )


def test_what_the_users_code_says_is_no_part_of_the_answer() -> None:
    done = child("tests.acting.owned:Talking")
    assert json.loads(done.stdout)["faults"] == []
    assert done.stderr.count(b"{}") == 100_001


def test_a_child_that_nobody_ends_any_more_ends_by_itself() -> None:
    left = re.search(rb"(\d+) s are left", child("tests.acting.owned:Watched").stderr)
    assert left is not None
    assert 0 < int(left[1]) <= 60


def test_without_code_of_the_users_own_the_child_imports_no_torch() -> None:
    done = child("CartPole-v1", "-X", "importtime")
    assert json.loads(done.stdout)["faults"] == []
    imported = {line.rpartition(b"|")[2].strip().split(b".")[0] for line in done.stderr.splitlines()}
    assert b"gymnasium" in imported
    assert not imported & {b"torch", b"pydantic", b"zmq"}
