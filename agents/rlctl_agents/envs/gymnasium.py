"""Gymnasium environments: batched simulators where they are registered, else environments that are stepped in turn."""

from __future__ import annotations

import bdb
import inspect
import traceback
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers import TimeLimit
from numpy.typing import NDArray

from rlctl_agents.envs.answers import raised, reward_number, scalars_fault, truth, values_fault
from rlctl_agents.envs.base import Env, EnvError, EnvRefused, RenderMode, Wrapping, chosen_seeds, not_finite
from rlctl_agents.envs.check import outside
from rlctl_agents.envs.convert import Codec, GymLeaf, to_ours
from rlctl_agents.envs.masks import MaskError, each_choice_has_one, flattened
from rlctl_agents.envs.names import missing
from rlctl_agents.envs.registered import unknown
from rlctl_agents.envs.wrapping import LIFE, MASK, MASKS, around
from rlctl_agents.types.experience import Array, Arrays, Decisions
from rlctl_agents.types.figures import info_numbers
from rlctl_agents.types.spaces import Box, Spaces, choices, leaves

Flags = NDArray[np.bool_]
PLAIN = Wrapping()
FRAMES_PER_S = 30.0
"""Frames per second of rendering for a simulator that does not state them."""


def make(
    id: str,
    envs: int,
    seeds: Sequence[int],
    kwargs: Mapping[str, Any],
    max_episode_steps: int | None,
    wrapping: Wrapping = PLAIN,
    render_mode: RenderMode | None = None,
) -> Env:
    """Make environments by registered id, `Id-v0` or `module:Id-v0`.

    Raises:
        EnvRefused: not registered, a package is missing, its constructor failed, or a space is not supported.
    """
    limit = {} if max_episode_steps is None else {"max_episode_steps": max_episode_steps * wrapping.repeats}
    shown = {} if render_mode is None else {"render_mode": render_mode}

    def one() -> Any:
        return around(gymnasium.make(id, disable_env_checker=True, **limit, **{**kwargs, **shown}), wrapping)

    first = _built(one, id)
    _must_show(first, id, render_mode)
    vector = None if wrapping != PLAIN or shown else _registered_vector(first, envs, id)
    if vector is None:
        singles = [first, *(_built(one, id) for _ in range(envs - 1))]
        return Singles(id, singles, seeds, frame_skip=_frame_skip(first) * wrapping.repeats, repeats=wrapping.repeats)
    first.close()
    return Batched(id, vector, seeds, frame_skip=_frame_skip(first))


def make_from(
    id: str,
    factory: Any,
    envs: int,
    seeds: Sequence[int],
    kwargs: Mapping[str, Any],
    max_episode_steps: int | None,
    wrapping: Wrapping = PLAIN,
    render_mode: RenderMode | None = None,
) -> Env:
    """Make environments by a user's own class or function that returns one Gymnasium environment, or a vector of them:
    a class of vectors, or a function with an argument `num_envs`.

    Raises:
        EnvRefused: it failed, returned something else, or a space is not supported.
    """
    if _makes_vectors(factory):
        if wrapping != PLAIN:
            raise EnvRefused(
                f"{id} is a vector: env.wrappers, action_repeat, episodic_life, grayscale and resize are for single "
                "environments; wrap it in a function of your own"
            )
        if render_mode is not None:
            raise EnvRefused(f"{id} is a vector, and shows none of its environments")
        constructor: Any = factory
        limit = {} if max_episode_steps is None else {"max_episode_steps": max_episode_steps}
        vector = _built(lambda: constructor(num_envs=envs, **limit, **kwargs), id)
        if not isinstance(vector, VectorEnv) or vector.num_envs != envs:
            got = str(vector.num_envs) if isinstance(vector, VectorEnv) else type(vector).__name__
            raise EnvRefused(f"{id}: asked for a gymnasium.vector.VectorEnv of {envs} environments, got {got}")
        mode = vector.metadata.get("autoreset_mode")
        if not isinstance(mode, AutoresetMode):
            raise EnvRefused(
                f'{id}: metadata["autoreset_mode"] must be one of gymnasium.vector.AutoresetMode, got {mode}'
            )
        return (Batched if mode is AutoresetMode.NEXT_STEP else Resetting)(id, vector, seeds)

    def one() -> Any:
        env = factory(**{**kwargs, **({} if render_mode is None else {"render_mode": render_mode})})
        if not isinstance(env, gymnasium.Env):
            raise EnvRefused(
                f"{id} gave a {type(env).__name__}, not a gymnasium.Env: derive it from that class (gym.Env is not); "
                "an environment of rlctl's own protocol takes an argument named envs"
            )
        limited = env if max_episode_steps is None else TimeLimit(env, max_episode_steps * wrapping.repeats)
        return around(limited, wrapping)

    singles = [_built(one, id) for _ in range(envs)]
    _must_show(singles[0], id, render_mode)
    skip = _frame_skip(singles[0]) * wrapping.repeats
    return Singles(id, singles, seeds, frame_skip=skip, repeats=wrapping.repeats)


