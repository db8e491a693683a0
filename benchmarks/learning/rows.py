"""Rows of the tables: the specs of specs/learn and specs/ablations, and fingerprints of all that a seed depends on."""

from __future__ import annotations

import ast
import hashlib
import json
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.shared.host import REPOSITORY
from rlctl import plan
from rlctl.spec import loading
from rlctl.spec.algorithms import BUILT, NEED_REPLAY
from rlctl.spec.schema import Spec
from rlctl.spec.words import CLASS_PATH

SPECS = REPOSITORY / "specs" / "learn"
ARMS = REPOSITORY / "specs" / "ablations"
AGENTS = REPOSITORY / "agents" / "rlctl_agents"
LEARNS = ("acting", "algorithms", "envs", "experience", "models", "ops", "training")
"""Packages of AGENTS that decide what is learned: a change of one makes every stored seed stale. Delivery, books and
evaluation do not. Files of other algorithms than the row's are left out, with modules that they alone import; a
`module:Class` that a row names counts where its module is in this repository."""
SAVES = ("experience/replay/saving.py", "experience/replay/snapshot.py")
"""Files below AGENTS that write and read a replay's parts of generations, which `replay.checkpoint: full` alone has. No
row sets it, so they decide nothing of what is learned."""
PRECISION = "models/precision.py"
"""File below AGENTS that has networks compute in bfloat16, which only those for large images do, as of Atari games. For
other rows nothing in it decides what is learned."""
CARRIED = Path(__file__).with_name("carried.toml")
"""Changes of files below AGENTS that stored seeds outlive, each with its reason: they would have learned the same."""
READERS = ("actor", "learner")
"""Roles whose parts of the resolved spec decide what is learned. The actor's comes first: it knows the environment."""
LATER = {"class": None, "params": {}}
"""Fields of `algorithm` that seeds were measured before, and their defaults."""
SEEDS = 5
"""Seeds of a row that FEWER does not name."""
FEWER = {
    **dict.fromkeys(("pong-impala", "pong-ppo", "pong-appo", "pong-apex_dqn"), 1),
    **dict.fromkeys(("halfcheetah-sac", "hopper-td3", "lunarlandercontinuous-sac", "breakout-dqn", "cartpole-sac"), 3),
}


class Published(NamedTuple):
    """A published score."""

    mean: float
    text: str  # score, budget and source


