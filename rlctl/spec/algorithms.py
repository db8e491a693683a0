"""Hyperparameters of every algorithm, so that a laptop without torch refuses a bad one."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal, Self, get_args

from pydantic import ConfigDict, Discriminator, Field, Tag

from rlctl.spec.base import MUTABLE, Model, new_run, restart
from rlctl.spec.words import CLASS_PATH

ENTROPY_COEF: Final = 0.01
"""Weight of the entropy of finitely many actions, unless the spec has one."""


class Schedule(Model):
    """A value over the course of training: from the hyperparameter as it is now to `final`."""

    kind: Annotated[Literal["linear"], restart("learner")] = "linear"
    agent_steps: Annotated[int, Field(ge=1), restart("learner")]
    """Learned from by then; it stays at `final` afterwards."""
    final: Annotated[float, Field(ge=0), restart("learner")] = 0.0

    def at(self, consumed_steps: int, start: float) -> float:
        """The value after so many agent steps."""
        done = min(1.0, consumed_steps / self.agent_steps)
        return start + (self.final - start) * done


class Algorithm(Model):
    """Base of all algorithms: the fields that roles read of any of them."""

    needs_replay: ClassVar[bool] = False
    lock_step_lag: ClassVar[int] = 1
    """Versions from the weights that gather a segment to those that learn from it, with `sync`."""

    name: Annotated[str, new_run("learner", "actor", "evaluator")]
    unroll_length: Annotated[int, Field(ge=1, le=10_000), restart("learner", "actor", "evaluator")] = 20
    """Steps of a segment, as an actor sends it. Part of the experience schema, which an evaluator announces as well."""
    batch_size: Annotated[int, Field(ge=1), restart("learner")] = 640
    """Agent steps of one batch, over all learners: a multiple of unroll_length."""
    gamma: Annotated[float, Field(ge=0, le=1), restart("learner"), MUTABLE] = 0.99
    """Discount factor of one agent step."""
    reward_clip: Annotated[float | None, Field(gt=0), restart("learner")] = None
    """Rewards are clipped to [-reward_clip, reward_clip] before learning; evaluation reports them raw."""
    max_lag_versions: Annotated[int, Field(ge=0), restart("learner")] = 8
    """Segments whose first step is older than this many versions are counted and dropped by the learner. A version is a
    batch learned from."""
    publish_every_updates: Annotated[int, Field(ge=1), restart("learner")] = 1
    """Versions from one publication of weights to the next: batches learned from."""

    @property
    def budget_rows(self) -> int:
        """Rows that may be made, on their way or queued: the learner's credit over all actors.

        As many as can be learned from before they are too old; never less than the batch that is learned from and the
        one that is filled.
        """
        return max(2, self.max_lag_versions) * self.batch_size


Optimizer = Literal["rmsprop", "adam", "adamw"]


class ActorCritic(Algorithm):
    """Hyperparameters of algorithms with one network for policy and value. Losses are means over valid rows."""

    reward_scale: Annotated[float, Field(gt=0), restart("learner")] = 1.0
    """Rewards are multiplied by it before learning; evaluation reports them raw."""
    lambda_: Annotated[float, Field(ge=0, le=1, alias="lambda"), restart("learner"), MUTABLE] = 1.0
    """Trace decay lambda."""
    optimizer: Annotated[Optimizer, restart("learner")] = "adam"
    lr: Annotated[float, Field(gt=0, le=1), restart("learner"), MUTABLE] = 3e-4
    lr_schedule: Schedule | None = None
    """Of the learning rate; null keeps it constant."""
    rmsprop_decay: Annotated[float, Field(gt=0, lt=1), restart("learner")] = 0.99
    """Of the mean of squares; rmsprop."""
    adam_beta1: Annotated[float, Field(ge=0, lt=1), restart("learner")] = 0.9
    """Decay of the mean of gradients; adam and adamw."""
    adam_beta2: Annotated[float, Field(ge=0, lt=1), restart("learner")] = 0.999
    """Decay of the mean of squares; adam and adamw."""
    weight_decay: Annotated[float, Field(ge=0, le=1), restart("learner")] = 0.0
    """Of adamw: matrices shrink by lr x weight_decay in each optimizer step; biases and deviations do not."""
    optimizer_eps: Annotated[float, Field(gt=0), restart("learner")] = 1e-5
    """Added outside the root."""
    max_grad_norm: Annotated[float, Field(gt=0), restart("learner")] = 0.5
    value_coef: Annotated[float, Field(ge=0), restart("learner"), MUTABLE] = 0.5
    """Weight of half the squared value error."""
    entropy_coef: Annotated[Literal["auto"] | Annotated[float, Field(ge=0)], restart("learner"), MUTABLE] = "auto"
    """Weight of the policy's entropy. auto: 0.01 (impala: 0.001) where every action is one of finitely many; 0 where
    one holds real numbers, whose entropy grows without end as the deviation does."""
    entropy_schedule: Schedule | None = None
    """Of entropy_coef; null keeps it constant."""
    advantage_norm: Annotated[bool, restart("learner")] = False
    """Scale the advantages of a batch to mean 0 and deviation 1 over its valid rows."""

    @property
    def schedules(self) -> dict[str, Schedule | None]:
        """Hyperparameter -> its schedule, of those that may have one."""
        return {"lr": self.lr_schedule, "entropy_coef": self.entropy_schedule}

    def entropy_weight(self, continuous: bool) -> float:
        """What `entropy_coef` is.

        Args:
            continuous: an action holds real numbers.
        """
        if self.entropy_coef == "auto":
            return 0.0 if continuous else ENTROPY_COEF
        return self.entropy_coef

    def settled(self, continuous: bool) -> Self:
        """The same with every `auto` as what it is."""
        return self.model_copy(update={"entropy_coef": self.entropy_weight(continuous)})


class OffPolicy(ActorCritic):
    """Hyperparameters of algorithms whose experience may come from older policies, corrected by V-trace."""

    rho_max: Annotated[float, Field(gt=0), restart("learner")] = 1.0
    c_max: Annotated[float, Field(gt=0), restart("learner")] = 1.0
    pg_rho_max: Annotated[float, Field(gt=0), restart("learner")] = 1.0
    advantage: Annotated[Literal["vtrace", "gae"], restart("learner")] = "vtrace"
    """vtrace: as published, from the next row's target. gae: that of GAE where the experience is the learner's own.

    Both are the same for lambda 1.
    """


class Impala(OffPolicy):
    """V-trace actor-critic. Needs no replay.

    Source: Espeholt et al. 2018, arXiv:1802.01561.
    """

    name: Annotated[Literal["impala"], new_run("learner", "actor", "evaluator")] = "impala"
    batch_size: Annotated[int, Field(ge=1), restart("learner")] = 320
    """Agent steps of one batch, over all learners: a multiple of unroll_length."""
    value_batches: Annotated[Literal["auto"] | Annotated[int, Field(ge=0, le=1_000)], restart("learner")] = "auto"
    """After each batch a pass over so many moves the value alone: the newest, and others drawn from the buffer. 0: no
    pass. auto: 8 where value and policy have a torso each, as a plain mlp has, else 0."""
    value_minibatch_size: Annotated[int, Field(ge=1), restart("learner")] = 160
    """Agent steps of an optimizer step of that pass, over all learners."""
    buffer_batches: Annotated[int, Field(ge=0, le=100_000), restart("learner")] = 80
    """Newest batches that the buffer holds copies of, for that pass."""
    max_lag_versions: Annotated[int, Field(ge=0), restart("learner")] = 16
    """Segments whose first step is older than this many versions are counted and dropped by the learner. A version is a
    batch learned from."""
    lambda_: Annotated[float, Field(ge=0, le=1, alias="lambda"), restart("learner"), MUTABLE] = 0.95
    """Trace decay lambda."""
    lr: Annotated[float, Field(gt=0, le=1), restart("learner"), MUTABLE] = 5e-4
    advantage: Annotated[Literal["vtrace", "gae"], restart("learner")] = "gae"
    """vtrace: as published, from the next row's target. gae: that of GAE where the experience is the learner's own.

    Both are the same for lambda 1.
    """

    def entropy_weight(self, continuous: bool) -> float:
        """Weight of the entropy; `auto` is a tenth of that of other algorithms."""
        return super().entropy_weight(continuous) / (10 if self.entropy_coef == "auto" else 1)


class Clipped(ActorCritic):
    """Hyperparameters of the clipped surrogate, on minibatches of a batch."""

    minibatch_size: Annotated[Literal["auto"] | Annotated[int, Field(ge=1)], restart("learner")] = "auto"
    """Agent steps of one optimizer step, over all learners. auto: 64 where the network is an mlp without memory, else
    256; not more than a batch."""
    lambda_: Annotated[float, Field(ge=0, le=1, alias="lambda"), restart("learner"), MUTABLE] = 0.95
    """Trace decay lambda of the advantages."""
    clip: Annotated[float, Field(gt=0, lt=1), restart("learner"), MUTABLE] = 0.2
    """The ratio of probabilities is clipped to [1 - clip, 1 + clip]."""
    clip_schedule: Schedule | None = None
    """Of clip; null keeps it constant."""
    value_clip: Annotated[float | None, Field(gt=0), restart("learner")] = None
    """The value moves at most so far from the old one, in units of the value head; null: no limit."""
    target_kl: Annotated[float | None, Field(gt=0), restart("learner")] = None
    """The steps of a batch end when KL(old || new) of a minibatch is above 1.5 times this; null: never."""
    advantage_norm: Annotated[bool, restart("learner")] = True
    """Scale the advantages of a batch to mean 0 and deviation 1 over the valid rows of all learners."""

    def sized(self, *, plain: bool) -> Self:
        """The same with every `auto` that depends on the network as what it is.

        Args:
            plain: the network is an mlp without memory, whose steps are cheap.
        """
        if self.minibatch_size != "auto":
            return self
        return self.model_copy(update={"minibatch_size": min(64 if plain else 256, self.batch_size)})

    @property
    def schedules(self) -> dict[str, Schedule | None]:
        """With that of clip."""
        return super().schedules | {"clip": self.clip_schedule}

    @property
    def ages(self) -> tuple[int, ...]:
        """Of the batches that one version is learned from: 0 is the newest."""
        return (0,)

    @property
    def passes(self) -> int:
        """Over these batches."""
        return 1

    @property
    def minibatches(self) -> int:
        """Of one pass; of what is `sized`."""
        assert self.minibatch_size != "auto", "sized"
        return max(1, len(self.ages) * self.batch_size // self.minibatch_size)


class Ppo(Clipped):
    """Proximal policy optimization: several epochs on each batch, which the newest policy alone has gathered.

    Source: Schulman et al. 2017, arXiv:1707.06347.
    """

    lock_step_lag: ClassVar[int] = 0

    name: Annotated[Literal["ppo"], new_run("learner", "actor", "evaluator")] = "ppo"
    unroll_length: Annotated[int, Field(ge=1, le=10_000), restart("learner", "actor", "evaluator")] = 32
    """Steps of a segment, as an actor sends it. Part of the experience schema, which an evaluator announces as well."""
    batch_size: Annotated[int, Field(ge=1), restart("learner")] = 2048
    """Agent steps of one batch, over all learners: a multiple of roles.actor.envs x unroll_length."""
    max_lag_versions: Annotated[Literal[0], restart("learner")] = 0
    """Always 0: no policy but the newest gathers what is learned from."""
    epochs: Annotated[Literal["auto"] | Annotated[int, Field(ge=1, le=1_000)], restart("learner")] = "auto"
    """Passes over a batch. auto: 10 where the network is an mlp without memory, else 4."""
    target_kl: Annotated[float | None, Field(gt=0), restart("learner")] = 0.02
    """The steps of a batch end when KL(old || new) of a minibatch is above 1.5 times this; null: never."""

    def sized(self, *, plain: bool) -> Self:
        """With `epochs`."""
        epochs = (10 if plain else 4) if self.epochs == "auto" else self.epochs
        return super().sized(plain=plain).model_copy(update={"epochs": epochs})

    @property
    def passes(self) -> int:
        """Over a batch; of what is `sized`."""
        assert self.epochs != "auto", "sized"
        return self.epochs

    @property
    def budget_rows(self) -> int:
        """One batch: what would be gathered beside it, an older policy would gather."""
        return self.batch_size


class Appo(Clipped, OffPolicy):
    """Asynchronous PPO: the clipped surrogate on experience of older policies, each batch learned from several times.

    Source: IMPACT, Luo et al. 2020, arXiv:1912.00167.
    """

    name: Annotated[Literal["appo"], new_run("learner", "actor", "evaluator")] = "appo"
    unroll_length: Annotated[int, Field(ge=1, le=10_000), restart("learner", "actor", "evaluator")] = 32
    """Steps of a segment, as an actor sends it. Part of the experience schema, which an evaluator announces as well."""
    batch_size: Annotated[int, Field(ge=1), restart("learner")] = 512
    """Agent steps of one batch, over all learners: a multiple of unroll_length."""
    max_lag_versions: Annotated[int, Field(ge=0), restart("learner")] = 8
    """Segments whose first step is older than this many versions are counted and dropped by the learner, when they
    come: what the buffer holds may be older. A version is a batch learned from."""
    reuse: Annotated[Literal["auto"] | Annotated[int, Field(ge=1, le=1_000)], restart("learner")] = "auto"
    """Times that each batch is learned from: at most buffer_batches, or a multiple of it. auto: 8 where the network is
    an mlp without memory, else 2; fewer where 8 is no such number."""
    buffer_batches: Annotated[int, Field(ge=1, le=1_000), restart("learner")] = 4
    """Batches that the circular buffer holds: a batch is learned from as it comes, for the last time when it is the
    oldest of them, and evenly between. 1: each batch alone."""
    target_every_updates: Annotated[int, Field(ge=1), restart("learner")] = 8
    """Versions from one copy of the network to the target network to the next: so long the clip bounds how far the
    policy moves. 1: each version is clipped against the one before, so that nothing bounds several."""
    target_rho_max: Annotated[float, Field(gt=0), restart("learner")] = 2.0
    """Bound of an action's probability under its actor's policy over that under the target network."""
    advantage: Annotated[Literal["vtrace", "gae"], restart("learner")] = "gae"
    """vtrace: as published, from the next row's target. gae: that of GAE where the experience is the learner's own.

    Both are the same for lambda 1.
    """

    def sized(self, *, plain: bool) -> Self:
        """With `reuse`."""
        most, held = 8 if plain else 2, self.buffer_batches
        reuse = (most if held > most else most // held * held) if self.reuse == "auto" else self.reuse
        return super().sized(plain=plain).model_copy(update={"reuse": reuse})

    @property
    def ages(self) -> tuple[int, ...]:
        """The newest, the oldest that the buffer holds, and those evenly between; of what is `sized`."""
        assert self.reuse != "auto", "sized"
        count = min(self.reuse, self.buffer_batches)
        return tuple(round(place * (self.buffer_batches - 1) / max(1, count - 1)) for place in range(count))

    @property
    def passes(self) -> int:
        """More than one where a batch is learned from more often than it is in the buffer; of what is `sized`."""
        assert self.reuse != "auto", "sized"
        return self.reuse // len(self.ages)


PlannedName = Literal["apex_dqn", "r2d2", "sac"]
PLANNED: tuple[str, ...] = get_args(PlannedName)


class Planned(Algorithm):
    """An algorithm that a later release brings; its fields are accepted, the name is refused as not built yet."""

    model_config = ConfigDict(extra="allow")
    name: Annotated[PlannedName, new_run("learner", "actor", "evaluator")]


class External(Algorithm):
    """An algorithm of the user's own, `package.module:Class`; the class checks `params` in the role's environment."""

    name: Annotated[str, Field(pattern=CLASS_PATH), new_run("learner", "actor", "evaluator")]
    params: Annotated[dict[str, Any], restart("learner", "actor", "evaluator")] = {}


KINDS: dict[str, type[Algorithm]] = {
    "impala": Impala, "ppo": Ppo, "appo": Appo, "planned": Planned, "external": External,
}  # fmt: skip
"""By tag; the tag of an algorithm of ours is its name."""
BUILT = tuple(name for name in KINDS if name not in ("planned", "external"))
"""Algorithms of ours that can be used today; the first is the default."""
NEED_REPLAY = ("apex_dqn", "r2d2", "sac")
"""Names of ours, built or not, that learn from a replay."""


def tag(value: Any) -> str | None:
    """Discriminator of an `algorithm:` section: its name; None when that is not text. No name means impala."""
    name = value.get("name") if isinstance(value, dict) else getattr(value, "name", None)
    if not isinstance(name, str):
        return "impala" if name is None else None
    if ":" in name:
        return "external"
    return name if name in KINDS and name != "external" else "planned"


AnyAlgorithm = Annotated[
    Annotated[Impala, Tag("impala")]
    | Annotated[Ppo, Tag("ppo")]
    | Annotated[Appo, Tag("appo")]
    | Annotated[Planned, Tag("planned")]
    | Annotated[External, Tag("external")],
    Discriminator(tag),
]