def _makes_vectors(factory: Any) -> bool:
    if inspect.isclass(factory):
        return issubclass(factory, VectorEnv)
    try:
        return "num_envs" in inspect.signature(factory).parameters
    except (TypeError, ValueError):  # written in C, without a signature
        return False


def _must_show(env: Any, id: str, mode: RenderMode | None) -> None:
    """Refuse a window of an environment that states its render modes, and no `human` among them: it would open none."""
    modes = env.metadata.get("render_modes") if mode == "human" else None
    if modes and mode not in modes:
        films = "; --video DIR makes GIFs" if "rgb_array" in modes else ""
        raise EnvRefused(
            f"{id} has no render mode human, only {', '.join(map(str, modes))}: no window would open{films}"
        )


class _Vector(ABC):
    """Common base of both kinds: spaces, flags, and faults in words."""

    def __init__(
        self, name: str, obs_space: Any, action_space: Any, seeds: Sequence[int], frame_skip: int, masked: bool
    ) -> None:
        self._name = name
        self._seeds = list(seeds)
        self._obs = Codec(obs_space, "obs")
        self._action = Codec(action_space, "action")
        self._float_leaves = [leaf.name for leaf in self._obs.leaves if leaf.dtype.kind == "f"]
        both = zip(self._obs.leaves, leaves(self._obs.space, "obs"), strict=True)
        self._finite_sets = [(leaf, ours) for leaf, (_, ours) in both if not isinstance(ours, Box)]
        self.spaces = Spaces(self._obs.space, self._action.space, legal=masked)
        self.envs = len(self._seeds)
        self.frame_skip = frame_skip
        self._slot = np.arange(self.envs)
        self._steps = 0
        self._ended = np.zeros(len(self._seeds), np.bool_)
        self._fresh_ones = self._ended  # environments that begin an episode with the newest answer
        self._over = False  # True if any of `_ended`
        self._choices = choices(self._action.space)
        self._legal: Flags | None = np.ones((self.envs, sum(self._choices)), np.bool_) if masked else None

    def _begin(self, seeds: Sequence[int] | None) -> None:
        self._seeds = chosen_seeds(seeds, self._seeds)
        self._steps = 0

    def _begun(self, obs: Arrays) -> Decisions:
        """Decisions after a reset."""
        told = None if self._choices else self._told(0)
        if isinstance(told, Mapping) and MASK in told:
            raise EnvRefused(
                f'{self._name} tells info["{MASK}"], or has {MASKS}(), but its action, {self._action.space}, '
                "cannot be masked: only Discrete and MultiDiscrete can; take it out of info, or wrap the environment "
                "by DiscretizeAction"
            )
        no = np.zeros(self.envs, np.bool_)
        self._ended, self._over, self._fresh_ones = no, False, ~no
        return self._checked(Decisions(self._slot, obs, np.zeros(self.envs, np.float32), no, no, ~no, self._legal))

    def _stepped(self, obs: Arrays, reward: NDArray[Any], terminated: Flags, truncated: Flags) -> Decisions:
        """Decisions after a step; the row that begins an episode carries neither reward nor flag."""
        first, self._ended = self._ended, terminated | truncated
        self._fresh_ones = first
        if self._over:
            reward, terminated, truncated = np.where(first, 0, reward), terminated & ~first, truncated & ~first
            self._ended = terminated | truncated
        self._over, info, life = bool(self._ended.any()), None, None
        if self._over and self._tells:
            told = {slot: self._told(slot) for slot in np.flatnonzero(self._ended).tolist()}
            info = {slot: info_numbers(one) for slot, one in told.items() if not _of_life(one)}
            if len(info) < len(told):
                life = self._ended.copy()
                life[list(info)] = False
        reward = reward.astype(np.float32, copy=False)
        return self._checked(Decisions(self._slot, obs, reward, terminated, truncated, first, self._legal, info, life))

    @property
    def _tells(self) -> bool:
        """False if the `info` of the newest step is empty for all environments."""
        return True

    @abstractmethod
    def _told(self, index: int) -> Any:
        """`info` of one environment's newest step."""

    def _checked(self, decisions: Decisions) -> Decisions:
        if not np.isfinite(decisions.reward).all():
            row = int(np.isfinite(decisions.reward).argmin())
            what = f"step returned {not_finite(decisions.reward[row], 'reward')}"
            raise self._fault(what, int(decisions.slot[row]))
        for name in self._float_leaves:
            array: NDArray[np.float32] = decisions.obs[name]  # type: ignore[assignment]
            if not np.isfinite(array).all():
                where = np.argwhere(~np.isfinite(array))[0]
                index, what = int(decisions.slot[where[0]]), not_finite(array[tuple(where)], f"in observation {name}")
                raise self._fault(f"{self._verb(index)} returned {what}", index)
        for leaf, ours in self._finite_sets:
            whole: NDArray[Any] = decisions.obs[leaf.name]
            odd = outside(ours, whole)
            if odd.any():
                row = int(np.argwhere(odd)[0][0])
                got = whole[row] if leaf.start is None else whole[row] + leaf.start.reshape(leaf.shape)
                verb = self._verb(index := int(decisions.slot[row]))
                what = f"{verb} returned {got.tolist()} in observation {leaf.name}, outside {leaf.space}"
                raise self._fault(what, index)
        if decisions.legal is not None:
            some = each_choice_has_one(decisions.legal, self._choices)
            stuck = ~(some | decisions.terminated)  # what is cut short is learned from as any other decision
            if stuck.any():
                index = int(decisions.slot[stuck.argmax()])
                raise self._fault(f"{self._verb(index)} returned action_mask without any legal action", index)
        return decisions

    def _verb(self, index: int) -> str:
        """Method that returned the newest answer of one environment: reset or step."""
        return "step" if self._steps and not self._fresh_ones[index] else "reset"

    def _write_mask(self, info: Any, index: int, *, terminated: bool = False) -> None:
        """Store the mask in one environment's `info`; where an episode has terminated, it may be missing: nothing is
        learned from what comes after. One that was cut short goes on, in what is learned."""
        if self._legal is None:
            return
        mask = info.get(MASK) if isinstance(info, Mapping) else None
        if mask is None and terminated:
            self._legal[index] = True
            return
        try:
            self._legal[index] = flattened(self._action.space, mask)
        except MaskError as error:
            raise self._fault(
                f'{self._verb(index)} returned info["{MASK}"] {error} with every reset and step', index
            ) from None

    def _no_mask(self, info: Any, index: int) -> None:
        """Refuse a mask in a step if the reset had none: it would be ignored."""
        if self._choices and isinstance(info, Mapping) and MASK in info:
            what = f'step returned info["{MASK}"], but reset did not: return it with every reset and step'
            raise self._fault(what, index)

    def _must_hold(self, verb: str, answer: Any, index: int) -> None:
        """Refuse an answer that lacks values of Gymnasium's interface."""
        found = values_fault(verb, answer)
        if found is not None:
            raise self._fault(found, index)

    def _fault(self, what: str, index: int) -> EnvError:
        return EnvError.at(what, self._name, self._seeds[index], self._steps)


