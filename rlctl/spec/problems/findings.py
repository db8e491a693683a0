"""Findings: values that are valid but probably not intended; `lint` exits 1 when there is nothing worse."""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from rlctl.errors import Problem
from rlctl.spec import fields
from rlctl.spec.algorithms import ActorCritic, AnyAlgorithm, BuiltIn, Impala, QLearning, R2d2, Replayed, Sac, Td3
from rlctl.spec.machine import Machine
from rlctl.spec.problems.messages import Fault
from rlctl.spec.roles import manager_mib, modelpool_mib
from rlctl.spec.schema import Gaussian, Policy, Spec
from rlctl.spec.units import mebibytes
from rlctl.spec.words import number, show

_MUJOCO = (
    "Ant-", "HalfCheetah-", "Hopper-", "Humanoid", "InvertedDoublePendulum-", "InvertedPendulum-", "Pusher-",
    "Reacher-", "Swimmer-", "Walker2d-",
)  # fmt: skip
_SIMULATORS = (
    (("ALE/",), ("ale_py", "cv2"), "atari"),
    (("LunarLander", "BipedalWalker", "CarRacing"), ("Box2D",), "box2d"),
    (_MUJOCO, ("mujoco", "imageio"), "mujoco"),
    (("minatar.",), ("minatar",), "minatar"),
)
"""Prefixes of a family's ids, the packages that it needs, the extra of rlctl that installs them."""

_MAX_REQUIREMENTS: Final = 2000
"""Lines of a requirements file that are checked, at most: each searches all folders of packages."""


def simulator_missing(id: str) -> tuple[str, str] | None:
    """Package of an environment that is not installed here, and the command that brings it; None when all is there."""
    for prefixes, packages, extra in _SIMULATORS:
        if not id.startswith(prefixes):
            continue
        if missing := [name for name in packages if importlib.util.find_spec(name) is None]:
            return f"{id} needs {' and '.join(missing)}, not installed here", f'pip install "rlctl[{extra}]"'
    return None


def trackers_missing(spec: Spec) -> Iterator[Fault]:
    """Trackers that the spec names and that are not installed here."""
    for name in spec.trackers.asked:
        if importlib.util.find_spec(name) is None:
            yield Fault(("trackers", name), f'{name} is not installed here; pip install "rlctl[{name}]"')


def hardly_meant(spec: Spec, base: Path, machine: Machine) -> Iterator[Fault]:
    """Values that are valid but probably not intended.

    Args:
        spec: without anything impossible.
        base: folder that `code` is relative to.
        machine: where `target: local` would run.
    """
    stop, roles = spec.stop, spec.roles
    if stop.eval_return is None and stop.agent_steps is None and stop.wall_time is None:
        yield Fault(
            ("stop",), "no stop condition: the run goes on until `rlctl down`; as in `stop: {eval_return: 475}`"
        )
    if roles.actor.replicas == 0:
        yield Fault(("roles", "actor", "replicas"), "no actors: nothing is learned until `rlctl scale actor=1`")
    if roles.learner.gpu > 1:
        yield Fault(("roles", "learner", "gpu"), f"a learner uses one GPU, the other {roles.learner.gpu - 1} stay idle")
    if roles.replay is not None and 0 < roles.actor.replicas < roles.replay.replicas:
        shards, empty = roles.replay.replicas, roles.replay.replicas - roles.actor.replicas
        message = f"{shards} shards, but each actor sends to one: {empty} stay empty, and their part of replay.capacity"
        yield Fault(("roles", "replay", "replicas"), message)
    if spec.target == "local":
        yield from _too_large(spec, machine)
        if lacking := simulator_missing(spec.env.id):
            yield Fault(("env", "id"), "; ".join(lacking))
        yield from trackers_missing(spec)
    else:
        yield from _without_effect(spec)
        yield from too_little_memory(spec)
    plain = fields.normal(spec)
    for name, policy in (plain.policies or {}).items():
        for fault in _learning(spec, policy):
            yield Fault((*fields.as_written(spec, ("policies", name, "algorithm")), *fault.path), fault.message)
        for fault in _unread(policy):
            yield Fault(fields.as_written(spec, ("policies", name, *map(str, fault.path))), fault.message)
        yield from _too_small(plain, policy.algorithm)
    yield from _not_found(spec, plain, base)


