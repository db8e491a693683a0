"""Hyperparameters of every algorithm, so that a laptop without torch refuses a bad one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import Discriminator, Field, Tag

from rlctl.spec.base import MUTABLE, Model, new_run, restart
from rlctl.spec.words import CLASS_PATH

ENTROPY_COEF: Final = 0.01
"""Default weight of the entropy, where every action is one of finitely many."""
MOST_DRAWN = 1 << 20
"""Most rows of one draw from a replay: a shard answers no request for more."""


class Schedule(Model):
    """A value over the course of training: from the hyperparameter as it is now to `final`."""

    kind: Annotated[Literal["linear"], restart("learner")] = "linear"
    agent_steps: Annotated[int, Field(ge=1), restart("learner")]
    """Agent steps learned from until the value is `final`, where it stays."""
    final: Annotated[float, Field(ge=0), restart("learner")] = 0.0

    def at(self, consumed_steps: int, start: float) -> float:
        """The value after so many agent steps."""
        done = min(1.0, consumed_steps / self.agent_steps)
        return start + (self.final - start) * done


class Algorithm(Model):
    """Base of all algorithms: the fields that roles read of any of them."""

    needs_replay: ClassVar[bool] = False
    network: ClassVar[Mapping[str, Any]] = {}
    """Defaults of fields of `model` that this algorithm replaces."""
    atari: ClassVar[tuple[Mapping[str, Any], ...]] = ({"reward_clip": 1.0},)
    """Defaults that `env.preset: atari` replaces, as in publications of Atari scores: a group as a whole, and only
    where the spec states none of its fields."""
    lock_step_lag: ClassVar[int] = 1
    """Lag with `sync`, in versions: from the weights that gather a segment to those that learn from it."""

    name: Annotated[str, new_run("learner", "actor", "evaluator")]
    unroll_length: Annotated[int, Field(ge=1, le=10_000), restart("learner", "actor", "evaluator")] = 20
    """Steps of a segment, as an actor sends it. Part of the experience schema, which an evaluator announces as well."""
    batch_size: Annotated[int, Field(ge=1), restart("learner")] = 640
    """Agent steps of one batch, over all learners: a multiple of unroll_length."""
    gamma: Annotated[float, Field(ge=0, le=1), restart("learner"), MUTABLE] = 0.99
    """Discount factor of one agent step."""
    reward_clip: Annotated[float | None, Field(gt=0), restart("learner")] = None
    """Rewards are clipped to [-reward_clip, reward_clip] before learning; evaluation reports them raw. With the preset
    atari 1, but for an algorithm with a name of your own."""
    max_lag_versions: Annotated[int, Field(ge=0), restart("learner")] = 8
    """Segments whose first step is older than this many versions are counted and dropped by the learner. A version is a
    batch learned from."""
    publish_every_updates: Annotated[int, Field(ge=1), restart("learner")] = 1
    """Versions from one publication of weights to the next: batches learned from."""

    @property
    def budget_rows(self) -> int:
        """Rows in the making, in flight or queued, at most: the learner's credit over all actors.

        As many as can be learned from before they are too old, and at least the batch that is learned from beside the
        one that is filled. With lag 0 one batch: what is gathered beside it is too old when its turn comes.
        """
        return (max(2, self.max_lag_versions) if self.max_lag_versions else 1) * self.batch_size

    def actors_at_once(self, envs: int) -> int | None:
        """Number of actors whose experience a batch holds, where a batch is of the newest version alone, as PPO's: more
        actors wait. None: any number may play.

        Args:
            envs: environments of an actor.
        """
        if self.max_lag_versions or self.needs_replay:
            return None
        return self.batch_size // (envs * self.unroll_length)

    @property
    def own_class(self) -> str | None:
        """Class of the user's own, `package.module:Class`; None: a built-in one."""
        return None


class BuiltIn(Algorithm):
    """Base of the algorithms that rlctl brings."""

    class_: Annotated[
        str | None, Field(alias="class", pattern=CLASS_PATH), new_run("learner", "actor", "evaluator")
    ] = None
    """A class of your own in its place, `package.module:Class`, derived from that of the algorithm: it has the settings
    of this section."""
    params: Annotated[dict[str, Any], restart("learner", "actor", "evaluator")] = {}
    """Settings that the class of your own adds; it checks them in the role's environment."""

    @property
    def own_class(self) -> str | None:
        return self.class_