ZOO = "rl-baselines3-zoo"
PUBLISHED = {
    "cartpole-impala": Published(450, "at least 450 within 2M, RLlib's CI, IMPALA"),
    "cartpole-ppo": Published(500, f"500 at 100k, {ZOO}, PPO"),
    "cartpole-appo": Published(500, f"500 at 100k, {ZOO}, PPO"),
    "cartpole-dqn": Published(500, f"500 at 50k, {ZOO}, DQN; 488.7 at 500k, CleanRL"),
    "cartpole-apex_dqn": Published(500, f"500 at 50k, {ZOO}, DQN; 488.7 at 500k, CleanRL"),
    "cartpole-sac": Published(150, "at least 150 within 100k, RLlib's CI, SAC"),
    "cartpole-positions-ppo": Published(500, f"500 at 100k, {ZOO}, PPO with LSTM"),
    "cartpole-positions-r2d2": Published(150, "at least 150 within 1M, RLlib's CI, R2D2"),
    "tmaze-r2d2": Published(4, "4 is the most, 1.95 without a memory: exact"),
    "acrobot-impala": Published(-83.4, f"-83.4 at 500k, {ZOO}, A2C"),
    "acrobot-ppo": Published(-73.5, f"-73.5 at 1M, {ZOO}, PPO; -86.4 at 500k, CleanRL"),
    "acrobot-appo": Published(-73.5, f"-73.5 at 1M, {ZOO}, PPO; -86.4 at 500k, CleanRL"),
    "acrobot-dqn": Published(-76.6, f"-76.6 at 100k, {ZOO}, DQN; -91.5 at 500k, CleanRL"),
    "acrobot-apex_dqn": Published(-76.6, f"-76.6 at 100k, {ZOO}, DQN; -91.5 at 500k, CleanRL"),
    "lunarlander-impala": Published(242, f"242 at 1M on v2, {ZOO}, PPO"),
    "lunarlander-ppo": Published(242, f"242 at 1M on v2, {ZOO}, PPO"),
    "lunarlander-appo": Published(242, f"242 at 1M on v2, {ZOO}, PPO"),
    "lunarlandercontinuous-sac": Published(260, f"260 at 500k on v2, {ZOO}, SAC"),
    "pendulum-ppo": Published(-172, f"-172 at 100k, {ZOO}, PPO"),
    "pendulum-appo": Published(-172, f"-172 at 100k, {ZOO}, PPO"),
    "pendulum-gamma90-ppo": Published(-172, f"-172 at 100k, {ZOO}, PPO"),
    "pendulum-gamma90-appo": Published(-172, f"-172 at 100k, {ZOO}, PPO"),
    "pendulum-sac": Published(-157, f"-157 at 20k, {ZOO}, SAC"),
    "pendulum-td3": Published(-157, f"-157 at 20k, {ZOO}, SAC"),
    "halfcheetah-ppo": Published(1443, "1,443 at 1M on v4, CleanRL, PPO"),
    "halfcheetah-sac": Published(9635, "9,635 at 1M on v2, CleanRL, SAC"),
    "hopper-ppo": Published(2383, "2,383 at 1M on v4, CleanRL, PPO"),
    "hopper-td3": Published(3135, "3,135 at 1M on v4, CleanRL, TD3"),
    "breakout-dqn": Published(10, "about 10 at 5M, MinAtar, DQN"),
    "breakout-ppo": Published(10, "about 10 at 5M, MinAtar, DQN"),
    "pong-impala": Published(20, "20 within 10M, RLlib, IMPALA"),
    "pong-ppo": Published(20.4, f"20.4 at 10M, CleanRL, PPO; 21.0, {ZOO}"),
    "pong-appo": Published(20.4, "20.4 at 10M, CleanRL, PPO"),
    "pong-apex_dqn": Published(20.3, f"20.3 at 10M, CleanRL, DQN; 20.6, {ZOO}"),
}
"""Row -> the score beside it. APPO stands beside PPO's scores, Ape-X beside DQN's, TD3 on Pendulum beside SAC's.
zoo: one model of tuned settings, deterministic. CleanRL: while training, 3 seeds."""