class Batched(_Vector):
    """A vector that simulates all its environments at once. Its one random generator is seeded from all seeds."""

    def __init__(self, name: str, vector: VectorEnv, seeds: Sequence[int], frame_skip: int = 1) -> None:
        spaces = vector.single_observation_space, vector.single_action_space
        super().__init__(name, *spaces, seeds, frame_skip, _masks(vector, spaces[1]))
        self._vector, self._seed, self._at_once = vector, 0, False
        self._info: Any = {}  # of the newest step

    def reset(self, seeds: Sequence[int] | None = None) -> Decisions:
        self._begin(seeds)
        self._seed = int(np.random.SeedSequence(self._seeds).generate_state(1)[0])
        obs = self._reset(seed=self._seed)
        self._write_masks(self._slot)
        return self._begun(obs)

    def step(self, slot: NDArray[np.int64], action: Arrays) -> Decisions:
        return self._stepped(*self._answered(action))

    def close(self) -> None:
        self._vector.close()

    def _fault(self, what: str, index: int) -> EnvError:
        return EnvError.at(what, self._name, self._seed, self._steps)

    def _reset(self, **given: Any) -> Arrays:
        """Observations that the vector's reset returns."""
        try:
            answer = self._vector.reset(**given)
        except (Exception, SystemExit) as error:
            raise self._fault(raised("reset", self._vector, error), 0) from error
        self._must_hold("reset", answer, 0)
        self._info = answer[1]
        return self._observed("reset", answer[0])

    def _answered(self, action: Arrays) -> tuple[Arrays, NDArray[Any], Flags, Flags]:
        """Observations, rewards and flags of a step of the vector."""
        self._steps, self._fresh_ones = self._steps + 1, self._ended
        try:
            answer = self._vector.step(self._action.batched(action))
        except (Exception, SystemExit) as error:
            raise self._fault(raised("step", self._vector, error), 0) from error
        self._must_hold("step", answer, 0)
        value, reward, ended, cut, self._info = answer
        terminated, truncated = self._flags("terminated", ended), self._flags("truncated", cut)
        if self._legal is not None:
            self._write_masks(self._slot, None if self._at_once else terminated)
        elif self._steps == 1:
            self._no_mask(self._info, 0)
        return self._observed("step", value), self._column("reward", reward), terminated, truncated

    def _write_masks(self, slot: NDArray[np.int64], terminated: Flags | None = None) -> None:
        for index in slot.tolist() if self._legal is not None else ():
            told = of_one(self._info, index, self.envs)
            self._write_mask(told, index, terminated=terminated is not None and bool(terminated[index]))

    @property
    def _tells(self) -> bool:
        return isinstance(self._info, Mapping) and len(self._info) > 0

    def _told(self, index: int) -> Any:
        return of_one(self._info, index, self.envs)

    def _observed(self, verb: str, value: Any) -> Arrays:
        try:
            picked = [leaf.pick(value) for leaf in self._obs.leaves]
        except (KeyError, IndexError, TypeError) as error:
            what = f"observation that lacks a part of its space: {type(error).__name__}: {error}"
            raise self._fault(f"{verb} returned an {what}", 0) from error
        for leaf, one in zip(self._obs.leaves, picked, strict=True):
            if not isinstance(one, np.ndarray) or one.shape != (self.envs, *leaf.raw):
                got = f"{one.dtype} {list(one.shape)}" if isinstance(one, np.ndarray) else type(one).__name__
                what = f"observation {leaf.name} as {got}, not a NumPy array of shape {[self.envs, *leaf.raw]}"
                raise self._fault(f"{verb} returned {what}", 0)
            if one.dtype != leaf.dtype and not leaf.holds(one):
                what = f"observation {leaf.name} of {one.dtype} that {leaf.dtype} of its space cannot hold"
                raise self._fault(f"{verb} returned {what}", 0)
        return self._obs.observations(picked)

    def _column(self, name: str, values: Any) -> NDArray[Any]:
        """One number per environment, [envs]; other values are refused."""
        column = np.asarray(values)
        if column.shape != (self.envs,) or column.dtype.kind not in "biuf":
            raise self._fault(
                f"step returned {name} {column.dtype} {list(column.shape)}; a vector of environments gives one number "
                f"per environment: return a NumPy array of shape [{self.envs}]",
                0,
            )
        return column

    def _flags(self, name: str, values: Any) -> Flags:
        """One flag per environment, [envs] bool or 0 and 1; NaN and other numbers are true to NumPy and are refused."""
        column = self._column(name, values)
        flags = column.astype(np.bool_, copy=False)
        odd = column != flags
        if odd.any():
            raise self._fault(f"step returned {name} {column[odd][0]}, not a bool", int(odd.argmax()))
        return flags


