"""CartPole as a vector environment in C of a user's own: `env: {id: benchmarks.envs.cartpole:Carts}`.

Compiled with the machine's `cc` when it is first made, into $RLCTL_BENCH_CACHE or a temporary folder.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

SOURCE = Path(__file__).with_name("cartpole.c")
# not -ffast-math: linked with it, a library has every process that loads it flush subnormal numbers to zero
FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros")


def library() -> ctypes.CDLL:
    """The compiled simulator.

    Raises:
        OSError, CalledProcessError: no compiler here.
    """
    digest = hashlib.sha256(" ".join(FLAGS).encode() + SOURCE.read_bytes()).hexdigest()[:12]
    folder = Path(os.environ.get("RLCTL_BENCH_CACHE") or tempfile.gettempdir())
    built = folder / f"rlctl-bench-cartpole-{os.getuid()}-{digest}.so"
    if not built.exists():
        folder.mkdir(parents=True, exist_ok=True)
        part = built.with_suffix(f".{os.getpid()}")
        subprocess.run(
            ["cc", *FLAGS, "-fPIC", "-shared", str(SOURCE), "-o", str(part), "-lm"], check=True, capture_output=True
        )
        part.replace(built)
    return ctypes.CDLL(str(built))


class Carts(VectorEnv[Any, Any, Any]):
    """`num_envs` carts, stepped by one call into C."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, num_envs: int, max_episode_steps: int = 500) -> None:
        self.num_envs = num_envs
        self.single_observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)
        self.single_action_space = gymnasium.spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._library = library()
        self._limit = max_episode_steps
        self._obs = np.zeros((num_envs, 4), np.float32)
        self._reward = np.zeros(num_envs, np.float32)
        self._terminated = np.zeros(num_envs, np.bool_)
        self._truncated = np.zeros(num_envs, np.bool_)
        self._age = np.zeros(num_envs, np.int32)
        self._random = np.arange(1, num_envs + 1, dtype=np.uint64)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[NDArray[np.float32], dict[str, Any]]:
        if seed is not None:
            first = seed if isinstance(seed, int) else seed[0]
            self._random[:] = np.random.default_rng(first).integers(1, 2**63, self.num_envs)
        self._library.reset(self.num_envs, *_pointers(self._obs, self._age, self._random))
        self._terminated[:] = self._truncated[:] = False
        return self._obs, {}

    def step(self, actions: Any) -> Any:
        chosen = np.ascontiguousarray(actions, np.int64)
        arrays = (chosen, self._obs, self._reward, self._terminated, self._truncated, self._age, self._random)
        self._library.step(self.num_envs, self._limit, *_pointers(*arrays))
        return self._obs, self._reward, self._terminated, self._truncated, {}


def _pointers(*arrays: NDArray[Any]) -> list[ctypes.c_void_p]:
    return [ctypes.c_void_p(array.ctypes.data) for array in arrays]