@dataclass(frozen=True)
class Row:
    """One algorithm on one environment.

    The spec is whole: `rlctl up` trains it until `stop.eval_return` is reached, or `stop.agent_steps` are spent.
    """

    name: str  # TASK-ALGORITHM, which is the file's; the run's, but that names of runs have no underscore
    spec: Spec
    values: dict[str, Any]  # as the file has it, without defaults

    @property
    def task(self) -> str:
        """Rows of one task share a plot."""
        return self.name.rpartition("-")[0]

    @property
    def algorithm(self) -> str:
        return self.spec.policy().algorithm.name

    @property
    def shown_algorithm(self) -> str:
        """As papers write it."""
        return {"apex_dqn": "Ape-X DQN"}.get(self.algorithm, self.algorithm.upper())

    @property
    def goal(self) -> float:
        """Mean return to reach."""
        assert self.spec.stop.eval_return is not None
        return self.spec.stop.eval_return

    @property
    def agent_steps(self) -> int:
        """Agent steps to reach it in."""
        assert self.spec.stop.agent_steps is not None
        return self.spec.stop.agent_steps

    @property
    def seeds(self) -> int:
        """Number of seeds that are asked for, from 0."""
        return FEWER.get(self.name, SEEDS)

    @property
    def published(self) -> Published | None:
        return PUBLISHED.get(self.name)

    @property
    def may_be_bf16(self) -> bool:
        """Whether its networks may compute in bfloat16, on a processor that does."""
        model = self.spec.policy().model
        asked = {model.precision, model.torso}
        return not asked.isdisjoint({"bf16", "nature_cnn", "impala_cnn"}) or self.spec.env.id.startswith("ALE/")

    @property
    def environment(self) -> str:
        """Its id, and what is passed to it and to the wrappers around it, as in `CartPole-v1 (keep [0, 2])`."""
        env = self.spec.env
        passed = [env.kwargs, *(one["kwargs"] for one in env.wrappers)]
        return env.id + (f" ({told})" if (told := _in_words(passed)) else "")

    @property
    def settings(self) -> str:
        """Settings other than the defaults, in words; "" without any."""
        stated = [dict(self.values.get(key, {})) for key in ("algorithm", "model", "replay")]
        stated[0].pop("name", None)
        return _in_words(stated)

    def of_seed(self, seed: int) -> dict[str, Any]:
        """The spec of one measurement: to the end of its agent steps, whatever it reaches before."""
        stated = {key: value for key, value in self.values.items() if key != "code"}  # this repository is on the path
        return {**stated, "run": "learn", "seed": seed, "stop": {"agent_steps": self.agent_steps}}

    def fingerprint(self, seed: int) -> str:
        """12 hex digits of a seed's resolved spec, as far as learning roles read it, and of the code that learns."""
        planned = plan.make(Spec.model_validate(self.of_seed(seed)), uid="0" * 32, base=SPECS)
        roles = {role.role: role for role in planned.roles}
        read = reduce(_joined, [roles[name].run_file["spec"] for name in READERS])
        for policy in read["policies"].values():  # fields that came after the first seeds, at their defaults
            for name in [name for name, value in LATER.items() if policy["algorithm"].get(name, value) == value]:
                policy["algorithm"].pop(name, None)
        numbers = {name: roles[name].replicas for name in READERS}
        learns = code(self.algorithm, _named(self.values), bf16=self.may_be_bf16)
        told = json.dumps([read, numbers, self.agent_steps, learns], sort_keys=True)
        return hashlib.sha256(told.encode()).hexdigest()[:12]


def _joined(one: Any, other: Any) -> Any:
    """Two parts of a spec as one; of a field that both hold, the first one's value."""
    if not isinstance(one, dict) or not isinstance(other, dict):
        return one
    return {**other, **{key: _joined(value, other.get(key)) for key, value in one.items()}}


def _in_words(sections: Iterable[Mapping[str, Any]]) -> str:
    """Example: [{"gamma": 0.9}, {"core": "lstm"}] -> "gamma 0.9, core lstm"."""
    leaves = [f"{key} {json.dumps(value)}" for section in sections for key, value in section.items()]
    return ", ".join(leaves).replace('"', "")


def rows() -> list[Row]:
    """Rows of the learning table, tasks in the order of PUBLISHED, then by name.

    Raises:
        rlctl.errors.SpecError: a spec has a fault.
    """
    known = list(PUBLISHED)
    names = sorted(path.stem for path in SPECS.glob("*.yaml"))
    return [find(name) for name in sorted(names, key=lambda name: known.index(name) if name in known else len(known))]


def arms() -> list[Row]:
    """Sides of comparisons that are no rows of the learning table.

    Raises:
        rlctl.errors.SpecError: a spec has a fault.
    """
    return [find(path.stem) for path in sorted(ARMS.glob("*.yaml"))]


def find(name: str) -> Row:
    """A row or an arm.

    Raises:
        rlctl.errors.SpecError: the spec has a fault.
    """
    folder = SPECS if (SPECS / f"{name}.yaml").exists() else ARMS
    loaded = loading.load([folder / f"{name}.yaml"])
    return Row(name, loaded.spec, loaded.values)


def code(algorithm: str, named: frozenset[Path] = frozenset(), *, bf16: bool = False) -> str:
    """Digest of the code that learns, as it is now: of its syntax, so that comments and docstrings may change.

    Args:
        algorithm: ours by its name, another as `module:Class`.
        named: modules beside those of LEARNS.
        bf16: networks may compute in bfloat16.
    """
    digest = hashlib.sha256()
    for path in sorted(set(_sources(algorithm, named)) - (set() if bf16 else {AGENTS / PRECISION})):
        name = path.relative_to(AGENTS if path.is_relative_to(AGENTS) else REPOSITORY)
        known, before = _carried_from(str(name), file_digest(path))
        digest.update(f"{known}\0{before}\0".encode() if before else b"")
    return digest.hexdigest()