class Resetting(Batched):
    """A vector that begins new episodes in the same step (SAME_STEP) or at a reset with a mask (DISABLED).

    Its next step needs an action for the first observation of every new episode. So first decisions come alone, in an
    answer of their own after the one with the ends; meanwhile the actions of the other environments are held.
    """

    all_wait = False
    """Not every answer has a decision of each environment."""

    def __init__(self, name: str, vector: VectorEnv, seeds: Sequence[int]) -> None:
        super().__init__(name, vector, seeds)
        self._at_once = vector.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
        self._begins: Arrays = {}  # observations of all environments after the newest ends
        self._next_legal: Flags | None = None  # masks of all environments after the newest ends
        self._held: dict[str, NDArray[Any]] | None = None  # actions of all, while some new episodes wait for theirs

    def reset(self, seeds: Sequence[int] | None = None) -> Decisions:
        self._held = None
        return super().reset(seeds)

    def step(self, slot: NDArray[np.int64], action: Arrays) -> Decisions:
        if self._over:
            self._held = {name: np.array(values) for name, values in action.items()}
            return self._new_episodes()
        if self._held is not None:
            for name, values in action.items():
                self._held[name][slot] = values
            action, self._held = dict(self._held), None
        obs, *outcome = self._answered(action)
        if self._at_once:
            ended = np.flatnonzero(outcome[1] | outcome[2])
            obs = self._with_last(obs, ended)
            self._last_masks(ended, outcome[1])
        return self._stepped(obs, *outcome)

    def _last_masks(self, ended: NDArray[np.int64], terminated: Flags) -> None:
        """Store the masks of observations that end an episode in place of those that begin the next one."""
        if self._legal is not None and ended.size:
            self._next_legal = self._legal.copy()
            for index in ended.tolist():
                told = self._told(index) if self._info.get("final_info") is not None else None
                self._write_mask(told, index, terminated=bool(terminated[index]))

    def _with_last(self, obs: Arrays, ended: NDArray[np.int64]) -> Arrays:
        """Observations with those that ended an episode in place of those that begin the next one."""
        if not ended.size:
            return obs
        self._begins, whole = obs, {name: np.array(leaf) for name, leaf in obs.items()}
        last = self._info.get("final_obs") if isinstance(self._info, Mapping) else None
        one_by_one = isinstance(last, np.ndarray) and last.dtype == object
        for index in ended.tolist():
            try:
                for leaf in self._obs.leaves:
                    value = np.asarray(leaf.pick(last[index]) if one_by_one else leaf.pick(last)[index])  # type: ignore[index]
                    if value.shape != leaf.raw or not leaf.holds(value):
                        got, space = f"{value.dtype} {list(value.shape)}", f"{leaf.dtype} {list(leaf.raw)}"
                        raise self._fault(f'info["final_obs"] holds {leaf.name} as {got}, and its space {space}', index)
                    whole[leaf.name][index] = leaf.observed(value[None])[0]
            except (KeyError, IndexError, TypeError, ValueError) as error:
                raise self._fault(
                    'step ended an episode without its observation in info["final_obs"]', index
                ) from error
        return dict(whole)

    def _new_episodes(self) -> Decisions:
        """First decisions of the environments that have ended, and of no others."""
        slot, self._fresh_ones = np.flatnonzero(self._ended), self._ended
        if not self._at_once:
            self._begins = self._reset(options={"reset_mask": self._ended.copy()})
            self._write_masks(slot)
        elif self._legal is not None and self._next_legal is not None:
            self._legal[slot] = self._next_legal[slot]
        self._ended, self._over = np.zeros(self.envs, np.bool_), False
        no = np.zeros(slot.size, np.bool_)
        obs = {name: leaf[slot] for name, leaf in self._begins.items()}
        legal = None if self._legal is None else self._legal[slot]
        return self._checked(Decisions(slot, obs, np.zeros(slot.size, np.float32), no, no, ~no, legal))

    def _told(self, index: int) -> Any:
        last = self._info.get("final_info") if isinstance(self._info, Mapping) else None
        if last is None:
            return super()._told(index)
        return of_one(last, index, self.envs) if isinstance(last, Mapping) else last[index]


