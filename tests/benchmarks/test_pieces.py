"""Environments, policies and settings of the benchmarks."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import gpu, limit
from benchmarks.envs import limited, listed, plain
from benchmarks.envs.latency import Latency
from benchmarks.envs.unbootstrapped import Unbootstrapped
from benchmarks.envs.uncorrected import Uncorrected
from benchmarks.parts import PARTS
from benchmarks.peers import turns, venvs
from benchmarks.peers.contenders import ALSO, CLIPPED, GOALS, OURS, PEERS, REPLAYED, TASKS, changed
from benchmarks.peers.scripts import nets
from benchmarks.peers.window import CannotDo, child, solve, window
from benchmarks.scaling import fleet, shares, soak
from benchmarks.scaling.light import Mlp
from benchmarks.scaling.settings import SEGMENT_STEPS, run_spec
from benchmarks.shared import processes
from benchmarks.shared.product import Mark
from rlctl.spec.algorithms import Clipped, External
from rlctl.spec.algorithms import Impala as ImpalaSpec
from rlctl.spec.algorithms import Ppo as PpoSpec
from rlctl.spec.schema import Network, Spec
from rlctl_agents import envs
from rlctl_agents.algorithms.base import Batch
from rlctl_agents.algorithms.impala import Impala
from rlctl_agents.algorithms.ppo import Ppo
from rlctl_agents.envs.check import check_env
from rlctl_agents.experience.batching import BatchMemory, allocate_memory, column_axes
from rlctl_agents.models.policy import ActorCritic
from rlctl_agents.models.weights import pack
from rlctl_agents.types.experience import Arrays, Field, Ledger, ModelRef, Schema, SegmentBlock, SegmentHeader
from rlctl_agents.types.spaces import Box, Discrete, Spaces
from tests.support.samples import sample

SPACES = Spaces(Box((16,), "float32"), Discrete(2))


def test_the_latency_environment_keeps_every_rule_of_environments() -> None:
    check_env(Latency(3, latency_ms=0.0, cpu_ms=0.0, episode_steps=5))
    check_env(Latency(2, latency_ms=0.0, cpu_ms=0.0, pixels=True, episode_steps=3))


def test_the_light_policy_has_the_probabilities_of_the_products_network() -> None:
    net = ActorCritic(SPACES, Network(), seed=3)
    torch.nn.init.normal_(net.policy.weight)  # type: ignore[arg-type]
    light = Mlp(0)
    light.take(ModelRef("main", 0, 1), pack(net.state_dict()))
    obs = np.random.default_rng(0).normal(size=(7, 16)).astype(np.float32)
    chosen = light.act(obs)
    with torch.no_grad():
        params, _ = net.step({"obs": torch.from_numpy(obs)}, torch.ones(7, dtype=torch.bool), {})
        expected = torch.log_softmax(params, -1).gather(1, torch.from_numpy(chosen["action"])[:, None])[:, 0]
    np.testing.assert_allclose(chosen["log_prob"], expected.numpy(), rtol=1e-5, atol=1e-6)


class Crew:
    """Two light actors and one of the product's own, none of them a process."""

    def __init__(self) -> None:
        self.steps, self.pid_of, self.real = np.array([100, 100]), np.array([1001, 1002]), 1
        self.rows: list[int] = [640]  # of the product's own
        self.pid = 2001

    def pids(self) -> list[int]:
        return self.pid_of.tolist()

    def pid_of_real(self, index: int) -> int:
        return self.pid + index

    def rows_of_real(self, index: int) -> int:
        return self.rows[index]


def test_light_actors_and_the_products_own_are_killed_in_turn_and_recover_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append(pid))
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    crew: Any = Crew()
    watch = soak.Watch(crew, random.Random(0), 10.0, 60.0)
    watch.look(10.0)
    watch.look(20.0)
    crew.rows[0] = 0
    assert [pid > 2000 for pid in killed] == [False, True]
    assert watch.rows_of_dead == 640
    watch.look(21.0, kill=False)
    assert watch.figures()["not_recovered"] == 2

    crew.pid_of += 10
    watch.look(22.0, kill=False)
    crew.steps += 1
    crew.rows[0] = SEGMENT_STEPS
    watch.look(23.0, kill=False)
    found = watch.figures()
    assert (found["recovery_p50_s"], found["not_recovered"]) == (13.0, 1), "it has not made a segment yet"
    assert np.isnan(found["recovery_real_p50_s"])
    crew.rows[0] += 1
    watch.look(26.0, kill=False)
    found = watch.figures()
    assert (found["recovery_real_p50_s"], found["not_recovered"]) == (6.0, 0)
    assert (found["kills"], found["kills_of_real"]) == (2, 1)


