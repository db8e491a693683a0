"""`python -m rlctl_agents probe --check`: checks on this machine, before a run is started, that the environment, the
networks and the algorithms that a spec names are there and fit together.

The spec is read from stdin as JSON, every policy below `policies`, and beside it `initial`: `of` and `arrays`, name and
arrays of the policy that the run begins with, or nothing. The answer goes to stdout as one JSON object:

    {"faults": [{"path": ["env", "id"], "message": "...", "missing": false}],
     "inputs": {"main": [{"leaf": "obs", "space": "float32 [4]", "net": "mlp"}]},
     "masked": false, "continuous": false, "apart": false, "shard_bytes": 0, "draws_bytes": 0}

A fault says in one sentence what is wrong with the value at a path of the spec; `missing` marks a package that is not
installed here. torch is imported for a network or an algorithm of the user's own, for `initial` and for a number of
`value_batches` alone, because `rlctl up` waits for the answer. Whatever the user's code prints goes to stderr.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from rlctl.spec.problems.multiples import partial_blocks
from rlctl_agents import envs
from rlctl_agents.envs.base import EnvError, EnvRefused, Renders
from rlctl_agents.envs.stacking import Stacked
from rlctl_agents.models.actions import require_bounds, require_bounds_or_choices, require_choices
from rlctl_agents.models.inputs import continuous, described, nets, require_distribution
from rlctl_agents.runtime.logs import chain
from rlctl_agents.types import by_name
from rlctl_agents.types.by_name import NoModule
from rlctl_agents.types.experience import Field, Schema, check_schema
from rlctl_agents.types.spaces import Spaces, leaf_array, leaves

ALONE_S = 60
"""Time after which a check ends by itself: an `rlctl` that was killed cannot end it."""

_OURS = Path(__file__).parents[1]


class Fault(msgspec.Struct, frozen=True):
    """Fault of the value at a path of the spec."""

    path: tuple[str, ...]
    message: str
    missing: bool = False  # a package that is not installed here


class Input(msgspec.Struct, frozen=True):
    """A leaf of the observation, and the net that it goes through."""

    leaf: str
    space: str
    net: str


class SpecFindings(msgspec.Struct):
    """Findings about a spec."""

    faults: list[Fault] = []
    inputs: dict[str, list[Input]] = {}
    masked: bool = False
    """Masks say which actions are legal."""
    continuous: bool = False
    """An action holds real numbers."""
    apart: bool = False
    """Copies of the environment do not fill their segments together: seats act in turn, or a vector has decisions of
    new episodes alone."""
    shard_bytes: int = 0
    draws_bytes: int = 0
    """Bytes of the arrays of one shard of the replay; 0: there is none, or it is not known."""

    @contextmanager
    def telling(self, *path: str) -> Iterator[None]:
        """Turn an exception inside into a fault of the value at `path`."""
        try:
            yield
        except (Exception, SystemExit) as error:  # the user's own code may end in any way
            if path == ("env", "id") and (field := re.match(r"env\.(\w+)", str(error))):
                path = ("env", field[1])
            self.faults.append(Fault(path, _in_words(error, path), _package_missing(error)))


def check_spec(spec: dict[str, Any], initial: dict[str, Any] | None = None) -> SpecFindings:
    """Check a spec: find everything that it names, make one environment and reset it.

    Args:
        spec: plain data, whole, in its normal form.
        initial: `of` and `arrays` of the policy that the run begins with; None: it begins with none.
    """
    found = SpecFindings(faults=[], inputs={})
    with found.telling("env", "id"):
        spaces, together, resets = _spaces(spec)
        found.masked, found.apart = spaces.legal, resets or not together
    if found.faults:  # the environment is not there
        for name in spec["policies"]:
            _own(spec, name, None, found)
        return found
    if spaces.seats > 1:
        _check_seats(spec, spaces.seats, found, together=together)
    if spec["evaluation"]["video_every"] is not None:
        with found.telling("evaluation", "video_every"):
            _draw(spec)
    for name in spec["policies"]:
        _check_policy(spec, initial, name, spaces, found)
    if spec["replay"] is not None and not found.faults:  # a class of the user's can be made
        found.shard_bytes, found.draws_bytes = _shard_memory(spec, spaces)
    return found


def _check_seats(spec: dict[str, Any], seats: int, found: SpecFindings, *, together: bool) -> None:
    """Add faults of a spec whose environment has several seats; `together`: all of them act in every step."""
    if spec["stop"]["eval_return"] is not None:
        from rlctl.spec.schema import Stop
        from rlctl_agents.manager.lifecycle.stop import require_measurable

        with found.telling("stop", "eval_return"):
            require_measurable(Stop.model_validate(spec["stop"]), seats)
    if not together or spec["replay"] is not None:
        return
    for name, policy in spec["policies"].items():
        algorithm = policy["algorithm"]
        if not algorithm["max_lag_versions"]:
            fault = partial_blocks(
                envs=spec["roles"]["actor"]["envs"],
                seats=seats,
                unroll_length=algorithm["unroll_length"],
                learners=spec["roles"]["learner"]["replicas"],
                batch_size=algorithm["batch_size"],
            )
            if fault is not None:
                found.faults.append(Fault(("policies", name, "algorithm", "batch_size"), fault))


def _check_policy(
    spec: dict[str, Any], initial: dict[str, Any] | None, name: str, spaces: Spaces, found: SpecFindings
) -> None:
    """Add faults of a policy, and which leaf of its observation goes through which net."""
    policy = spec["policies"][name]
    torso, algorithm = policy["model"]["torso"], policy["algorithm"]["name"]
    path = ("policies", name, "model", "torso")
    faults = len(found.faults)
    _own(spec, name, spaces, found)
    if len(found.faults) > faults:
        return
    found.continuous = continuous(spaces.action)
    if ":" not in algorithm:
        with found.telling("env", "id"):
            check_schema(_sent(spec, name, spaces))
    if spec["replay"] is not None:
        with found.telling("policies", name, "algorithm", "name"):
            _require_actions(algorithm, spaces)
    if len(found.faults) == faults:  # else its default of squash would be blamed
        squash = policy["model"]["gaussian"]["squash"]
        with found.telling(*(*path[:-1], "gaussian", "squash") if squash else ("env", "id")):
            require_distribution(spaces.action, squash=squash)
    with found.telling(*path):
        chosen = {} if ":" in torso else nets(spaces.obs, torso)
        observed = leaves(spaces.obs, "obs")
        found.inputs[name] = [Input(leaf, described(space), chosen.get(leaf, torso)) for leaf, space in observed]
        if initial and len(found.faults) == faults:
            with found.telling(*path[:-1]):
                _fits(spec, initial, name, spaces, found)
    if policy["algorithm"].get("value_batches", 0) not in (0, "auto") and len(found.faults) == faults:
        with found.telling("policies", name, "algorithm", "value_batches"):
            _made(spec, name, spaces)  # whether its value shares a torso depends on the observations


def _spaces(spec: dict[str, Any]) -> tuple[Spaces, bool, bool]:
    """Spaces of the environment, which is made and reset once, whether all its seats act at first, and whether new
    episodes have decisions of their own."""
    from rlctl_agents.envs.gymnasium import Resetting

    env = envs.make_of(spec["env"], envs=1, seeds=[spec["seed"] % 2**31])
    try:
        first = env.reset()
    finally:
        env.close()
    resets = isinstance(env._env if isinstance(env, Stacked) else env, Resetting)
    return env.spaces, len(first.slot) == env.spaces.seats, resets


def _sent(spec: dict[str, Any], name: str, spaces: Spaces) -> Schema:
    """Segments of a built-in algorithm, without torch: of one that is on-policy the leaves and the number of arrays."""
    policy = spec["policies"][name]
    if spec["replay"] is not None:
        from rlctl.spec.schema import Spec
        from rlctl_agents.experience.replay.memory import stored

        chosen: Any = Spec.model_validate(spec).policy(name)
        return stored(chosen.algorithm, chosen.model, spaces)
    observed = (*leaves(spaces.obs, "obs"), *leaves(spaces.action, "action"))
    others = 6 + spaces.legal + {"none": 0, "gru": 1, "lstm": 2}[policy["model"]["core"]]
    ours = (Field(f"_{number}", "bool", (), "row") for number in range(others))
    return Schema(1, (*(Field(leaf, *leaf_array(space), "row") for leaf, space in observed), *ours))


def _shard_memory(spec: dict[str, Any], spaces: Spaces) -> tuple[int, int]:
    """Bytes of a shard's arrays, and of its draws beyond those that every shard has room for."""
    from rlctl.spec.algorithms import Replayed
    from rlctl.spec.schema import Spec
    from rlctl_agents.experience.replay.memory import draws_bytes, shard_bytes, stored

    whole = Spec.model_validate(spec)
    config = whole.policy(whole.policy_names[0]).algorithm
    if not isinstance(config, Replayed):
        return 0, 0
    schema = stored(config, whole.policy(whole.policy_names[0]).model, spaces)
    if config.own_class is not None:  # it may record more
        from rlctl_agents.algorithms import schema_of

        schema = schema_of(whole, spaces, whole.policy_names[0])
    return shard_bytes(whole, config, spaces, schema), draws_bytes(config, schema)