class Singles(_Vector):
    """Environments that are stepped one after the other; observations are written into arrays that are reused."""

    def __init__(
        self, name: str, singles: Sequence[Any], seeds: Sequence[int], frame_skip: int = 1, *, repeats: int = 1
    ) -> None:
        first = singles[0]
        masked = _masks(first, first.action_space)
        super().__init__(name, first.observation_space, first.action_space, seeds, frame_skip, masked)
        self._singles, self._repeats = singles, repeats
        self._infos: list[Any] = [None] * self.envs  # of the newest step of each
        self._rest = np.zeros(self.envs, np.bool_)
        self._raw = [np.zeros((self.envs, *leaf.raw), leaf.dtype) for leaf in self._obs.leaves]

    def reset(self, seeds: Sequence[int] | None = None) -> Decisions:
        self._begin(seeds)
        self._rest[:] = False
        index = 0
        try:
            for index, seed in enumerate(self._seeds):
                self._write(index, self._fresh(index, seed=int(seed)))
                self._write_mask(self._infos[index], index)
        except EnvError:
            raise
        except (Exception, SystemExit) as error:
            raise self._fault(raised("reset", self._singles[index], error), index) from error
        return self._begun(self._obs.observations(self._raw))

    def step(self, slot: NDArray[np.int64], action: Arrays) -> Decisions:
        self._steps += 1
        reward = np.zeros(self.envs, np.float32)
        terminated, truncated = np.zeros(self.envs, np.bool_), np.zeros(self.envs, np.bool_)
        ended, rest, self._fresh_ones = self._ended.tolist(), self._rest.tolist(), self._ended
        index = 0
        try:
            for index, (env, act) in enumerate(zip(self._singles, self._action.singles(action), strict=True)):
                if rest[index]:
                    continue
                if ended[index]:
                    obs = self._fresh(index)
                else:
                    answer = env.step(act)
                    try:
                        obs, earned, over, cut, self._infos[index] = answer
                        terminated[index], truncated[index] = truth(over), truth(cut)
                        reward[index] = reward_number(earned)
                    except (TypeError, ValueError, OverflowError) as error:
                        self._must_hold("step", answer, index)
                        raise self._fault(scalars_fault(answer), index) from error
                self._write(index, obs)
                if self._legal is not None:
                    self._write_mask(self._infos[index], index, terminated=bool(terminated[index]))
                elif self._steps == 1:
                    self._no_mask(self._infos[index], index)
        except EnvError:
            raise
        except (Exception, SystemExit) as error:
            verb = "reset" if ended[index] else "step"
            raise self._fault(raised(verb, self._singles[index], error), index) from error
        return self._stepped(self._obs.observations(self._raw), reward, terminated, truncated)

    def rest(self, env: NDArray[np.int64]) -> None:
        self._rest[env] = True
        if self._legal is not None:
            self._legal[env] = True  # at its end an episode may leave nothing to do

    @property
    def frames_per_s(self) -> float:
        said = getattr(self._singles[0], "metadata", {}).get("render_fps")
        return (float(said) if isinstance(said, (int, float)) and said > 0 else FRAMES_PER_S) / self._repeats

    def frame(self) -> NDArray[np.uint8] | None:
        if getattr(self._singles[0], "render_mode", None) == "human":
            return None  # each step has drawn
        try:
            drawn = self._singles[0].render()
        except Exception as error:
            raise self._fault(raised("render", self._singles[0], error), 0) from error
        if drawn is None:
            return None
        frame = np.asarray(drawn)
        if frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8:
            raise self._fault(f"render returned {frame.dtype} {list(frame.shape)}, not uint8 [height, width, 3]", 0)
        return frame

    def close(self) -> None:
        with ExitStack() as stack:  # each, also where one raises
            for env in reversed(self._singles):
                stack.callback(env.close)

    def _told(self, index: int) -> Any:
        return self._infos[index]

    def _fresh(self, index: int, **seed: int) -> Any:
        """Reset one environment, and return the first observation of its episode."""
        answer = self._singles[index].reset(**seed)
        self._must_hold("reset", answer, index)
        self._infos[index] = answer[1]
        return answer[0]

    def _write(self, index: int, obs: Any) -> None:
        """Write one environment's observation into the arrays; values that do not fit their space are refused."""
        for leaf, raw in zip(self._obs.leaves, self._raw, strict=True):
            try:
                part = leaf.pick(obs)
            except (KeyError, IndexError, TypeError) as error:
                raise self._fault(f"{self._verb(index)} returned an observation without {leaf.name}", index) from error
            try:
                value = np.asarray(part)
            except Exception as error:  # of a tensor on a GPU, or one with a gradient
                what = f"observation {leaf.name} that is no array of shape {leaf.raw}: {error}"
                raise self._fault(f"{self._verb(index)} returned {what}", index) from error
            if value.shape != leaf.raw or value.dtype != leaf.dtype:
                self._must_fit(leaf, value, index)
            raw[index] = value

    def _must_fit(self, leaf: GymLeaf, value: Array, index: int) -> None:
        if value.shape != leaf.raw:
            what = f"of shape {value.shape}, its space says {leaf.raw}"
        else:
            with suppress(TypeError, ValueError):  # text, or objects
                if leaf.holds(value):
                    return
            what = f"of {value.dtype} that {leaf.dtype} of its space cannot hold"
        raise self._fault(f"{self._verb(index)} returned observation {leaf.name} {what}", index)