def test_nobody_is_killed_where_the_soak_is_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append(pid))
    crew: Any = Crew()
    watch = soak.Watch(crew, random.Random(0), 1.0, 60.0)
    watch.look(time.monotonic() + 10, kill=False)
    assert killed == []


def test_who_takes_the_cpu_of_a_step_adds_up_to_what_all_take() -> None:
    before = shares.Seen(Mark(10.0, 1000, 5.0), {"actors": 3.0, "learner": 1.5, "others": 0.5})
    after = shares.Seen(Mark(20.0, 3000, 7.0), {"actors": 4.6, "learner": 1.8, "others": 0.6})
    found = shares.figures(before, after)
    assert found["actors_cpu_ms"] == pytest.approx(0.8)
    assert sum(found[f"{who}_cpu_ms"] for who in shares.WHO) == pytest.approx(1e3 / found["steps_per_cpu_s"])


def test_a_window_begins_with_an_update_and_cpu_is_looked_for_only_then(monkeypatch: pytest.MonkeyPatch) -> None:
    counts, looked = iter([256, 256, 256, 512, 512]), []
    run: Any = SimpleNamespace(
        counter=lambda role, name: next(counts), pids=lambda role: looked.append(role) or [], cpu_s=lambda: 1.0
    )
    monkeypatch.setattr(shares, "LOOK_S", 0.0)
    assert shares.at_update(run).mark.steps == 512
    assert looked == ["actor", "learner"]


def test_rows_of_an_actor_are_its_steps_and_the_ends_of_its_episodes() -> None:
    def counter(role: str, name: str, index: int) -> float:
        if name == "episodes":
            raise RuntimeError("has no such counter yet")
        return 40.0

    run: Any = SimpleNamespace(counter=counter)
    parent: Any = SimpleNamespace(pid=1)
    crew = fleet.Fleet(run, parent, np.zeros((2, 1), np.int64), 1)
    assert crew.rows_of_real(0) == 40
    run.counter = lambda role, name, index: {"agent_steps": 400.0, "episodes": 2.0}[name]
    assert crew.rows_of_real(0) == 402


def a_batch(**fields: torch.Tensor) -> Batch:
    """Four rows of two segments by a policy of probability e^-3."""
    flags = {name: torch.zeros(4, 2, dtype=torch.bool) for name in ("terminated", "truncated")}
    whole = {
        "obs": torch.randn(5, 2, 16), "first": torch.zeros(5, 2, dtype=torch.bool), "reward": torch.randn(4, 2),
        "action": torch.randint(0, 2, (4, 2)), "valid": torch.ones(4, 2, dtype=torch.bool), **flags,
        "log_prob": torch.full((4, 2), -3.0),
    }  # fmt: skip
    return Batch(whole | fields, torch.zeros(4, 2, dtype=torch.int64))


def test_without_correction_old_experience_weighs_as_if_it_were_new() -> None:
    plain = Impala(ImpalaSpec(unroll_length=4, batch_size=8), Network(), SPACES, seed=0)
    other = Uncorrected(External(name="x:Y", unroll_length=4, batch_size=8), Network(), SPACES, seed=0)
    batch = a_batch()
    assert other.loss(batch).metrics["rho"].item() == pytest.approx(1.0)
    assert plain.loss(batch).metrics["rho"].item() > 2


def test_a_cut_that_counts_as_an_end_is_learned_from_as_one() -> None:
    settings: dict[str, Any] = {"unroll_length": 4, "batch_size": 8, "max_lag_versions": 0}
    plain = Ppo(PpoSpec(**settings), Network(), SPACES, seed=0)
    other = Unbootstrapped(External(name="x:Y", **settings), Network(), SPACES, seed=0)
    torch.nn.init.normal_(plain.net.value.weight)  # type: ignore[arg-type]
    other.net.load_state_dict(plain.net.state_dict())
    ends, none = torch.zeros(2, 4, 2, dtype=torch.bool)
    ends[1, 0] = True
    batch = a_batch(truncated=ends)
    as_end = Batch(batch.fields | {"terminated": ends, "truncated": none}, batch.version)
    with torch.no_grad():
        found, same, cut = other.estimates(batch), plain.estimates(as_end), plain.estimates(batch)
    torch.testing.assert_close(found["advantage"], same["advantage"])
    assert not torch.allclose(found["advantage"], cut["advantage"])