def _require_actions(algorithm: str, spaces: Spaces) -> None:
    """Check that an algorithm with a replay can choose such actions; one without can choose any.

    Raises:
        ModelError: it cannot, and which can.
    """
    from rlctl.spec.algorithms import KINDS, QLearning, Sac, Td3

    kind = KINDS.get(algorithm)
    if kind is not None and issubclass(kind, QLearning):
        require_choices(spaces.action)
    elif kind is Td3:
        require_bounds(spaces.action)
    elif kind is Sac:
        require_bounds_or_choices(spaces.action)


def _draw(spec: dict[str, Any]) -> None:
    """Draw a frame, as for a recorded episode.

    Raises:
        EnvError: it cannot be drawn, and what is missing.
    """
    env = None
    try:
        env = envs.make_of(spec["env"], envs=1, seeds=[spec["seed"] % 2**31], training=False, render_mode="rgb_array")
        env.reset()
        if not isinstance(env, Renders) or env.frame() is None:
            raise EnvRefused("the environment draws no frames for render_mode rgb_array")
    except EnvError as error:
        absent = {cause.name for cause in chain(error) if isinstance(cause, ModuleNotFoundError)}
        if "pygame" in absent:
            raise EnvRefused('the frames of a recorded episode need pygame: pip install "rlctl[agents]"') from error
        raise EnvRefused(f'{error}; recorded episodes need render_mode="rgb_array" of the environment') from error
    finally:
        if env is not None:
            env.close()


