"""The one schema: everything that a spec file can say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from rlctl.spec import wrappers
from rlctl.spec.algorithms import AnyAlgorithm, Impala, Replayed
from rlctl.spec.base import Model, live, new_run, restart
from rlctl.spec.cluster import Images, Kubernetes, Storage
from rlctl.spec.roles import Roles
from rlctl.spec.runs.model_names import is_folder
from rlctl.spec.units import Seconds
from rlctl.spec.words import CLASS_PATH, show

RUN_NAME = r"^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$"
"""Pattern of a run's name, a DNS label of at most 40 characters: objects and folders add a suffix to it."""
POLICY_NAME = r"^[a-z0-9]([-a-z0-9]{0,18}[a-z0-9])?$"
MODEL = r"^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?(@(goal|best|last|[0-9]{1,9}))?$"
"""Pattern of a model of a run: `RUN` or `RUN@WHICH`."""
AnyModel = TypeVar("AnyModel", bound=Model)
PolicyName = Annotated[str, Field(pattern=POLICY_NAME)]
ClassPath = Annotated[str, Field(pattern=CLASS_PATH)]
Side = Annotated[int, Field(ge=1, le=4096)]
Name = Annotated[str, Field(min_length=1, max_length=128)]
TRACKERS: Final = ("wandb", "mlflow")
"""Trackers beside TensorBoard: section of the spec, package, module and extra of rlctl in one."""


def _wrapper(value: object) -> object:
    """Bring a wrapper into the form of name and kwargs."""
    one = {"name": value} if isinstance(value, str) else value
    if not isinstance(one, dict) or not isinstance(one.get("name"), str) or one.keys() - {"name", "kwargs"}:
        raise ValueError(f"must be the name of a wrapper, or {{name: ..., kwargs: {{...}}}}, got {show(value)}")
    if not isinstance(kwargs := one.get("kwargs", {}), dict):
        raise ValueError(f"kwargs must be a mapping (key: value), got {show(kwargs)}")
    if fault := wrappers.fault(one["name"]):
        raise ValueError(fault)
    return {"name": one["name"], "kwargs": kwargs}


def _stored(model: str) -> str:
    if not is_folder(model) and not re.match(MODEL, model):
        raise ValueError(
            "must be a run or one of its models, as in cartpole@best, cartpole@goal, cartpole@last, cartpole@7; or a "
            f"folder of `rlctl pull`, with a / in its name, got {show(model)}"
        )
    return model


def _two(sides: list[int]) -> list[int]:
    if len(sides) != 2:
        raise ValueError(f"must be rows and columns, as in [84, 84], got {show(sides)}")
    return sides


def _uri(uri: str) -> str:
    """Check the address of a tracking server, or of a database in a file."""
    try:
        parts = urlsplit(uri)
        password = parts.password
    except ValueError as error:
        raise ValueError(f"must be an address, as in http://mlflow:5000, got {show(uri)}: {error}") from None
    if password is not None or (parts.scheme in ("http", "https") and parts.username is not None):
        raise ValueError(
            "holds a password or a name to log in with: give them as MLFLOW_TRACKING_USERNAME and"
            " MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, in the manager's environment"
        )
    if parts.scheme == "sqlite" and not parts.path.startswith("//"):
        raise ValueError(f"must name a file from the root, as in sqlite:////home/me/mlflow.db, got {show(uri)}")
    if parts.scheme not in ("http", "https", "sqlite"):
        raise ValueError(f"must begin with http://, https:// or sqlite:////, got {show(uri)}")
    return uri


Wrapper = Annotated[
    dict[str, Any],
    BeforeValidator(_wrapper),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object", "required": ["name"]}]}),
]