def test_episodes_are_cut_and_begun_where_they_are_learned_from_and_as_registered_where_they_are_evaluated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for role, steps, fastest in (("actor", 10, 8.0), ("evaluator", 200, 1.0)):
        monkeypatch.setattr(sys, "argv", ["rlctl_agents", role, "--run-file", "x"])
        made = limited.make("Pendulum-v1", 10, {"y_init": 8})
        assert made.spec is not None
        assert made.spec.max_episode_steps == steps
        speeds = [abs(made.reset(seed=seed)[0][2]) for seed in range(50)]
        assert fastest / 2 < max(speeds) <= fastest


def test_our_side_of_every_task_is_a_valid_spec_with_the_network_of_the_peers() -> None:
    every = OURS | CLIPPED | REPLAYED
    for task, settings in every.items():
        spec = Spec.model_validate({"run": "x", **settings})
        model, hidden = spec.policy().model, [256, 256] if task == "halfcheetah_sac" else [64, 64]
        assert (model.torso, model.width) == ("nature_cnn", 512) if "pong" in task else model.hidden == hidden
        assert model.normalize.observations is ("auto" if "pong" in task or "halfcheetah" in task else False)
    for task, variants in ALSO.items():
        for parts in variants.values():
            spec = Spec.model_validate({"run": "x", **changed(every[task], parts)})
            config = spec.policy().algorithm
            if isinstance(config, Clipped):
                ppo = Spec.model_validate({"run": "x", **CLIPPED[task]}).policy().algorithm
                assert isinstance(ppo, Clipped)
                assert (config.passes, config.minibatches) == (ppo.passes, ppo.minibatches)
    Spec.model_validate(run_spec(4, 10.0, 0.1))


@pytest.mark.parametrize(("task", "spaces"), [
    ("pong", Spaces(Box((4, 84, 84), "uint8", 0, 255), Discrete(6))),
    ("cartpole", Spaces(Box((4,), "float32"), Discrete(2))),
])  # fmt: skip
def test_peers_that_take_a_module_get_the_layers_of_ours(task: str, spaces: Spaces) -> None:
    ours = ActorCritic(spaces, Spec.model_validate({"run": task, **OURS[task]}).policy().model, seed=0)
    theirs = nets.ActorCritic(task == "pong", spaces.action.n)  # type: ignore[union-attr]
    shapes = [sorted(tuple(weight.shape) for weight in net.parameters()) for net in (ours, theirs)]
    assert shapes[0] == shapes[1]
    obs = torch.zeros(3, *spaces.obs.shape)  # type: ignore[union-attr]
    logits, values = theirs(obs)
    torch.testing.assert_close((theirs.logits(obs), theirs.values(obs)), (logits, values))


def test_every_peer_has_pinned_requirements_a_program_and_tasks_that_exist() -> None:
    assert TASKS.keys() == GOALS.keys()
    for peer in PEERS:
        assert set(peer.tasks) <= TASKS.keys()
        assert (Path(venvs.__file__).parent / "scripts" / f"{peer.script}.py").exists()
        text = (venvs.REQUIREMENTS / f"{peer.name}.txt").read_text()
        assert "==" in text
        assert venvs.stamp(text) != venvs.stamp(text + "numpy==1.0\n")


def test_a_build_does_not_see_a_compiler_that_it_must_not_use(tmp_path: Path) -> None:
    (tmp_path / "nvcc").touch()
    path = os.pathsep.join(["/usr/bin", str(tmp_path), "/bin"])
    assert str(tmp_path) not in venvs.without("nvcc", path).split(os.pathsep)
    assert "/bin" in venvs.without("nvcc", path).split(os.pathsep)


def test_why_an_installation_failed_is_the_last_error_of_its_log(tmp_path: Path) -> None:
    log = tmp_path / "install.log"
    log.write_text("Collecting x\nERROR: No matching distribution found for x\n\n")
    error = venvs.subprocess.CalledProcessError(1, ["pip"])
    assert venvs.why(log, error).startswith("ERROR: No matching distribution found for x (exit 1")


def test_cpu_of_this_process_is_in_its_tree() -> None:
    before = processes.cpu_s([os.getpid()])
    until = time.process_time() + 0.05
    while time.process_time() < until:
        pass
    assert processes.cpu_s([os.getpid()]) > before
    assert os.getpid() in processes.tree([os.getppid()])
    before = processes.cpu_s([os.getpid()])
    work = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", work], check=True)
    assert processes.cpu_s([os.getpid()]) >= before + 0.25, "that of a child that has ended is in it, too"
    assert processes.memory([os.getpid()]).pss_mib > 1