def _too_small(plain: Spec, algorithm: AnyAlgorithm) -> Iterator[Fault]:
    """A replay in which no window is ever whole, or that draws too late: what is oldest is overwritten first."""
    replay, roles = plain.replay, plain.roles
    if replay is not None and replay.learning_starts > replay.capacity:
        message = (
            f"{replay.learning_starts:,} is more than capacity {replay.capacity:,}: the oldest are overwritten before"
            " the first draw"
        )
        yield Fault(("replay", "learning_starts"), message)
    if not isinstance(algorithm, Replayed) or replay is None or roles.replay is None or not roles.actor.replicas:
        return
    streams = -(-roles.actor.replicas // roles.replay.replicas) * roles.actor.envs
    rows = window_rows(algorithm)
    if (needs := streams * rows * roles.replay.replicas) > replay.capacity:
        message = (
            f"{replay.capacity:,}, but nothing can be drawn before {rows} rows of an environment lie side by side, and"
            f" {streams} environments send to a shard: at least {needs:,}, or fewer environments"
        )
        yield Fault(("replay", "capacity"), message)


def window_rows(algorithm: Replayed) -> int:
    """Rows of a stream that a shard holds, in whole segments, before the first of them can be drawn for certain."""
    period = algorithm.unroll_length
    if isinstance(algorithm, R2d2):
        return algorithm.burn_in + algorithm.sequence_length + period
    return period * (1 + -(-algorithm.n_step // period))


def unread_patches(spec: Spec, base: Path, files: Sequence[Path]) -> Iterator[Problem]:
    """Patches beside a spec file that is not the first: they would not be applied.

    Args:
        spec: without anything impossible.
        base: folder of the first file.
        files: of the spec, `-` for standard input.
    """
    read = {base.resolve(), *([(base / spec.code.path).resolve()] if spec.code else [])}
    for folder in dict.fromkeys(path.parent for path in files[1:] if str(path) != "-"):
        if spec.target != "local" and folder.resolve() not in read:
            for path in sorted((folder / "templates").glob("*.patch.y*ml")):
                where = f"beside the first spec file ({base}) and below code.path"
                yield Problem("", f"is not read: patches are looked for {where}", str(path))


BUSY = ("learner", "actor", "replay", "inference")
"""Roles that use the cores they ask for; the others mostly wait."""


def _too_large(spec: Spec, machine: Machine) -> Iterator[Fault]:
    sections = [(role, getattr(spec.roles, role)) for role in type(spec.roles).model_fields]
    counts = [(role, getattr(section, "replicas", 1), section) for role, section in sections if section is not None]
    busy = [(role, count, section) for role, count, section in counts if role in BUSY and count]
    cores = sum(count * section.cpu for _, count, section in busy)
    memory = sum(count * mebibytes(section.memory) for _, count, section in counts)
    if cores > machine.cores:
        parts = " + ".join(f"{role} {count} x {number(section.cpu)}" for role, count, section in busy)
        yield Fault(("roles",), f"{parts} = {number(cores)} cores, this machine has {number(machine.cores)}")
    if memory > machine.memory_mib:
        parts = " + ".join(f"{role} {count} x {section.memory}" for role, count, section in counts if count)
        has = f"{machine.memory_mib / 1024:.1f}Gi"
        yield Fault(("roles",), f"{parts} = {memory / 1024:.1f}Gi of memory, this machine has {has}")


def too_little_memory(spec: Spec) -> Iterator[Fault]:
    """Roles with less memory than so many actors need: it shows after hours, once all queues were in use."""
    roles, most = spec.roles, fields.max_actors(spec)
    needs_mib = {"manager": manager_mib(most), "modelpool": modelpool_mib(most, roles.modelpool.replicas)}
    for role, needs in needs_mib.items():
        if mebibytes(memory := getattr(roles, role).memory) < needs:
            message = f"{memory}, but with up to {most:,} actors it needs {math.ceil(needs / 256) * 256}Mi"
            yield Fault(("roles", role, "memory"), message)


def _without_effect(spec: Spec) -> Iterator[Fault]:
    section = spec.kubernetes
    if section.expose == "clusterip":
        for name in ("source_ranges", "proxy"):
            if getattr(section, name):
                yield Fault(("kubernetes", name), "has no effect without `expose: loadbalancer`")
    if section.gang == "none" and section.queue is not None:
        yield Fault(("kubernetes", "queue"), "has no effect without `gang: kueue`")


def _learning(spec: Spec, policy: Policy) -> Iterator[Fault]:
    """Findings about schedule and lag. Paths are relative to the algorithm."""
    algorithm = policy.algorithm
    falls = algorithm.lr_schedule if isinstance(algorithm, (ActorCritic, Replayed)) else None
    if falls and spec.stop.agent_steps:
        idle = spec.stop.agent_steps - falls.agent_steps
        if idle > 0 and falls.final == 0:
            message = f"the learning rate is 0 for the last {idle} of stop.agent_steps = {spec.stop.agent_steps}"
            yield Fault(("lr_schedule",), message)
    actors, block = spec.roles.actor.replicas, spec.roles.actor.envs * algorithm.unroll_length
    lag = algorithm.max_lag_versions
    if lag and not spec.sync and actors * block > lag * algorithm.batch_size:
        message = (
            f"while one actor plays a block, all of them play actors x envs x unroll_length = {actors} x"
            f" {spec.roles.actor.envs} x {algorithm.unroll_length} = {actors * block} steps, or"
            f" {number(actors * block / algorithm.batch_size)} updates of {algorithm.batch_size}: what is more than"
            f" {lag} updates old is dropped; raise this or batch_size, or lower envs"
        )
        yield Fault(("max_lag_versions",), message)
    at_once = algorithm.actors_at_once(spec.roles.actor.envs)
    if at_once is not None and not spec.sync and actors > at_once:
        message = (
            f"holds {at_once} blocks of envs x unroll_length = {spec.roles.actor.envs} x {algorithm.unroll_length}"
            f" steps, so {at_once} of {actors} actors play at a time and the others wait: {actors * block} keeps all of"
            " them busy"
        )
        yield Fault(("batch_size",), message)


def _unread(policy: Policy) -> Iterator[Fault]:
    """Settings that the policy's algorithm does not read as it is set. Paths are relative to the policy."""
    algorithm, gaussian = policy.algorithm, policy.model.gaussian
    if isinstance(algorithm, (QLearning, Td3)):
        for name, value in Gaussian():
            if getattr(gaussian, name) != value:
                yield Fault(("model", "gaussian", name), f"has no effect: {algorithm.name} has no Gaussian")
    if isinstance(algorithm, Sac) and algorithm.temperature != "auto":
        for name, usual in (("temperature_lr", None), ("target_entropy", "auto")):
            if getattr(algorithm, name) != usual:
                fixed = number(algorithm.temperature)
                message = f"has no effect with temperature {fixed}; say `temperature: auto`"
                yield Fault(("algorithm", name), message)
    if isinstance(algorithm, ActorCritic):
        of_others = ("adam_beta1", "adam_beta2") if algorithm.optimizer == "rmsprop" else ("rmsprop_decay",)
        unread = dict.fromkeys(of_others, f"optimizer: {algorithm.optimizer}")
        if isinstance(algorithm, Impala) and algorithm.value_batches == 0:
            unread |= dict.fromkeys(("value_minibatch_size", "buffer_batches"), "value_batches: 0")
        for name, why in unread.items():
            if getattr(algorithm, name) != type(algorithm).model_fields[name].default:
                yield Fault(("algorithm", name), f"has no effect with `{why}`")
    if isinstance(algorithm, Replayed) and not algorithm.prioritized:
        for name, field in type(algorithm).model_fields.items():
            if name.startswith("priority_") and getattr(algorithm, name) != field.default:
                yield Fault(("algorithm", name), "has no effect with `prioritized: false`")


def _not_found(spec: Spec, plain: Spec, base: Path) -> Iterator[Fault]:
    """Modules of the user's own that the roles could not import, and packages that are not installed here."""
    named: list[tuple[tuple[str | int, ...], str]] = [(("env", "id"), spec.env.id)]
    named += [(("env", "wrappers", number), one["name"]) for number, one in enumerate(spec.env.wrappers)]
    for name, policy in (plain.policies or {}).items():
        section = fields.as_written(spec, ("policies", name, "algorithm"))
        leaf = "class" if isinstance(policy.algorithm, BuiltIn) else "name"
        named.append(((*section, leaf), policy.algorithm.own_class or ""))
        named.append(((*fields.as_written(spec, ("policies", name, "model")), "torso"), policy.model.torso))
    for path, value in named:
        module, colon, _ = value.partition(":")
        ours = path == ("env", "id") and simulator_missing(value)  # said by the extra that brings it
        if colon and not ours and not _importable(module.split(".")[0], spec, base):
            where = "below code.path nor installed here" if spec.code else "installed here; add `code: {path: .}`"
            yield Fault(path, f"module {show(module)} is {'neither' if spec.code else 'not'} {where}")
    if spec.code and spec.code.requirements and (missing := _not_installed(base / spec.code.requirements)):
        yield Fault(("code", "requirements"), f"not installed here: {', '.join(missing)}")


def _importable(name: str, spec: Spec, base: Path) -> bool:
    if not name.isidentifier():
        return False
    if spec.code is not None:
        folder = base / spec.code.path
        if (folder / name).is_dir() or any(folder.glob(f"{name}.*")):  # a package, a module, or a compiled one
            return True
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _not_installed(requirements: Path) -> list[str]:
    from importlib.metadata import PackageNotFoundError, version

    missing = []
    try:
        with requirements.open(encoding="utf-8", errors="replace") as file:
            lines = file.read(_MAX_REQUIREMENTS << 6).splitlines()
    except OSError as error:
        return [f"{requirements.name} cannot be read ({error.strerror})"]
    for line in lines[:_MAX_REQUIREMENTS]:
        name = re.match(r"[A-Za-z0-9][\w.-]*", line.strip())
        if name is None:
            continue
        try:
            version(name[0])
        except PackageNotFoundError:
            missing.append(name[0])
    return missing
