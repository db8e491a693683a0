"""Rules over several fields: combinations that cannot work, with the arithmetic shown."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rlctl.spec import fields
from rlctl.spec.algorithms import (
    ActorCritic,
    Algorithm,
    Appo,
    BuiltIn,
    Clipped,
    Impala,
    OffPolicy,
    R2d2,
    Replayed,
    Sac,
    Td3,
)
from rlctl.spec.cluster import DEFAULT_SIZE
from rlctl.spec.problems.messages import Fault
from rlctl.spec.problems.multiples import no_multiple, partial_blocks
from rlctl.spec.runs.model_names import is_folder
from rlctl.spec.schema import Network, Spec
from rlctl.spec.words import CLASS_PATH, both, closest, either, number, printable, show

Keys = tuple[str, ...]
_ACTORS, _ENVS = ("roles", "actor", "replicas"), ("roles", "actor", "envs")
_LEARNERS = ("roles", "learner", "replicas")
_NO_EVALUATOR: Final = "needs an evaluator: set roles.evaluator.replicas to at least 1, got 0"
BENT: Final = 2.0
"""Part of the range of log standard deviations with soft limits, in nats: the last 1 at either end."""


def impossible(spec: Spec, base: Path) -> Iterator[Fault]:
    """Combinations of values that are refused.

    Args:
        spec: valid field by field.
        base: folder that `code` is relative to.
    """
    yield from unsound(spec)
    yield from _code(spec, base)
    yield from _init(spec, base)
    yield from _storage(spec)


def unsound(spec: Spec) -> Iterator[Fault]:
    """Combinations of values that are refused on every machine."""
    if spec.env.preset == "atari" and spec.env.wrappers:
        message = "the preset atari steps its games together and takes none; remove them, or write out what it would do"
        yield Fault(("env", "wrappers"), message, (("env", "preset"),))
    yield from _roles(spec)
    yield from _policies(spec)
    plain = fields.folded(spec)
    for name, policy in (plain.policies or {}).items():
        path = fields.as_written(spec, ("policies", name, "algorithm"))
        brought = fields.brought(spec, name)
        for fault in _algorithm(spec, policy.algorithm, path) if policy.like is None else ():
            value = brought.get(str(fault.path[-1]))
            told = "" if value is None else f"; {number(value)} is the default with env.preset atari, state another"
            message = fault.message + told
            yield fault._replace(message=message, rests_on=(*fault.rests_on, (*path, "name")))
        if policy.like is None:
            network = fields.as_written(spec, ("policies", name, "model"))
            yield from _network(spec, policy.model, network)
            if isinstance(policy.algorithm, Clipped):
                yield from _whole_segments(spec, policy.algorithm, policy.model, path)
            if isinstance(policy.algorithm, Impala):
                yield from _impala(policy.algorithm, policy.model, path, network)
            elif isinstance(policy.algorithm, Replayed):
                yield from _replayed_network(policy.algorithm, policy.model, path, network)
    yield from _lock_step_roles(spec)
    yield from _unused_replay(spec, plain)
    if spec.target == "kubernetes":
        yield from _cluster(spec)


def _roles(spec: Spec) -> Iterator[Fault]:
    actor, evaluator = spec.roles.actor, spec.roles.evaluator
    if actor.max_replicas is not None and actor.max_replicas < actor.replicas:
        message = f"must be at least roles.actor.replicas, got {actor.max_replicas} < {actor.replicas}"
        yield Fault(("roles", "actor", "max_replicas"), message, (_ACTORS,))
    learners = spec.roles.learner.replicas
    if 0 < actor.replicas < learners:
        message = f"each learner needs an actor, at most roles.actor.replicas, got {learners} > {actor.replicas}"
        yield Fault(_LEARNERS, message, (_ACTORS,))
    if spec.stop.eval_return is not None and evaluator.replicas == 0:
        yield Fault(("stop", "eval_return"), _NO_EVALUATOR, (("roles", "evaluator", "replicas"),))
    if spec.evaluation.video_every is not None and evaluator.replicas == 0:
        yield Fault(("evaluation", "video_every"), _NO_EVALUATOR, (("roles", "evaluator", "replicas"),))


def _init(spec: Spec, base: Path) -> Iterator[Fault]:
    if spec.init is None or spec.init.verify is None:
        return
    if not is_folder(spec.init.run):
        message = f"is for a folder, and {spec.init.run} is a run, whose models have no signature; remove it"
        yield Fault(("init", "verify"), message, (("init", "run"),))
    elif not os.path.isfile(base / spec.init.verify):
        yield Fault(("init", "verify"), f"no such file: {printable(str(base / spec.init.verify))}")


def _code(spec: Spec, base: Path) -> Iterator[Fault]:
    if spec.code is None:
        return
    folder = base / spec.code.path
    if not os.path.isdir(folder):  # unlike Path.is_dir, False as well for what cannot be looked at
        what = "is a file; name its folder" if os.path.exists(folder) else f"no such folder: {printable(str(folder))}"
        yield Fault(("code", "path"), what)
    if spec.code.requirements is not None and not os.path.isfile(base / spec.code.requirements):
        yield Fault(("code", "requirements"), f"no such file: {printable(str(base / spec.code.requirements))}")


def _storage(spec: Spec) -> Iterator[Fault]:
    if spec.storage.path is not None:
        try:
            Path(spec.storage.path).expanduser()
        except (RuntimeError, ValueError):
            user = spec.storage.path.partition("/")[0]
            yield Fault(("storage", "path"), f"no home folder is known for {show(user)}; write the folder out")


def _policies(spec: Spec) -> Iterator[Fault]:
    policies = spec.policies or {}
    for section in ("algorithm", "model"):
        if policies and getattr(spec, section) is not None:
            first = next(iter(policies))
            message = f"`policies` is given too; move it to policies.{first}.{section}, or remove one of them"
            yield Fault((section,), message, (("policies",),))
    for name, policy in policies.items():
        path = ("policies", name, "like")
        seen = [name]
        while policy.like is not None and policy.like in policies and policy.like not in seen:
            seen.append(policy.like)
            policy = policies[policy.like]
        if policy.like is None:
            pass
        elif policy.like not in policies:
            if policy is policies[name]:  # otherwise the policy that says so is reported
                near = closest(policy.like, [other for other in policies if other != name])
                hint = f"; did you mean `{near}`?" if near else f"; there is {either(list(policies))}"
                yield Fault(path, f"no policy `{policy.like}`{hint}")
        elif policy.like == name:
            yield Fault(path, f"goes in a circle: {' -> '.join([*seen, name])}")
        if policies[name].like is not None:
            for section in ("algorithm", "model"):
                if section in policies[name].model_fields_set:
                    message = f"`like: {policies[name].like}` brings one already; remove `like` or this"
                    yield Fault(("policies", name, section), message, (path,))


def _algorithm(spec: Spec, algorithm: Algorithm, path: Keys) -> Iterator[Fault]:
    if isinstance(algorithm, BuiltIn) and algorithm.params and algorithm.class_ is None:
        message = "is read by a class of your own alone: add `class: package.module:Class`"
        yield Fault((*path, "params"), message, ((*path, "class"),))
    elif isinstance(algorithm, BuiltIn):
        for name in algorithm.params.keys() & fields.keys(type(algorithm)).keys():
            yield Fault((*path, "params", name), f"is a setting of {algorithm.name}: write algorithm.{name}")
    if isinstance(algorithm, OffPolicy) and algorithm.c_max > algorithm.rho_max:
        got = f"c_max {number(algorithm.c_max)} > rho_max {number(algorithm.rho_max)}"
        yield Fault((*path, "c_max"), f"must not exceed rho_max, got {got}", ((*path, "rho_max"),))
    if isinstance(algorithm, Replayed):
        yield from _replayed_batches(spec, algorithm, path)
        return
    steps, batch = algorithm.unroll_length, algorithm.batch_size
    if not algorithm.max_lag_versions and not spec.sync:
        yield from _whole_blocks(spec, algorithm, path)
    elif batch % steps:
        message = f"must be {no_multiple(batch, steps, 'unroll_length')}"
        yield Fault((*path, "batch_size"), message, ((*path, "unroll_length"),))
    elif batch // steps < spec.roles.learner.replicas:
        message = (
            f"must be at least a segment for each learner, unroll_length x roles.learner.replicas = {steps} x"
            f" {spec.roles.learner.replicas} = {steps * spec.roles.learner.replicas} rows, got {batch}"
        )
        yield Fault((*path, "batch_size"), message, ((*path, "unroll_length"), _LEARNERS))
    elif spec.sync:
        yield from _lock_step(spec, algorithm, path)
    if isinstance(algorithm, ActorCritic):
        yield from _actor_critic(algorithm, path)
        most = algorithm.max_lag_versions + 1
        if algorithm.publish_every_updates > most and not spec.sync:
            message = (
                f"must be at most max_lag_versions + 1 = {most}, got {algorithm.publish_every_updates}: actors would"
                " wait for weights, and the learner for segments of newer ones"
            )
            yield Fault((*path, "publish_every_updates"), message, ((*path, "max_lag_versions"),))


def _actor_critic(algorithm: ActorCritic, path: Keys) -> Iterator[Fault]:
    if algorithm.weight_decay and algorithm.optimizer != "adamw":
        message = f"is of optimizer adamw, got {number(algorithm.weight_decay)} with {algorithm.optimizer}"
        yield Fault((*path, "weight_decay"), message, ((*path, "optimizer"),))
    for name, schedule in algorithm.schedules.items():
        if schedule is not None and name != "entropy_coef" and schedule.final > 1:
            section = f"{name.removesuffix('_coef')}_schedule"
            yield Fault((*path, section, "final"), f"must be at most 1, got {number(schedule.final)}")
    size = algorithm.minibatch_size if isinstance(algorithm, Clipped) else "auto"
    if size != "auto" and size > algorithm.batch_size:
        message = f"must not exceed batch_size, got {size} > {algorithm.batch_size}"
        yield Fault((*path, "minibatch_size"), message, ((*path, "batch_size"),))
    if isinstance(algorithm, Appo) and algorithm.reuse != "auto" and algorithm.reuse % len(algorithm.ages):
        message = f"must be at most buffer_batches or {no_multiple(algorithm.reuse, algorithm.buffer_batches, 'it')}"
        yield Fault((*path, "reuse"), message, ((*path, "buffer_batches"),))


def _whole_segments(spec: Spec, algorithm: Clipped, network: Network, path: Keys) -> Iterator[Fault]:
    """Refuse minibatches of less than a segment per learner in a network with memory: they hold whole segments."""
    size, learners = algorithm.sized(plain=False).minibatch_size, spec.roles.learner.replicas
    least = algorithm.unroll_length * learners
    if network.core != "none" and size != "auto" and size < least <= algorithm.batch_size:
        message = (
            f"must be at least a segment for each learner where model.core is {network.core}, unroll_length x"
            f" roles.learner.replicas = {algorithm.unroll_length} x {learners} = {least}, got {size}"
        )
        yield Fault((*path, "minibatch_size"), message, ((*path, "unroll_length"), _LEARNERS))


def _replayed_batches(spec: Spec, algorithm: Replayed, path: Keys) -> Iterator[Fault]:
    if isinstance(algorithm, R2d2):
        yield from _sequences(algorithm, path)
    every = algorithm.policy_every if isinstance(algorithm, Td3) else 1
    size, batch, learners = algorithm.minibatch_size * every, algorithm.batch_size, spec.roles.learner.replicas
    if batch % size:
        name, shown = ("minibatch_size x policy_every", f" x {every}") if every > 1 else ("minibatch_size", "")
        message = f"must be {no_multiple(batch, size, name, shown=f'{algorithm.minibatch_size}{shown}')}"
        rests_on = ((*path, "minibatch_size"), *([(*path, "policy_every")] if every > 1 else []))
        yield Fault((*path, "batch_size"), message, rests_on)
    if algorithm.unit_rows <= algorithm.minibatch_size < learners * algorithm.unit_rows:
        what = "a row" if algorithm.unit_rows == 1 else f"a sequence of {algorithm.unit_rows} rows"
        got = f"{algorithm.minibatch_size} < {learners * algorithm.unit_rows}"
        message = f"must be at least {what} for each learner, got {got}"
        yield Fault((*path, "minibatch_size"), message, (_LEARNERS,))
    if spec.sync:
        message = f"{algorithm.name} learns from what was drawn by chance, in no fixed order: must be false, got true"
        yield Fault(("sync",), message, ((*path, "name"),))
    if algorithm.lr_schedule is not None and algorithm.lr_schedule.final > 1:
        message = f"must be at most 1, got {number(algorithm.lr_schedule.final)}"
        yield Fault((*path, "lr_schedule", "final"), message)


def _sequences(algorithm: R2d2, path: Keys) -> Iterator[Fault]:
    period, length = algorithm.unroll_length, algorithm.sequence_length
    for key, rows in (("burn_in", algorithm.burn_in), ("sequence_length", length)):
        if rows % period:
            message = f"must be {no_multiple(rows, period, 'unroll_length')}"
            yield Fault((*path, key), message, ((*path, "unroll_length"),))
    size = algorithm.minibatch_size
    if size % length:
        message = f"must be {no_multiple(size, length, 'sequence_length')}"
        yield Fault((*path, "minibatch_size"), message, ((*path, "sequence_length"),))


def _replayed_network(algorithm: Replayed, model: Network, path: Keys, network: Keys) -> Iterator[Fault]:
    name, rests_on = algorithm.name, ((*path, "name"),)
    if isinstance(algorithm, R2d2):
        if model.core == "none":
            message = "r2d2 has a memory: must be lstm or gru, got none; apex_dqn is the same without one"
            yield Fault((*network, "core"), message, rests_on)
    elif model.core != "none":
        yield Fault((*network, "core"), f"{name} has no memory: must be none, got {model.core}", rests_on)
    if model.share != "auto":
        got = show(model.share)
        yield Fault((*network, "share"), f"{name} has no value beside its policy: must be auto, got {got}", rests_on)
    if model.normalize.returns is True:
        message = f"{name} does not normalise returns: must be auto or false, got true; see algorithm.reward_scale"
        yield Fault((*network, "normalize", "returns"), message, rests_on)
    if isinstance(algorithm, Sac):
        given = (("std", model.gaussian.std, "network"), ("squash", model.gaussian.squash, True))
        for key, value, own in given:
            if value != own:
                message = (
                    f"the policy of sac is a squashed Gaussian of the network: must be {show(own)}, got {show(value)}"
                )
                yield Fault((*network, "gaussian", key), message, rests_on)


def _network(spec: Spec, model: Network, path: Keys) -> Iterator[Fault]:
    if spec.sync and model.precision == "bf16":
        message = "with sync everything is computed in fp32: must be auto or fp32, got bf16"
        yield Fault((*path, "precision"), message, (("sync",),))
    if ":" in model.torso:
        for key, given in ((("layer_norm",), model.layer_norm), (("gains", "hidden"), model.gains.hidden is not None)):
            if given:
                message = f"is for torsos of ours, {model.torso} makes its own layers; remove it"
                yield Fault((*path, *key), message, ((*path, "torso"),))
    if model.share is False and model.core != "none":
        message = f"policy and value have one memory: must be auto or true with core {model.core}, got false"
        yield Fault((*path, "share"), message, ((*path, "core"),))
    low, high = model.gaussian.log_std_min, model.gaussian.log_std_max
    if high - low <= BENT:
        message = (
            f"must be more than {number(BENT)} above log_std_min, the last 1 before either is bent;"
            f" got {number(high)} - {number(low)} = {number(high - low)}"
        )
        yield Fault((*path, "gaussian", "log_std_max"), message, ((*path, "gaussian", "log_std_min"),))
    elif not low + 1 <= model.gaussian.log_std_init <= high - 1:
        message = (
            f"must be from log_std_min + 1 to log_std_max - 1, {number(low + 1)} to {number(high - 1)},"
            f" got {number(model.gaussian.log_std_init)}"
        )
        rests_on = tuple((*path, "gaussian", key) for key in ("log_std_min", "log_std_max"))
        yield Fault((*path, "gaussian", "log_std_init"), message, rests_on)


def _impala(algorithm: Impala, model: Network, path: Keys, network: Keys) -> Iterator[Fault]:
    batches = algorithm.value_batches
    if batches == "auto" or batches == 0:
        return
    convolutional = model.torso in ("small_cnn", "nature_cnn", "impala_cnn")
    if model.core != "none" or model.share is True or (convolutional and model.share == "auto"):
        named = "core" if model.core != "none" else "share" if model.share is True else "torso"
        remedy = "must be auto or 0" if model.core != "none" else "must be auto or 0, or model.share false"
        message = f"is for a value that shares nothing with the policy: {remedy}, got {batches}"
        yield Fault((*path, "value_batches"), message, ((*network, named),))
    if algorithm.buffer_batches < batches - 1:
        message = f"must be at least value_batches - 1 = {batches - 1}, got {algorithm.buffer_batches}"
        yield Fault((*path, "buffer_batches"), message, ((*path, "value_batches"),))


def _whole_blocks(spec: Spec, algorithm: Algorithm, path: Keys) -> Iterator[Fault]:
    message = partial_blocks(
        envs=spec.roles.actor.envs,
        seats=1,  # only the environment knows them
        unroll_length=algorithm.unroll_length,
        learners=spec.roles.learner.replicas,
        batch_size=algorithm.batch_size,
    )
    if message is not None:
        yield Fault((*path, "batch_size"), message, (_ENVS, (*path, "unroll_length"), _LEARNERS))


def _lock_step(spec: Spec, algorithm: Algorithm, path: Keys) -> Iterator[Fault]:
    actors, envs = spec.roles.actor.replicas, spec.roles.actor.envs
    steps, batch = algorithm.unroll_length, algorithm.batch_size
    rows = actors * envs * steps
    own = re.match(CLASS_PATH, spec.env.id) is not None  # only its code says how many seats it has
    if batch != rows and not (own and rows and batch % rows == 0):
        each, multiple = ("seat of every environment", "a multiple of ") if own else ("environment", "")
        message = (
            f"with sync a batch is one segment of every {each}: {multiple}actors x envs x unroll_length ="
            f" {actors} x {envs} x {steps} = {rows} rows, got {batch}"
        )
        rests_on = ((*path, "unroll_length"), _ACTORS, _ENVS, ("sync",), ("env", "id"))
        yield Fault((*path, "batch_size"), message, rests_on)
    if algorithm.publish_every_updates != 1:
        message = f"with sync the actors need every version: must be 1, got {algorithm.publish_every_updates}"
        yield Fault((*path, "publish_every_updates"), message, (("sync",),))


def _lock_step_roles(spec: Spec) -> Iterator[Fault]:
    if spec.sync and spec.roles.learner.replicas != 1:
        message = f"with sync there is exactly one learner, got {spec.roles.learner.replicas}"
        yield Fault(_LEARNERS, message, (("sync",),))
    if spec.sync and spec.roles.modelpool.replicas != 1:
        message = (
            "with sync the actors need every version, and pools below the first leave some out: must be 1, got"
            f" {spec.roles.modelpool.replicas}"
        )
        yield Fault(("roles", "modelpool", "replicas"), message, (("sync",),))


def _unused_replay(spec: Spec, plain: Spec) -> Iterator[Fault]:
    """Refuse settings of a replay where no algorithm learns from one; `plain` is the spec with `like` written out."""
    algorithms = [policy.algorithm for policy in (plain.policies or {}).values()]
    if any(it.needs_replay for it in algorithms):
        return
    names = either(sorted({it.name for it in algorithms}))
    message = f"not used by {names}; remove it"
    rests_on = [(*fields.as_written(spec, ("policies", name, "algorithm")), "name") for name in plain.policies or {}]
    for path, section in ((("replay",), spec.replay), (("roles", "replay"), spec.roles.replay)):
        if section is not None:
            yield Fault(path, message, tuple(rests_on))


_TARGET: Final = (("target",),)


def _cluster(spec: Spec) -> Iterator[Fault]:
    if spec.run[0].isdigit():
        message = f"on a cluster it begins with a letter, because Services do, got {show(spec.run)}"
        yield Fault(("run",), message, _TARGET)
    missing = [name for name in type(spec.images).model_fields if getattr(spec.images, name) is None]
    if missing:
        message = f"a cluster needs an image for {both(missing)}; `rlctl image build` and `rlctl image push` make them"
        yield Fault(("images",), message, (*_TARGET, *(("images", name) for name in missing)))
    storage = spec.storage
    if storage.path is not None:
        message = "is for one machine; on a cluster give `claim`, or `class` and `size`, or nothing"
        yield Fault(("storage", "path"), message, _TARGET)
    for name, given in (("class", storage.class_ is not None), ("size", storage.size != DEFAULT_SIZE)):
        if storage.claim is not None and given:
            message = f"`claim: {storage.claim}` has one already; remove one of them"
            yield Fault(("storage", name), message, (*_TARGET, ("storage", "claim")))
    yield from _exposed(spec)
    mlflow = spec.trackers.mlflow
    if mlflow is not None and not (mlflow.uri or "").startswith("http"):
        message = "on a cluster name a server, as in http://mlflow:5000: locks of a database in a file are not sure on"
        yield Fault(("trackers", "mlflow", "uri"), f"{message} a shared volume", _TARGET)
    if spec.kubernetes.gang == "kueue" and spec.kubernetes.queue is None:
        message = "kueue needs the name of a LocalQueue, as in `queue: gpus`"
        yield Fault(("kubernetes", "queue"), message, (*_TARGET, ("kubernetes", "gang")))


_LEAST_PREFIX: Final = 8
"""Shortest prefix of a range of callers, in bits: no owner has a larger part of the Internet."""


def _exposed(spec: Spec) -> Iterator[Fault]:
    """Refuse pages outside the cluster without an authenticating proxy or ranges of callers: they know no users."""
    section = spec.kubernetes
    if section.expose != "loadbalancer":
        return
    rests_on = (*_TARGET, ("kubernetes", "expose"))
    if section.proxy is None:
        message = "loadbalancer needs a proxy that authenticates callers, as in `proxy: {image: ..., args: [...]}`"
        yield Fault(("kubernetes", "proxy"), message, rests_on)
    if not section.source_ranges:
        message = "loadbalancer needs the ranges that may call, as in `source_ranges: [203.0.113.0/24]`"
        yield Fault(("kubernetes", "source_ranges"), message, rests_on)
    for index, callers in enumerate(section.source_ranges):
        if int(callers.rpartition("/")[2]) < _LEAST_PREFIX:
            message = f"{callers} is much of the Internet; name the ranges that may call"
            yield Fault(("kubernetes", "source_ranges", index), message, rests_on)