class Env(Model):
    """The simulator. `id` is a Gymnasium id (`CartPole-v1`, `ALE/Pong-v5`) or `module:attribute` of your own."""

    id: Annotated[str, Field(min_length=1, max_length=200), new_run("actor", "evaluator")]
    kwargs: Annotated[dict[str, Any], new_run("actor", "evaluator")] = {}
    """Passed to the environment's constructor as they are."""
    preset: Annotated[Literal["none", "atari"], new_run("actor", "evaluator")] = "none"
    """atari: 84x84 grey, skip 4, stack 4, up to 30 no-ops at reset, no sticky actions; and defaults of the algorithm
    that go with its games, reward_clip 1 before all."""
    max_episode_steps: Annotated[int | None, Field(ge=1), new_run("actor", "evaluator")] = None
    """Cut episodes here; null: what the environment registers."""
    wrappers: Annotated[list[Wrapper], Field(max_length=32), new_run("actor", "evaluator")] = []
    """Around each copy of a Gymnasium environment, the first one innermost, as in `[TimeAwareObservation]`; outside of
    them what the next four fields say."""
    action_repeat: Annotated[int | None, Field(ge=1, le=1000), new_run("actor", "evaluator")] = None
    """Play each action so often and sum the rewards; max_episode_steps counts actions. Null: 1, with the preset 4."""
    episodic_life: Annotated[bool, new_run("actor", "evaluator")] = False
    """In training each life of `info["lives"]` is an episode; evaluations play whole games."""
    grayscale: Annotated[bool, new_run("actor", "evaluator")] = False
    """Images of three colours become grey, as those of the preset are."""
    resize: Annotated[Annotated[list[Side], AfterValidator(_two)] | None, new_run("actor", "evaluator")] = None
    """Rows and columns of images, as in [84, 84]; null: as they are, with the preset 84x84."""
    frame_stack: Annotated[int | None, Field(ge=1, le=64), new_run("actor", "evaluator")] = None
    """Show so many of the last observations, each of which travels once. Null: 1, with the preset 4."""
    splits: Annotated[int, Field(ge=1, le=8), restart("actor")] = 1
    """Groups that an actor steps in turn, so that one infers while another simulates."""


class Normalize(Model):
    """Running moments that travel with the weights, so that scales of an environment do not matter: of returns
    down to a standard deviation of 0.001, below which `reward_scale` is needed."""

    observations: Annotated[Literal["auto"] | bool, new_run("learner", "actor", "evaluator")] = "auto"
    """Leaves that hold real numbers, or whole ones that may be further than 1 from 0, get mean 0 and standard deviation
    1, clipped to [-10, 10], and so does each channel of small grids of bytes whose space says 0 to 255 (MiniGrid's
    codes). auto: yes."""
    returns: Annotated[Literal["auto"] | bool, new_run("learner", "actor", "evaluator")] = "auto"
    """The value is learned in units of the returns' standard deviation, by PopArt. auto: unless rewards are clipped."""


class Gaussian(Model):
    """The distribution over an action that is a Box of real numbers, in units of half the width of its bounds."""

    std: Annotated[Literal["free", "network"], new_run("learner", "actor", "evaluator")] = "free"
    """free: a standard deviation per entry, learned apart from the observation. network: a function of the
    observation."""
    squash: Annotated[bool, new_run("learner", "actor", "evaluator")] = False
    """Samples pass through tanh, so that none lies outside of the bounds, which every entry must have. Without it the
    environment clips them."""
    log_std_init: Annotated[float, Field(ge=-20, le=20), new_run("learner", "actor", "evaluator")] = 0.0
    """Natural log of the standard deviation at the start."""
    log_std_min: Annotated[float, Field(ge=-20, le=20), new_run("learner", "actor", "evaluator")] = -5.0
    """Smallest log standard deviation."""
    log_std_max: Annotated[float, Field(ge=-20, le=20), new_run("learner", "actor", "evaluator")] = 2.0
    """Largest log standard deviation. Within 1 of either limit it is approached softly, so that gradients never
    vanish."""


class Gains(Model):
    """Gains of the initial weights, which are orthogonal; biases are 0."""

    hidden: Annotated[float | None, Field(gt=0, le=1000), new_run("learner", "actor", "evaluator")] = None
    """Gain of the torso's layers; null: the square root of 2, and 1 in the convolutions of impala_cnn."""
    policy: Annotated[float, Field(gt=0, le=1000), new_run("learner", "actor", "evaluator")] = 0.01
    """Gain of the last layer of the policy; a small one makes the first policy nearly uniform."""
    value: Annotated[float, Field(gt=0, le=1000), new_run("learner", "actor", "evaluator")] = 1.0
    """Gain of the last layer of the value."""