def of_one(info: Any, index: int, envs: int) -> dict[str, Any]:
    """One environment's part of the `info` of a vector: arrays `name`, or a dict of them; the flags `_name` mark the
    environments that have an entry."""
    found: dict[str, Any] = {}
    for name, values in info.items() if isinstance(info, Mapping) else ():
        if not isinstance(name, str):
            continue
        has = info.get(f"_{name}")
        if (getattr(has, "shape", ()) == (envs,) and not has[index]) or (name[:1] == "_" and name[1:] in info):
            continue
        if isinstance(values, Mapping):
            found[name] = of_one(values, index, envs)
        elif getattr(values, "shape", ())[:1] == (envs,):
            found[name] = values[index]
    return found


def _masks(env: Any, action: Any) -> bool:
    """True if the environment reports legal actions in `info["action_mask"]`, and its action has choices.

    A reset shows it. If that fails, the first reset of a run fails too, with the reason.
    """
    try:
        return bool(choices(to_ours(action, "action"))) and MASK in env.reset(seed=0)[1]
    except bdb.BdbQuit as error:
        raise EnvRefused("q at a breakpoint ended its reset") from error
    except Exception:
        return False


def _of_life(info: Any) -> bool:
    """True if an episode's end is the loss of a life: the game goes on."""
    return isinstance(info, Mapping) and LIFE in info