def _own(spec: dict[str, Any], name: str, spaces: Spaces | None, found: SpecFindings) -> None:
    """A network or an algorithm of the user's own: loaded, and made as actors and learners make it where there is an
    environment to make it for."""
    policy = spec["policies"][name]
    torso, algorithm = policy["model"]["torso"], policy["algorithm"]["name"]
    derived = bool(policy["algorithm"].get("class"))
    faults = len(found.faults)
    if ":" in torso and spaces is None:
        with found.telling("policies", name, "model", "torso"):
            by_name.load(torso)
    if ":" not in algorithm and not derived and (spaces is None or ":" not in torso):
        return
    # these import torch and pydantic
    from rlctl.spec.schema import Spec
    from rlctl_agents import algorithms
    from rlctl_agents.algorithms.base import AlgorithmError
    from rlctl_agents.algorithms.replayed import ReplayedAlgorithm
    from rlctl_agents.models.torso import make_torso

    chosen = Spec.model_validate(spec).policy(name)
    if ":" in torso and spaces is not None:
        with found.telling("policies", name, "model", "torso"):
            make_torso(spaces.obs, chosen.model)
    with found.telling("policies", name, "algorithm", "class" if derived else "name"):
        kind = algorithms.class_of(chosen.algorithm)
        if ":" in algorithm and kind.source == ReplayedAlgorithm.source:
            raise AlgorithmError(
                "an algorithm of your own uses the replay role as `class` of the one that it is derived from, whose "
                f"settings the shards read: algorithm: {{name: sac, class: {algorithm}}}, or dqn, apex_dqn, r2d2, td3"
            )
        if spaces is not None and len(found.faults) == faults:
            schema = kind.schema(chosen.algorithm, chosen.model, spaces)
            kind(chosen.algorithm, chosen.model, spaces, seed=spec["seed"])
            with found.telling("env", "id"):
                check_schema(schema)