class Network(Model):
    """The network of a policy."""

    torso: Annotated[
        Literal["auto", "mlp", "small_cnn", "nature_cnn", "impala_cnn"] | ClassPath,
        new_run("learner", "actor", "evaluator"),
    ] = "auto"
    """auto: nature_cnn for images, which are bytes from 0 to 255 of at least 36x36; small_cnn for smaller grids of
    bytes or bits with an axis of channels (MinAtar, MiniGrid); mlp for vectors and other small arrays. What may be a
    table or an image has to be stated. `package.module:Class` for a network of your own."""
    hidden: Annotated[list[Annotated[int, Field(ge=1, le=65_536)]], new_run("learner", "actor", "evaluator")] = [64, 64]
    """Widths of the layers of the mlp. dqn, apex_dqn and r2d2: [128, 128]; sac and td3: [256, 256]."""
    activation: Annotated[Literal["tanh", "relu"], new_run("learner", "actor", "evaluator")] = "tanh"
    """With a replay relu."""
    layer_norm: Annotated[bool, new_run("learner", "actor", "evaluator")] = False
    """Normalise what dense layers of our torsos compute, before the activation."""
    share: Annotated[Literal["auto"] | bool, new_run("learner", "actor", "evaluator")] = "auto"
    """Policy and value have one torso. auto: unless it is a plain mlp without memory, which is cheap to have twice."""
    core: Annotated[Literal["none", "lstm", "gru"], new_run("learner", "actor", "evaluator")] = "none"
    """Memory between torso and heads. r2d2: lstm."""
    width: Annotated[int, Field(ge=1, le=65_536), new_run("learner", "actor", "evaluator")] = 256
    """Features out of a convolutional torso, and units of the memory. r2d2: 128."""
    params: Annotated[dict[str, Any], new_run("learner", "actor", "evaluator")] = {}
    """Keyword arguments of a network of your own."""
    gains: Gains = Gains()
    gaussian: Gaussian = Gaussian()
    normalize: Normalize = Normalize()
    precision: Annotated[Literal["auto", "fp32", "bf16"], restart("learner", "actor", "evaluator")] = "auto"
    """Numbers that the torso is computed in; weights, memory, heads, losses and V-trace are fp32 always.

    auto: bf16 for nature_cnn and impala_cnn on a processor with AMX or AVX512-BF16, else fp32. With sync fp32."""


class Policy(Model):
    """One learning agent; a run has one, called main, unless `policies` says otherwise."""

    algorithm: AnyAlgorithm = Impala()
    model: Network = Network()
    population: Annotated[int, Field(ge=1, le=256), new_run("manager", "modelpool", "learner")] = 1
    like: Annotated[PolicyName | None, new_run()] = None
    """Take algorithm and model from this policy. No role reads it: what a change does is what these two change."""

    def brought(self, env: Env) -> dict[str, Any]:
        """Fields of the algorithm that have the default of the environment's preset, with their values."""
        groups, stated = self.algorithm.atari if env.preset == "atari" else (), self.algorithm.model_fields_set
        return {key: value for group in groups if stated.isdisjoint(group) for key, value in group.items()}

    def filled(self, env: Env) -> Policy:
        """The policy with all defaults: those of the environment's preset in the algorithm, those of the algorithm
        in the model."""
        algorithm = _filled(self.algorithm, self.brought(env))
        return self.model_copy(update={"algorithm": algorithm, "model": _filled(self.model, algorithm.network)})


def _filled(section: AnyModel, defaults: Mapping[str, Any]) -> AnyModel:
    """A section with defaults in place of fields that it does not state."""
    found: dict[str, Any] = {}
    for key, value in defaults.items():
        now = getattr(section, key)
        if isinstance(now, Model):
            found[key] = _filled(now, value)
        elif key not in section.model_fields_set:
            found[key] = value
    return section.model_copy(update=found) if found else section


class Init(Model):
    """Weights of another run's policy that a new run begins with. Steps, optimizer and schedules begin at zero."""

    run: Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(_stored), new_run("manager", "learner")]
    """RUN, RUN@goal, RUN@best, RUN@last or RUN@NUMBER, as for `rlctl pull`; or a folder that it has made, with a / in
    its name, relative to the spec file. Looked up once, when the run is made, and copied into its storage."""
    parts: Annotated[list[Annotated[str, Field(min_length=1, max_length=200)]], new_run("manager", "learner")] = []
    """Parts of the network that are taken, as in [torso, observed]; []: all. Those of our networks: torso, core,
    policy, value, log_std, value_torso, and the running moments, observed and returns."""
    verify: Annotated[str | None, Field(min_length=1), live()] = None
    """Public key that the signature of the folder is verified with, a PEM file relative to the spec file."""


class InferenceMode(Model):
    """Location of inference."""

    mode: Annotated[Literal["local", "central"], restart("actor")] = "local"
    colocate: Annotated[Literal["none", "learner"], restart("learner")] = "none"
    max_wait_ms: Annotated[float, Field(gt=0, le=10_000), restart("inference", "learner")] = 5.0
    max_batch: Annotated[int | None, Field(ge=1), restart("inference", "learner")] = None