Optimizer = Literal["rmsprop", "adam", "adamw"]


class ActorCritic(BuiltIn):
    """Hyperparameters of algorithms with one network for policy and value. Losses are means over valid rows."""

    reward_scale: Annotated[float, Field(gt=0), restart("learner")] = 1.0
    """Rewards are multiplied by it before learning; evaluation reports them raw."""
    lambda_: Annotated[float, Field(ge=0, le=1, alias="lambda"), restart("learner"), MUTABLE] = 1.0
    """Trace decay lambda."""
    optimizer: Annotated[Optimizer, restart("learner")] = "adam"
    lr: Annotated[float, Field(gt=0, le=1), restart("learner"), MUTABLE] = 3e-4
    """Learning rate of the optimizer."""
    lr_schedule: Schedule | None = None
    """Schedule of lr; null keeps it constant."""
    rmsprop_decay: Annotated[float, Field(gt=0, lt=1), restart("learner")] = 0.99
    """Decay rate of the running mean of squared gradients; rmsprop."""
    adam_beta1: Annotated[float, Field(ge=0, lt=1), restart("learner")] = 0.9
    """Decay rate of the running mean of gradients; adam and adamw."""
    adam_beta2: Annotated[float, Field(ge=0, lt=1), restart("learner")] = 0.999
    """Decay rate of the running mean of squared gradients; adam and adamw."""
    weight_decay: Annotated[float, Field(ge=0, le=1), restart("learner")] = 0.0
    """Decoupled weight decay of adamw: weight matrices shrink by lr x weight_decay in each optimizer step; biases and
    log standard deviations do not."""
    optimizer_eps: Annotated[float, Field(gt=0), restart("learner")] = 1e-5
    """Epsilon of the optimizer, added outside the square root."""
    max_grad_norm: Annotated[float, Field(gt=0), restart("learner")] = 0.5
    """Largest norm of the gradient over all weights; a larger one is scaled down to it."""
    value_coef: Annotated[float, Field(ge=0), restart("learner"), MUTABLE] = 0.5
    """Weight of half the squared value error."""
    entropy_coef: Annotated[Literal["auto"] | Annotated[float, Field(ge=0)], restart("learner"), MUTABLE] = "auto"
    """Weight of the policy's entropy. auto: 0.01 (impala: 0.001) where every action is one of finitely many; 0 where
    one holds real numbers, whose entropy grows without end as the standard deviation does. Left out with impala and the
    preset atari: 0.01."""
    entropy_schedule: Schedule | None = None
    """Schedule of entropy_coef; null keeps it constant."""
    advantage_norm: Annotated[bool, restart("learner")] = False
    """Scale the advantages of a batch to mean 0 and standard deviation 1 over its valid rows."""

    @property
    def schedules(self) -> dict[str, Schedule | None]:
        """Hyperparameter -> its schedule, of those that may have one."""
        return {"lr": self.lr_schedule, "entropy_coef": self.entropy_schedule}

    def entropy_weight(self, continuous: bool) -> float:
        """Weight of the entropy that `entropy_coef` stands for.

        Args:
            continuous: an action holds real numbers.
        """
        if self.entropy_coef == "auto":
            return 0.0 if continuous else ENTROPY_COEF
        return self.entropy_coef

    def settled(self, continuous: bool) -> Self:
        """The same hyperparameters with every `auto` resolved."""
        return self.model_copy(update={"entropy_coef": self.entropy_weight(continuous)})


class OffPolicy(ActorCritic):
    """Hyperparameters of algorithms whose experience may come from older policies, corrected by V-trace."""

    rho_max: Annotated[float, Field(gt=0), restart("learner")] = 1.0
    """Clip of the importance weight rho in the value's target (rho-bar)."""
    c_max: Annotated[float, Field(gt=0), restart("learner")] = 1.0
    """Clip of the trace coefficient c (c-bar)."""
    pg_rho_max: Annotated[float, Field(gt=0), restart("learner")] = 1.0
    """Clip of the importance weight in the policy gradient."""
    advantage: Annotated[Literal["vtrace", "gae"], restart("learner")] = "vtrace"
    """vtrace: as published, from the next row's target. gae: that of GAE where the experience is the learner's own.

    Both are the same for lambda 1.
    """