def _fits(spec: dict[str, Any], initial: dict[str, Any], name: str, spaces: Spaces, found: SpecFindings) -> None:
    """Add a fault for every array that does not fit the network, of the policy that the run begins with."""
    from rlctl.spec.problems.initial import misfits
    from rlctl_agents.policies.initial import arrays_of

    different = misfits(initial["arrays"], arrays_of(_made(spec, name, spaces)), spec["init"]["parts"], initial["of"])
    found.faults += [Fault(tuple(map(str, fault.path)), fault.message) for fault in different]


def _made(spec: dict[str, Any], name: str, spaces: Spaces) -> Any:
    """The algorithm of a policy, with its networks, as a learner makes it."""
    from rlctl.spec.schema import Spec
    from rlctl_agents import algorithms

    chosen = Spec.model_validate(spec).policy(name)
    return algorithms.class_of(chosen.algorithm)(chosen.algorithm, chosen.model, spaces, seed=spec["seed"])


def _in_words(error: BaseException, path: tuple[str, ...]) -> str:
    """The error in one sentence, with the place in the user's own code if it comes from there."""
    text = " ".join(str(error).split())
    if isinstance(error, SystemExit):
        text = f"it ends the process, by SystemExit({text})"
    elif not isinstance(error, (envs.EnvError, ValueError)):
        text = f"{type(error).__name__}: {text}"
    for words in (path[-3:], path[-2:], path[-2:-1]):  # the path says so already
        text = text.removeprefix(".".join(words) + " ")
    return text + _place(error)


def _place(error: BaseException) -> str:
    """` (file.py, line 12)`: the innermost line below the user's folder, which is where this process runs."""
    folder = Path.cwd()
    for cause in reversed(list(chain(error))):
        for frame in reversed(traceback.extract_tb(cause.__traceback__)):
            file = Path(frame.filename)
            installed = file.is_relative_to(_OURS) or "site-packages" in file.parts
            if folder != Path("/") and file.is_relative_to(folder) and not installed:
                return f" ({file.relative_to(folder)}, line {frame.lineno})"
    return ""


def _package_missing(error: BaseException) -> bool:
    """True if its cause is a package that is not installed; a module that the spec itself names does not count."""
    causes = list(chain(error))
    absent = any(isinstance(cause, ModuleNotFoundError) for cause in causes)
    return absent and not any(isinstance(cause, NoModule) for cause in causes)


def main(_: Sequence[str] = ()) -> int:
    """Run the command; returns its exit code."""
    signal.alarm(ALONE_S)
    answer = os.dup(1)
    os.dup2(2, 1)
    spec = json.loads(sys.stdin.buffer.read())
    initial = spec.pop("initial", None)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    text = msgspec.json.encode(check_spec(spec, initial))
    with open(answer, "wb") as stream:
        stream.write(text)
    return 0