class ReplayBuffer(Model):
    """The replay of an off-policy algorithm, over all shards."""

    capacity: Annotated[int, Field(ge=1), restart("replay")] = 1_000_000
    """Rows: one for each agent step, and one for the end of each episode."""
    samples_per_insert: Annotated[Literal["auto"] | Annotated[float, Field(gt=0)] | None, restart("replay")] = "auto"
    """Rows drawn for each that comes in: the faster of learner and actors waits for the other. auto: minibatch_size
    with sac and td3, an optimizer step for each row; 32 with dqn, apex_dqn and r2d2 where no observation is an
    image, else 8. null: neither waits."""
    learning_starts: Annotated[int, Field(ge=1), restart("replay")] = 1_000
    """Rows in the replay before any is drawn."""
    checkpoint: Annotated[Literal["none", "full"], restart("manager", "replay")] = "none"
    """Part of the replay that generations hold. none: nothing, it is filled anew when all is started again. full: the
    rows and priorities of every shard, as large as its memory."""

    def ratio_of(self, algorithm: Replayed, *, images: bool) -> float:
        """Rows drawn for each that comes in; 0: no limit.

        Args:
            images: an observation is an image.
        """
        if self.samples_per_insert == "auto":
            return algorithm.samples_per_insert(images=images)
        return self.samples_per_insert or 0.0


class League(Model):
    """Self-play against a growing set of frozen players."""

    matchmaker: Annotated[str, live("manager")] = "pfsp"
    freeze: Annotated[dict[str, float], live("manager")] = {"win_rate": 0.7}


class Pbt(Model):
    """Population based training of one policy."""

    policy: Annotated[PolicyName, live("manager")] = "main"
    objective: Annotated[Literal["eval_return", "elo"], live("manager")] = "eval_return"
    every_agent_steps: Annotated[int, Field(ge=1), live("manager")] = 5_000_000
    mutate: Annotated[dict[str, list[float]], live("manager")] = {}


class Stop(Model):
    """The run has succeeded as soon as one of these holds; without any it runs until `down`."""

    eval_return: Annotated[float | None, live("manager")] = None
    """Mean raw return of one whole evaluation in `evaluation.mode`, confirmed by another of the same model on fresh
    seeds; not in an environment of several seats, where it says nothing."""
    agent_steps: Annotated[int | None, Field(ge=1), live("manager")] = None
    """Agent steps learned from. The update that reaches them is the last; it may exceed them by less than a batch."""
    wall_time: Annotated[Seconds | None, live("manager")] = None
    """Time since the first `up`, without pauses from `down` to `up`. A run that has learned from nothing by then has
    failed."""


class Evaluation(Model):
    """Whole episodes with one pinned model, raw rewards."""

    episodes: Annotated[int, Field(ge=1, le=100_000), live("manager")] = 100
    every: Annotated[Seconds | None, live("manager")] = None
    """Time between the starts of two evaluations; none starts for a model already evaluated. Null: 10 s, and longer
    while evaluators take more than 10 % of the run's CPU and more than a fifth of a core; 30 s at most once the return
    of training has come to `stop.eval_return`. With sync 10 s."""
    mode: Annotated[Literal["greedy", "sample"], live("manager")] = "greedy"
    """Choice of the policy's actions where it counts: for `stop.eval_return`, the best model and the curve. One
    evaluation of five, and that of the last model, is played in the other mode as well, which is only reported."""
    envs: Annotated[int | None, Field(ge=1, le=65_536), restart("evaluator")] = None
    """Environments of one evaluator; null: 25, or episodes when that is less.

    Episodes are shared out before the first begins, as equally as the numbers allow."""
    video_every: Annotated[int | None, Field(ge=1), live("manager")] = None
    """One in so many evaluations, beginning with the first, is followed by an episode that is recorded as a GIF; so are
    the one that confirms a goal and that of the last model. The newest and the best are on the status page, and below
    results/episodes. Null: none."""


class Checkpoint(Model):
    """Generations: weights, optimizer, random states and counters, from which a run goes on."""

    every: Annotated[Seconds, live("manager")] = 60.0
    keep: Annotated[int, Field(ge=1, le=10_000), live("manager")] = 3
    """The newest that stay on disk; older ones are removed. The best model and the one that reached the goal are
    not among them: they stay, below models/."""


class TensorBoard(Model):
    """Files below results/tensorboard, always written."""


class Wandb(Model):
    """Weights & Biases, of the extra wandb. Its key is WANDB_API_KEY of the manager's environment, never of a spec."""

    mode: Annotated[Literal["offline", "online"], restart("manager")] = "offline"
    """offline: into results/wandb, from where `wandb sync` sends it."""
    project: Annotated[Name, Field(pattern=r"^[^/\\#?%:]+$"), restart("manager")] = "rlctl"
    entity: Annotated[Name | None, restart("manager")] = None
    """A team or user; null: that of the key."""
    group: Annotated[Name | None, restart("manager")] = None
    """Runs that belong together; null: of a trial the name of its sweep."""
    tags: Annotated[list[Annotated[str, Field(min_length=1, max_length=64)]], restart("manager")] = []