class Impala(OffPolicy):
    """V-trace actor-critic. Needs no replay.

    Source: Espeholt et al. 2018, arXiv:1802.01561.
    """

    atari: ClassVar[tuple[Mapping[str, Any], ...]] = (
        *OffPolicy.atari,
        {"batch_size": 160, "max_lag_versions": 32},
        {"entropy_coef": 0.01},
    )

    name: Annotated[Literal["impala"], new_run("learner", "actor", "evaluator")] = "impala"
    batch_size: Annotated[int, Field(ge=1), restart("learner")] = 320
    """Agent steps of one batch, over all learners: a multiple of unroll_length. With the preset atari 160."""
    value_batches: Annotated[Literal["auto"] | Annotated[int, Field(ge=0, le=1_000)], restart("learner")] = "auto"
    """After each batch a pass over so many moves the value alone: the newest, and others drawn from the buffer. 0: no
    pass. auto: 8 where value and policy have a torso each, as a plain mlp has, else 0; at most buffer_batches + 1."""
    value_minibatch_size: Annotated[int, Field(ge=1), restart("learner")] = 160
    """Agent steps of an optimizer step of that pass, over all learners."""
    buffer_batches: Annotated[int, Field(ge=0, le=100_000), restart("learner")] = 80
    """Newest batches that the buffer holds copies of, for that pass."""
    max_lag_versions: Annotated[int, Field(ge=0), restart("learner")] = 16
    """Segments whose first step is older than this many versions are counted and dropped by the learner. A version is a
    batch learned from. With the preset atari 32."""
    lambda_: Annotated[float, Field(ge=0, le=1, alias="lambda"), restart("learner"), MUTABLE] = 0.95
    """Trace decay lambda."""
    lr: Annotated[float, Field(gt=0, le=1), restart("learner"), MUTABLE] = 5e-4
    """Learning rate of the optimizer."""
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
    """Schedule of clip; null keeps it constant."""
    value_clip: Annotated[float | None, Field(gt=0), restart("learner")] = None
    """The value moves at most so far from the old one, in units of the value head; null: no limit."""
    target_kl: Annotated[float | None, Field(gt=0), restart("learner")] = None
    """The steps of a batch end when KL(old || new) of a minibatch is above 1.5 times this; null: never."""
    advantage_norm: Annotated[bool, restart("learner")] = True
    """Scale the advantages of a batch to mean 0 and standard deviation 1 over the valid rows of all learners."""

    def sized(self, *, plain: bool) -> Self:
        """The same hyperparameters with every `auto` that depends on the network resolved.

        Args:
            plain: the network is an mlp without memory, whose steps are cheap.
        """
        if self.minibatch_size != "auto":
            return self
        return self.model_copy(update={"minibatch_size": min(64 if plain else 256, self.batch_size)})

    @property
    def schedules(self) -> dict[str, Schedule | None]:
        """Hyperparameter -> its schedule, that of clip included."""
        return super().schedules | {"clip": self.clip_schedule}

    @property
    def ages(self) -> tuple[int, ...]:
        """Ages of the batches that one version is learned from; 0 is the newest."""
        return (0,)

    @property
    def passes(self) -> int:
        """Passes over these batches."""
        return 1

    @property
    def minibatches(self) -> int:
        """Minibatches of one pass; needs the result of `sized`."""
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
        """As in the base class, and `epochs` as a number."""
        epochs = (10 if plain else 4) if self.epochs == "auto" else self.epochs
        return super().sized(plain=plain).model_copy(update={"epochs": epochs})

    @property
    def passes(self) -> int:
        """Passes over a batch; needs the result of `sized`."""
        assert self.epochs != "auto", "sized"
        return self.epochs


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
        """As in the base class, and `reuse` as a number."""
        most, held = 8 if plain else 2, self.buffer_batches
        reuse = (most if held > most else most // held * held) if self.reuse == "auto" else self.reuse
        return super().sized(plain=plain).model_copy(update={"reuse": reuse})

    @property
    def ages(self) -> tuple[int, ...]:
        """Ages of the newest batch, of the oldest in the buffer and of those evenly between; needs the result of
        `sized`."""
        assert self.reuse != "auto", "sized"
        count = min(self.reuse, self.buffer_batches)
        return tuple(round(place * (self.buffer_batches - 1) / max(1, count - 1)) for place in range(count))

    @property
    def passes(self) -> int:
        """Passes: more than one where `reuse` is above `buffer_batches`; needs the result of `sized`."""
        assert self.reuse != "auto", "sized"
        return self.reuse // len(self.ages)


class Replayed(BuiltIn):
    """Hyperparameters of algorithms that learn from a replay. Losses are means over the rows of a minibatch."""

    needs_replay: ClassVar[bool] = True
    network: ClassVar[Mapping[str, Any]] = {"hidden": [128, 128], "activation": "relu"}

    batch_size: Annotated[int, Field(ge=1, le=MOST_DRAWN), restart("learner")] = 1024
    """Rows of one draw, over all learners: a multiple of minibatch_size. A version is a draw learned from."""
    minibatch_size: Annotated[int, Field(ge=1, le=MOST_DRAWN), restart("learner")] = 128
    """Rows of one optimizer step, over all learners."""
    unroll_length: Annotated[int, Field(ge=1, le=10_000), restart("learner", "actor", "evaluator", "replay")] = 16
    """Steps of a segment, as an actor sends it. Part of the experience schema, which an evaluator announces as well."""
    gamma: Annotated[float, Field(ge=0, le=1), restart("learner", "replay"), MUTABLE] = 0.99
    """Discount factor of one agent step."""
    n_step: Annotated[int, Field(ge=1, le=100), restart("learner", "replay")] = 1
    """Rewards of a return before it bootstraps; fewer where the episode ends."""
    reward_scale: Annotated[float, Field(gt=0), restart("learner", "replay")] = 1.0
    """Rewards are multiplied by it before learning; evaluation reports them raw."""
    reward_clip: Annotated[float | None, Field(gt=0), restart("learner", "replay")] = None
    """Scaled rewards are clipped to [-reward_clip, reward_clip] before learning; evaluation reports them raw. With the
    preset atari 1."""
    prioritized: Annotated[bool, new_run("learner", "actor", "evaluator", "replay")] = False
    """Rows are drawn by their priorities, not uniformly."""
    priority_alpha: Annotated[float, Field(ge=0, le=1), restart("replay")] = 0.6
    """Exponent of the priorities: a row is drawn with probability proportional to priority ** alpha; 0: uniform."""
    priority_beta: Annotated[float, Field(ge=0, le=1), restart("learner")] = 0.4
    """Exponent of the importance weights; 1 corrects the non-uniform draw fully."""
    priority_epsilon: Annotated[float, Field(gt=0), restart("replay")] = 1e-6
    """Added to the absolute TD error, so that rows without one stay drawable."""
    lr: Annotated[float, Field(gt=0, le=1), restart("learner"), MUTABLE] = 5e-4
    """Learning rate of Adam."""
    lr_schedule: Schedule | None = None
    """Schedule of the learning rates; null keeps them constant."""
    optimizer_eps: Annotated[float, Field(gt=0), restart("learner")] = 1e-8
    """Epsilon of Adam, added outside the square root."""
    max_grad_norm: Annotated[float | None, Field(gt=0), restart("learner")] = None
    """Largest norm of the gradient over all weights; a larger one is scaled down to it. null: no limit."""
    max_lag_versions: Annotated[Literal[0], restart("learner")] = 0
    """Always 0 and not used: what is drawn may be of any age."""

    @property
    def minibatches(self) -> int:
        """Optimizer steps of a version."""
        return self.batch_size // self.minibatch_size

    @property
    def unit_rows(self) -> int:
        """Rows learned from in one drawn unit: 1, or those of a sequence."""
        return 1

    def samples_per_insert(self, *, images: bool) -> float:
        """Rows drawn for each row inserted, where the spec leaves it to the algorithm.

        Args:
            images: a leaf of the observation has three axes, or two of bytes or bits.
        """
        return 8.0


class QLearning(Replayed):
    """Hyperparameters of Q-learning with a target network, for actions that are finitely many."""

    n_step: Annotated[int, Field(ge=1, le=100), restart("learner", "replay")] = 3
    """Rewards of a return before it bootstraps; fewer where the episode ends."""
    double: Annotated[bool, restart("learner")] = True
    """The network chooses the action whose target value counts (van Hasselt et al. 2016, arXiv:1509.06461)."""
    dueling: Annotated[bool, new_run("learner", "actor", "evaluator")] = False
    """A head for the value and one for the advantages (Wang et al. 2016, arXiv:1511.06581)."""
    huber: Annotated[float | None, Field(gt=0), restart("learner")] = None
    """The loss is linear in errors beyond it; null: squares."""
    max_grad_norm: Annotated[float | None, Field(gt=0), restart("learner")] = 10.0
    """Largest norm of the gradient over all weights; a larger one is scaled down to it. null: no limit."""
    optimizer_eps: Annotated[float, Field(gt=0), restart("learner")] = 1.5e-4
    """Epsilon of Adam, added outside the square root."""
    target_every_updates: Annotated[int, Field(ge=1), restart("learner")] = 32
    """Versions from one update of the target network to the next."""
    tau: Annotated[float, Field(gt=0, le=1), restart("learner")] = 1.0
    """Weight of the network in an update of the target network (Polyak averaging); 1: a copy."""

    def samples_per_insert(self, *, images: bool) -> float:
        """For images as in Mnih et al.: 32 rows for each 4. Small networks profit from more, at little cost."""
        return 8.0 if images else 32.0


class Dqn(QLearning):
    """Deep Q-network: epsilon-greedy actors, uniform replay, a target network.

    Source: Mnih et al. 2015, doi:10.1038/nature14236.
    """

    name: Annotated[Literal["dqn"], new_run("learner", "actor", "evaluator", "replay")] = "dqn"
    epsilon_initial: Annotated[float, Field(ge=0, le=1), restart("learner", "actor", "evaluator")] = 1.0
    """Probability of a random action at the start."""
    epsilon_final: Annotated[float, Field(ge=0, le=1), restart("learner", "actor", "evaluator")] = 0.05
    """Probability of a random action from epsilon_steps on."""
    epsilon_steps: Annotated[int, Field(ge=1), restart("learner", "actor", "evaluator")] = 50_000
    """Agent steps learned from over which it falls, linearly, from epsilon_initial to epsilon_final."""


class Ladder(QLearning):
    """Hyperparameters of Q-learning whose actors' environments explore at rates of their own."""

    prioritized: Annotated[bool, new_run("learner", "actor", "evaluator", "replay")] = True
    """Rows are drawn by their priorities, not uniformly."""
    dueling: Annotated[bool, new_run("learner", "actor", "evaluator")] = True
    """A head for the value and one for the advantages (Wang et al. 2016, arXiv:1511.06581)."""
    max_grad_norm: Annotated[float | None, Field(gt=0), restart("learner")] = 40.0
    """Largest norm of the gradient over all weights; a larger one is scaled down to it. null: no limit."""
    epsilon_base: Annotated[float, Field(ge=0, lt=1), restart("learner", "actor", "evaluator")] = 0.4
    """Largest probability of a random action: that of the environment with u = 0."""
    epsilon_power: Annotated[float, Field(ge=0), restart("learner", "actor", "evaluator")] = 7.0
    """An environment explores with probability epsilon_base ** (1 + epsilon_power u), u from 0 to 1 by its number."""


class ApexDqn(Ladder):
    """Distributed prioritized DQN: each actor's environment explores at a rate of its own.

    Source: Horgan et al. 2018, arXiv:1803.00933.
    """

    name: Annotated[Literal["apex_dqn"], new_run("learner", "actor", "evaluator", "replay")] = "apex_dqn"
    batch_size: Annotated[int, Field(ge=1, le=MOST_DRAWN), restart("learner")] = 512
    """Rows of one draw, over all learners: a multiple of minibatch_size. A version is a draw learned from."""


class R2d2(Ladder):
    """Recurrent Q-learning from sequences: the memory that actors had is stored, and burned in.

    Source: Kapturowski et al. 2019, openreview.net/forum?id=r1lyTjAqYX.
    """

    network: ClassVar[Mapping[str, Any]] = {**Ladder.network, "core": "lstm", "width": 128}
    atari: ClassVar[tuple[Mapping[str, Any], ...]] = ()
    """`value_rescaling` takes the place of clipped rewards, as in the paper."""

    name: Annotated[Literal["r2d2"], new_run("learner", "actor", "evaluator", "replay")] = "r2d2"
    unroll_length: Annotated[int, Field(ge=1, le=10_000), restart("learner", "actor", "evaluator", "replay")] = 40
    """Steps of a segment, as an actor sends it, and from the beginning of one sequence to that of the next. Part of the
    experience schema, which an evaluator announces as well."""
    burn_in: Annotated[int, Field(ge=0, le=10_000), restart("learner", "replay")] = 40
    """Rows before those that are learned from, over which the memory is computed with the present weights: a
    multiple of unroll_length."""
    sequence_length: Annotated[int, Field(ge=1, le=10_000), restart("learner", "replay")] = 80
    """Rows of a sequence that are learned from: a multiple of unroll_length."""
    batch_size: Annotated[int, Field(ge=1, le=MOST_DRAWN), restart("learner")] = 2560
    """Rows of one draw that are learned from, over all learners: sequences x sequence_length, a multiple of
    minibatch_size. A version is a draw learned from."""
    minibatch_size: Annotated[int, Field(ge=1, le=MOST_DRAWN), restart("learner")] = 2560
    """Rows of one optimizer step, over all learners: a multiple of sequence_length."""
    n_step: Annotated[int, Field(ge=1, le=100), restart("learner", "replay")] = 5
    """Rewards of a return before it bootstraps; fewer where the episode or the sequence ends."""
    gamma: Annotated[float, Field(ge=0, le=1), restart("learner", "replay"), MUTABLE] = 0.997
    """Discount factor of one agent step."""
    reward_scale: Annotated[float, Field(gt=0), restart("learner", "actor", "evaluator", "replay")] = 1.0
    """Rewards are multiplied by it before learning, and as the network's input; evaluation reports them raw."""
    reward_clip: Annotated[float | None, Field(gt=0), restart("learner", "actor", "evaluator", "replay")] = None
    """Scaled rewards are clipped to [-reward_clip, reward_clip], likewise."""
    stored_state: Annotated[bool, restart("learner")] = True
    """A sequence begins with the memory that its actor had; false: with zeros."""
    value_rescaling: Annotated[bool, restart("learner", "replay")] = True
    """Values are learned as h(x) = sign(x)(sqrt(|x| + 1) - 1) + 0.001 x, in place of clipped rewards."""
    priority_max: Annotated[float, Field(ge=0, le=1), restart("learner", "replay")] = 0.9
    """Weight of the largest TD error of a sequence's rows in its priority (eta); their mean has the rest."""
    priority_alpha: Annotated[float, Field(ge=0, le=1), restart("replay")] = 0.9
    """Exponent of the priorities: a sequence is drawn with probability proportional to priority ** alpha; 0:
    uniform."""
    priority_beta: Annotated[float, Field(ge=0, le=1), restart("learner")] = 0.6
    """Exponent of the importance weights; 1 corrects the non-uniform draw fully."""
    optimizer_eps: Annotated[float, Field(gt=0), restart("learner")] = 1e-5
    """Epsilon of Adam, added outside the square root. The loss is a mean over rows: the paper's 1e-3 is of sums of
    sequence_length."""

    @property
    def unit_rows(self) -> int:
        return self.sequence_length


class Continuous(Replayed):
    """Hyperparameters of actor-critics with two critics, for actions that are real numbers with bounds; sac also for
    options."""

    network: ClassVar[Mapping[str, Any]] = {"hidden": [256, 256], "activation": "relu"}

    batch_size: Annotated[int, Field(ge=1, le=MOST_DRAWN), restart("learner")] = 2048
    """Rows of one draw, over all learners: a multiple of minibatch_size. A version is a draw learned from."""
    minibatch_size: Annotated[int, Field(ge=1), restart("learner", "replay")] = 256
    """Rows of one optimizer step, over all learners."""
    unroll_length: Annotated[int, Field(ge=1, le=10_000), restart("learner", "actor", "evaluator", "replay")] = 8
    """Steps of a segment, as an actor sends it. Part of the experience schema, which an evaluator announces as well."""
    lr: Annotated[float, Field(gt=0, le=1), restart("learner"), MUTABLE] = 3e-4
    """Learning rate of Adam."""
    critic_lr: Annotated[float | None, Field(gt=0, le=1), restart("learner"), MUTABLE] = None
    """Learning rate of the critics; null: lr."""
    tau: Annotated[float, Field(gt=0, le=1), restart("learner")] = 0.005
    """Weight of the networks in an update of the target networks (Polyak averaging), after each optimizer step."""
    random_steps: Annotated[int, Field(ge=0), restart("learner", "actor", "evaluator")] = 1
    """Actions are uniformly random while the weights were learned from fewer agent steps. 1: until the first update,
    which replay.learning_starts decides; 0: never."""

    def samples_per_insert(self, *, images: bool) -> float:
        """One optimizer step for each row inserted."""
        return float(self.minibatch_size)


class Sac(Continuous):
    """Soft actor-critic with a learned temperature, over real numbers or over options.

    Source: Haarnoja et al. 2018, arXiv:1812.05905; Christodoulou 2019, arXiv:1910.07207.
    """

    network: ClassVar[Mapping[str, Any]] = {**Continuous.network, "gaussian": {"std": "network", "squash": True}}

    name: Annotated[Literal["sac"], new_run("learner", "actor", "evaluator", "replay")] = "sac"
    temperature: Annotated[Literal["auto"] | Annotated[float, Field(gt=0)], new_run("learner")] = "auto"
    """Weight of the entropy. auto: learned, from 1, so that the entropy comes to target_entropy."""
    temperature_lr: Annotated[float | None, Field(gt=0, le=1), restart("learner"), MUTABLE] = None
    """Learning rate of the temperature; null: lr."""
    target_entropy: Annotated[Literal["auto"] | float, restart("learner")] = "auto"
    """Entropy that the temperature is learned for, in nats, of actions in units of half the width of their bounds.
    auto: -1 for each number of an action; of options half of the most that there can be, the sum over the choices of
    log(options), of those that are legal."""


class Td3(Continuous):
    """Twin delayed deep deterministic policy gradient.

    Source: Fujimoto et al. 2018, arXiv:1802.09477.
    """

    name: Annotated[Literal["td3"], new_run("learner", "actor", "evaluator", "replay")] = "td3"
    policy_every: Annotated[int, Field(ge=1, le=100), restart("learner")] = 2
    """Optimizer steps of the critics for one of the policy and of the target networks; batch_size is a multiple of
    minibatch_size x policy_every."""
    exploration_noise: Annotated[float, Field(ge=0), restart("learner", "actor", "evaluator")] = 0.1
    """Standard deviation of the noise on actions, in units of half the width of their bounds."""
    target_noise: Annotated[float, Field(ge=0), restart("learner")] = 0.2
    """Standard deviation of the noise on the actions of targets, in the same units."""
    target_noise_clip: Annotated[float, Field(ge=0), restart("learner")] = 0.5
    """That noise is clipped to [-target_noise_clip, target_noise_clip]."""


class External(Algorithm):
    """An algorithm of the user's own, `package.module:Class`; the class checks `params` in the role's environment."""

    atari: ClassVar[tuple[Mapping[str, Any], ...]] = ()
    """No defaults: the class decides what its loss does with rewards, and has defaults of its own."""

    name: Annotated[str, Field(pattern=CLASS_PATH), new_run("learner", "actor", "evaluator")]
    params: Annotated[dict[str, Any], restart("learner", "actor", "evaluator")] = {}
    """Settings of the class; it checks them in the role's environment."""

    @property
    def own_class(self) -> str:
        return self.name


KINDS: dict[str, type[Algorithm]] = {
    "impala": Impala, "ppo": Ppo, "appo": Appo, "dqn": Dqn, "apex_dqn": ApexDqn, "r2d2": R2d2, "sac": Sac, "td3": Td3,
    "external": External,
}  # fmt: skip
"""Tag -> class of an algorithm; the tag of an algorithm of ours is its name."""
BUILT = tuple(name for name in KINDS if name != "external")
"""Algorithms of ours; the first is the default."""
NEED_REPLAY = tuple(name for name in BUILT if KINDS[name].needs_replay)
"""Algorithms of ours that learn from a replay."""


def tag(value: Any) -> str | None:
    """Discriminator of an `algorithm:` section: its name; None when no algorithm has it. No name means impala."""
    name = value.get("name") if isinstance(value, dict) else getattr(value, "name", None)
    if not isinstance(name, str):
        return "impala" if name is None else None
    if ":" in name:
        return "external"
    return name if name in BUILT else None


AnyAlgorithm = Annotated[
    Annotated[Impala, Tag("impala")]
    | Annotated[Ppo, Tag("ppo")]
    | Annotated[Appo, Tag("appo")]
    | Annotated[Dqn, Tag("dqn")]
    | Annotated[ApexDqn, Tag("apex_dqn")]
    | Annotated[R2d2, Tag("r2d2")]
    | Annotated[Sac, Tag("sac")]
    | Annotated[Td3, Tag("td3")]
    | Annotated[External, Tag("external")],
    Discriminator(tag),
]