def _frame_skip(env: Any) -> int:
    """Simulator frames per step, where the environment is registered with a fixed number of them (ALE); else 1."""
    spec = env.unwrapped.spec
    skip = spec.kwargs.get("frameskip", 1) if spec is not None else 1
    return skip if isinstance(skip, int) else 1


def _built(constructor: Callable[[], Any], id: str) -> Any:
    """Call the constructor of an environment, with its faults in words."""
    try:
        with warnings.catch_warnings():
            # from importing Box2D; as an error it would end the process. Gone once Box2D uses SWIG 4.4 (swig/swig#2881)
            warnings.filterwarnings("ignore", "builtin type [Ss]wig", DeprecationWarning)
            return constructor()
    except EnvRefused:
        raise
    except Exception as error:
        if isinstance(error, (ImportError, gymnasium.error.DependencyNotInstalled)):
            raise missing(id, error) from error
        if isinstance(error, gymnasium.error.UnregisteredEnv):
            raise EnvRefused(unknown(id)) from error
        kind = "" if isinstance(error, gymnasium.error.Error) else f"{type(error).__name__}: "
        raise EnvRefused(f"cannot make {id}: {kind}{str(error) or _place(error)}") from error


def _place(error: Exception) -> str:
    """Innermost line from which an exception without a message comes."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{frame.line} ({frame.filename}, line {frame.lineno})"


def _registered_vector(single: Any, envs: int, id: str) -> VectorEnv | None:
    """The environment's registered batched simulator, if it takes the same arguments, has the same spaces as the single
    environment (ALE's has not: it is the preset), and resets at the next step; else None."""
    spec: EnvSpec = single.spec
    entry = spec.vector_entry_point
    if entry is None or spec.additional_wrappers:
        return None
    creator = entry if callable(entry) else _built(lambda: load_env_creator(entry), id)
    arguments = dict(spec.kwargs)
    if spec.max_episode_steps is not None:
        arguments["max_episode_steps"] = spec.max_episode_steps
    try:
        inspect.signature(creator).bind(num_envs=1, **arguments)
    except TypeError:
        return None
    trial = _built(lambda: creator(num_envs=1, **arguments), id)
    same = (
        trial.metadata.get("autoreset_mode") is AutoresetMode.NEXT_STEP
        and trial.single_observation_space == single.observation_space
        and trial.single_action_space == single.action_space
    )
    trial.close()
    return _built(lambda: creator(num_envs=envs, **arguments), id) if same else None
