"""Environments, networks and algorithms of a user's own, sound and not, for the check of a spec."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Sound(gymnasium.Env[Any, Any]):
    observation_space: Any = spaces.Box(-1, 1, (3,), np.float32)
    action_space: Any = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 0.0, False, False, {}


class Table(Sound):
    observation_space = spaces.Box(-1, 1, (40, 40), np.float32)


class Unbounded(Sound):
    action_space = spaces.Box(-1.0, np.inf, (2,))


class Both(Sound):
    action_space = spaces.Tuple((spaces.Box(-1.0, 1.0, (2,)), spaces.Discrete(2)))


class Bits(Sound):
    action_space = spaces.MultiBinary(3)


class Choices(Sound):
    action_space = spaces.Dict(a=spaces.Discrete(2), b=spaces.MultiDiscrete([3, 2]))


class RgbStack(Sound):
    observation_space = spaces.Box(0, 255, (4, 84, 84, 3), np.uint8)


class Wide(Sound):
    """As many leaves, or axes, as asked for."""

    def __init__(self, leaves: int = 1, axes: int = 1) -> None:
        one = spaces.Box(-1, 1, (1,) * axes, np.float32)
        self.observation_space = spaces.Dict({f"n{number}": one for number in range(leaves)}) if leaves > 1 else one


class Grid(Sound):
    observation_space = spaces.Box(0, 1, (10, 10, 4), np.uint8)


class Several(Sound):
    observation_space = spaces.Dict(
        camera=spaces.Box(0, 255, (84, 84, 3), np.uint8),
        speed=spaces.Box(-1, 1, (2,), np.float32),
        room=spaces.Discrete(5),
    )


class MaskInside(Sound):
    observation_space = spaces.Dict(
        observation=spaces.Box(-1, 1, (2,), np.float32), action_mask=spaces.Box(0, 1, (2,), np.int8)
    )


class Talking(Sound):
    def __init__(self) -> None:
        print("{}\n" * 100_000)
        os.write(1, b"{}\n")


class Watched(Sound):
    def __init__(self) -> None:
        print(f"{signal.getitimer(signal.ITIMER_REAL)[0]:.0f} s are left")


class Raising(Sound):
    def __init__(self) -> None:
        raise RuntimeError("no \x1b[31mlicence\nfor this host")


class Ending(Sound):
    def __init__(self) -> None:
        sys.exit("no licence")


class Silent(Sound):
    def __init__(self) -> None:
        os._exit(0)


class Crashing(Sound):
    def __init__(self) -> None:
        print("about to crash", file=sys.stderr, flush=True)
        ctypes.string_at(0)


class Slow(Sound):
    def __init__(self) -> None:
        time.sleep(600)


class Parent(Sound):
    """Leaves a process behind, which holds on to the streams, and writes down which."""

    def __init__(self, pid_file: str) -> None:
        child = os.fork()
        if child == 0:
            time.sleep(600)
        with open(pid_file, "w") as file:
            file.write(str(child))


class Crooked(Sound):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return np.zeros(2, np.float32), {}