def file_digest(path: Path) -> str:
    """12 hex digits of a module's syntax, without docstrings and comments."""
    return hashlib.sha256(_syntax(path.read_text()).encode()).hexdigest()[:12]


def _carried_from(name: str, digest: str) -> tuple[str, str]:
    """Name and digest of a file before all changes that stored seeds outlive; "": it was not there."""
    passed = {digest}
    while (earlier := carried().get((name, digest))) and earlier["before"] not in passed:
        name, digest = earlier.get("was", name), earlier["before"]
        passed.add(digest)
    return name, digest


def carried() -> dict[tuple[str, str], dict[str, str]]:
    """(file below AGENTS, its digest after a change) -> that entry of CARRIED, as it is now: code that is changed and
    carried while a seed is trained is not another code."""
    return _entries(CARRIED, CARRIED.stat().st_mtime_ns)


@lru_cache(1)
def _entries(path: Path, _changed_ns: int) -> dict[tuple[str, str], dict[str, str]]:
    return {(one["file"], one["after"]): one for one in tomllib.loads(path.read_text())["change"]}


def _sources(algorithm: str, named: frozenset[Path]) -> Iterator[Path]:
    folder = AGENTS / "algorithms"
    needed = {algorithm} if algorithm in BUILT else {name for path in named for name in _imported(path)}
    while more := {name for one in needed for name in _imported(folder / f"{one}.py")} - needed:
        needed |= more
    left_out = {folder / f"{name}.py" for name in BUILT if name not in needed}
    used = [*(AGENTS / "roles" / f"{role}.py" for role in READERS), *(folder / f"{name}.py" for name in needed), *named]
    left_out |= _reached(left_out) - _reached(used)
    if needed.isdisjoint(NEED_REPLAY):
        left_out |= set((AGENTS / "experience" / "replay").rglob("*.py"))
    left_out |= {AGENTS / file for file in SAVES}
    for package in LEARNS:
        yield from set((AGENTS / package).rglob("*.py")) - left_out
    yield from named


def _reached(paths: Iterable[Path]) -> set[Path]:
    """Modules of AGENTS that these import, and those that they import in turn."""
    todo, found = [path for path in paths if path.is_file()], set[Path]()
    while todo:
        named = re.findall(r"^ *(?:from|import) rlctl_agents\.([\w.]+)(?: import (.+))?$", todo.pop().read_text(), re.M)
        for module, inside in named:
            one = AGENTS / module.replace(".", "/")
            parts = [one / f"{name}.py" for name in re.findall(r"\w+", inside)]
            new = {path for path in (one.with_suffix(".py"), one / "__init__.py", *parts) if path.is_file()} - found
            found |= new
            todo += new
    return found


def _imported(path: Path) -> list[str]:
    """Algorithms of ours that a module imports."""
    return [name for name in BUILT if re.search(rf"algorithms(\.| import ){name}\b", path.read_text())]


def _named(values: Any) -> frozenset[Path]:
    """Modules of this repository that a spec names as `module:Class`."""
    if isinstance(values, dict | list):
        inner = values.values() if isinstance(values, dict) else values
        return frozenset[Path]().union(*map(_named, inner))
    if not isinstance(values, str) or not re.match(CLASS_PATH, values):
        return frozenset()
    name = values.partition(":")[0].replace(".", "/") + ".py"
    return frozenset(path for path in (REPOSITORY / name, AGENTS.parent / name) if path.exists())


@lru_cache(1000)
def _syntax(text: str) -> str:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [one for one in body if not _is_text(one)]  # type: ignore[attr-defined]
    shown = {"show_empty": True} if sys.version_info >= (3, 13) else {}
    # Python 3.12 has added a field to functions and classes, 3.13 leaves out empty lists: each gives what 3.11 gives
    return ast.dump(tree, **shown).replace(", type_params=[]", "")


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