class Mlflow(Model):
    """MLflow, of the extra mlflow."""

    uri: Annotated[Annotated[str, AfterValidator(_uri)] | None, restart("manager")] = None
    """http://HOST:PORT of a tracking server, or sqlite:////FILE; null: mlflow.db in the storage folder of its runs."""
    experiment: Annotated[Name, restart("manager")] = "rlctl"
    group: Annotated[Name | None, restart("manager")] = None
    """Becomes the tag `group`; null: of a trial the name of its sweep."""
    tags: Annotated[dict[Name, str], restart("manager")] = {}


class Trackers(Model):
    """Where curves, evaluations, the resolved spec and the end of a run go. Only the manager reads this."""

    tensorboard: TensorBoard = TensorBoard()
    wandb: Wandb | None = None
    mlflow: Mlflow | None = None

    @property
    def asked(self) -> dict[str, Wandb | Mlflow]:
        """Section of each tracker that is a package of its own."""
        return {name: section for name in TRACKERS if (section := getattr(self, name)) is not None}

    def grouped(self, group: str) -> Trackers:
        """The trackers, with this group where none is given."""
        update = {"group": group}
        return self.model_copy(
            update={
                name: section.model_copy(update=update) for name, section in self.asked.items() if section.group is None
            }
        )


class Code(Model):
    """The user's own package: in the place of PYTHONPATH on one machine, added to the image on a cluster."""

    path: Annotated[str, Field(min_length=1), restart("learner", "actor", "evaluator")] = "."
    """A folder, relative to the spec file."""
    requirements: Annotated[str | None, restart("learner", "actor", "evaluator")] = None
    """A requirements file for the image; on one machine rlctl only names what is missing."""


class Spec(Model):
    """One run."""

    run: Annotated[
        str,
        Field(pattern=RUN_NAME),
        new_run("manager", "modelpool", "replay", "learner", "inference", "actor", "evaluator"),
    ]
    """Unique per user of a machine, or per namespace of a cluster."""
    target: Annotated[Literal["local", "kubernetes"], new_run()] = "local"
    seed: Annotated[int, Field(ge=0, lt=2**63), new_run("manager", "replay", "learner", "actor", "evaluator")] = 0
    """Fixes the first weights, the learner's random numbers and the episodes of evaluations. Games and exploration of
    training differ with every start of an actor, and so do draws from a replay; with `sync: true` nothing differs."""
    sync: Annotated[bool, new_run("manager", "learner", "actor")] = False
    """Lock-step: batches in a fixed order, weights exactly one update old, equal weights from equal seeds."""
    env: Env
    algorithm: AnyAlgorithm | None = None
    """Short for policies.main.algorithm."""
    model: Network | None = None
    """Short for policies.main.model."""
    policies: Annotated[dict[PolicyName, Policy], Field(min_length=1)] | None = None
    """Several agents that learn side by side, by name; leaves out `algorithm` and `model` above."""
    init: Init | None = None
    roles: Roles = Roles()
    inference: InferenceMode = InferenceMode()
    replay: ReplayBuffer | None = None
    league: League | None = None
    pbt: Pbt | None = None
    stop: Stop = Stop()
    evaluation: Evaluation = Evaluation()
    checkpoint: Checkpoint = Checkpoint()
    trackers: Trackers = Trackers()
    storage: Storage = Storage()
    code: Code | None = None
    images: Images = Images()
    kubernetes: Kubernetes = Kubernetes()

    @property
    def policy_names(self) -> list[str]:
        """Every policy, in the order of the spec."""
        return ["main"] if self.policies is None else list(self.policies)

    @property
    def replay_shards(self) -> int:
        """Shards of the replay: one where no such role is stated."""
        return 1 if self.roles.replay is None else self.roles.replay.replicas

    def policy(self, name: str = "main") -> Policy:
        """The policy of that name with its abbreviations and `like` resolved.

        Raises:
            KeyError: the spec has no such policy.
        """
        if self.policies is None:
            if name != "main":
                raise KeyError(name)
            return Policy(algorithm=self.algorithm or Impala(), model=self.model or Network()).filled(self.env)
        policy = self.policies[name]
        if policy.like is None:
            return policy.filled(self.env)
        original = self.policy(policy.like)
        return policy.model_copy(update={"algorithm": original.algorithm, "model": original.model})