TRAINER = """
import json, sys, time
if sys.argv[1] == "solve": sys.exit(2)
while time.process_time() < 0.1: pass  # ten ticks of the kernel's clock
for step in range(100):
    print(json.dumps({"at_s": time.monotonic(), "steps": step * 10, "score": step * 10.0}), flush=True)
    time.sleep(0.01)
"""


@pytest.mark.processes
def test_a_window_lies_between_two_lines_of_the_trainer() -> None:
    start = time.monotonic()
    with child([sys.executable, "-c", TRAINER, "pong"], {}) as running:
        first, last = window(running, warm_s=0.05, window_s=0.2)
    assert first.at_s - start >= 0.05
    assert last.at_s - first.at_s >= 0.2
    assert first.steps >= 20, "its first line has learned nothing yet, and the warm-up begins with the second"
    assert last.steps > first.steps
    assert last.cpu_s >= first.cpu_s > 0
    with child([sys.executable, "-c", TRAINER, "pong"], {}) as running:
        assert solve(running, score=300, limit_s=60)["solve_steps"] >= 300


BUSY = """
import json, os, sys, time
steps = 0
while True:
    end = time.process_time() + 0.05
    while time.process_time() < end: pass
    steps += int(sys.argv[1])
    if sys.argv[2] == "ends" and steps > 5: sys.exit("the end")
    print(json.dumps({"at_s": time.monotonic(), "steps": steps, "score": None}), flush=True)
"""


@pytest.mark.processes
def test_trainers_compute_in_turns_and_each_has_the_rate_of_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TURN_S", 0.2)

    def start(*words: str) -> Callable[[], AbstractContextManager[turns.Trainer]]:
        return partial(turns.theirs, lambda: child([sys.executable, "-c", BUSY, *words], {}))

    mark = f"of-{os.getpid()}"
    starts = {"slow": start("1", mark), "fast": start("7", mark), "ends": start("1", "ends", mark)}
    found = turns.in_turns(starts, warm_s=0.3, window_s=1.0)
    assert "RuntimeError: exit 1: the end" in found["ends"]["failed"]
    for label, steps in (("slow", 1), ("fast", 7)):
        assert found[label]["steps_per_cpu_s"] == pytest.approx(20 * steps, rel=0.4), "an update takes 50 ms of CPU"
        assert found[label]["window_s"] >= 1.0
    assert not processes.mentioning(mark)


def test_a_window_of_a_run_begins_and_ends_at_an_update() -> None:
    counted = iter([1024.0, 1024.0, 2048.0, 5120.0, 5120.0, 6144.0])  # three updates come while it is not looked at

    class Learner:
        def counter(self, role: str, name: str) -> float:
            return next(counted)

    ours = turns.Ours(Learner())  # type: ignore[arg-type]
    seen = [ours.look() for _ in range(6)]
    assert [None if mark is None else mark.steps for mark in seen] == [None, None, 2048.0, None, None, 6144.0]


@pytest.mark.processes
def test_a_trainer_that_has_no_such_task_says_so_and_one_that_fails_gives_its_last_words() -> None:
    with child([sys.executable, "-c", TRAINER, "solve"], {}) as running, pytest.raises(CannotDo):
        running.next(60)
    with child([sys.executable, "-c", "1/0"], {}) as running, pytest.raises(RuntimeError, match="ZeroDivisionError"):
        running.next(60)


@pytest.mark.processes
def test_carts_in_c_move_as_gymnasiums_and_keep_the_rules() -> None:
    import gymnasium

    from benchmarks.envs.cartpole import Carts

    carts, one = Carts(1), gymnasium.make("CartPole-v1").unwrapped
    obs, _ = carts.reset(seed=5)
    one.reset(seed=0)
    one.state = tuple(float(value) for value in obs[0])  # type: ignore[attr-defined]
    for step in range(30):
        obs, reward, terminated, _, _ = carts.step(np.array([step % 2]))
        expected, _, over, _, _ = one.step(step % 2)
        np.testing.assert_allclose(obs[0], expected, rtol=1e-4, atol=1e-5)
        assert reward[0] == 1
        assert terminated[0] == over
        if over:
            break
    check_env(envs.make("benchmarks.envs.cartpole:Carts", envs=3, seeds=[1, 2, 3]))
    assert sys.float_info.min / 4 > 0, "the library has turned this process's subnormal numbers to zero"


def test_stacked_lists_make_the_batch_that_assembly_in_place_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, stack, streams = 3, 2, 4
    schema = Schema(steps, (
        Field("obs", "uint8", (stack, 2), "row+1", frames=stack), Field("first", "bool", (), "row+1"),
        Field("reward", "float32", (), "row"), Field("core.h", "float32", (5,), "segment"),
    ))  # fmt: skip
    rng = np.random.default_rng(0)
    batches = []
    for make in (BatchMemory.copy_in, listed.copy_in):
        monkeypatch.setattr(BatchMemory, "copy_in", make)
        rng = np.random.default_rng(0)
        batch = allocate_memory(schema, streams)
        for number in (3, 1):
            batch.copy_in(blocks(rng, steps, stack, number), 0, number, column_axes(schema))
        batches.append(batch)
    assert batches[0].used == batches[1].used == streams
    for name, values in batches[0].fields.items():
        assert values.any()
        np.testing.assert_array_equal(values, batches[1].fields[name])


def blocks(rng: np.random.Generator, steps: int, stack: int, streams: int) -> SegmentBlock:
    """A segment of random numbers."""
    fields: Arrays = {
        "obs": rng.integers(1, 255, (steps + stack, streams, 2), np.uint8),
        "first": rng.random((steps + 1, streams)) < 0.3,
        "reward": rng.random((steps, streams), np.float32),
        "core.h": rng.random((streams, 5), np.float32),
    }
    header = SegmentHeader(
        run="r", term=1, boot="a", sequence=0, receiver="l", model=ModelRef("main", 1, 1), stream=[*range(streams)],
        row0=[0] * streams, ledger=Ledger(),
    )  # fmt: skip
    return SegmentBlock(header, np.full((steps, streams), 1, np.int64), fields)


@pytest.mark.slow
def test_pong_less_one_of_the_ways_in_which_it_is_fast_keeps_every_rule_of_environments() -> None:
    for factory, frames in ((plain.whole_stacks, 0), (plain.one_by_one, plain.STACK)):
        env = factory(2)
        check_env(env, steps=60)
        config = ImpalaSpec(unroll_length=4, batch_size=8)
        schema = Impala.schema(config, Network(torso="nature_cnn"), env.spaces)
        assert next(field.frames for field in schema.fields if field.name == "obs") == frames


@pytest.mark.processes
@pytest.mark.parametrize(
    ("part", "task"), sample("parts of the work", [*itertools.product(PARTS, ("pong", "cartpole"))], 2)
)
def test_every_part_of_the_work_is_measured_alone(part: str, task: str) -> None:
    found = limit.alone(part, task, 0.05)
    assert found["steps_per_cpu_s"] > 0
    assert "copied_mb_per_s" not in found


@pytest.mark.processes
def test_the_learners_way_to_a_gpu_is_taken_on_a_cpu_with_as_many_bytes_as_batches_have() -> None:
    found = limit.alone("learner", "cartpole", 0.2, "copies")
    assert found["copied_mb_per_s"] * 1e6 / found["steps_per_s"] == pytest.approx(4 * 4 * 33 / 32 + 33, rel=0.5)


SMI = """\
#Time        gpu     sm    mem    enc    dec    jpg    ofa  rxpci  txpci
#HH:MM:SS    Idx      %      %      %      %      %      %   MB/s   MB/s
 23:59:58      0      0      0      0      0      0      0      0      0
 23:59:59      0     55     10      0      0      0      0   1200     15
 00:00:00      0      0      0      0      0      0      0      3      0
 00:00:01      0      -      -      -      -      -      -      -      -
 00:00:02      0     65     10      0      0      0      0   1000     15
"""


def test_what_a_gpu_did_is_read_from_nvidia_smi_of_the_window_alone_and_idle_seconds_count() -> None:
    seen = list(gpu.samples(SMI.splitlines()))
    day_s = 24 * 3600
    assert seen[:3] == [(day_s - 2, 0.0, 0.0), (day_s - 1, 55.0, 1200.0), (0, 0.0, 3.0)]
    assert gpu.within(seen, day_s - 2.5, 1.5) == seen[1:3]
    assert gpu.within(seen, day_s - 0.5, 0.4) == [], "no whole second"


def test_a_gpu_is_looked_at_between_the_marks_of_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    of_day = int(gpu.of_day(now))
    told = ((-5, 99), (4, 0), (5, 40), (6, 50))
    seen = [gpu.Sample((of_day + at) % (24 * 3600), busy, 10 * busy) for at, busy in told]
    monkeypatch.setattr(gpu, "looked", lambda: nullcontext(seen))

    def work(tell: Callable[[float, float], object]) -> dict[str, Any]:
        tell(now + 1, now + 9)
        return {"steps_per_s": 1.0}

    assert gpu.watched(work, True) == {"steps_per_s": 1.0, "busy": 40.0, "pcie_mb_per_s": 400.0}
    assert gpu.watched(work, False) == {"steps_per_s": 1.0}
