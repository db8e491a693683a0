"""Gymnasium environments in the form that the peers get."""

from __future__ import annotations

from typing import Any

import gymnasium


def pong(**kwargs: Any) -> gymnasium.Env:
    """84x84 grey, skip 4, stack 4, up to 30 no-ops: [4, 84, 84] uint8."""
    import ale_py

    if hasattr(gymnasium, "register_envs"):
        gymnasium.register_envs(ale_py)
    else:  # gymnasium before 1.0
        from gymnasium.envs.registration import registry

        if "ALE/Pong-v5" not in registry:
            gymnasium.register(
                "ALE/Pong-v5", "ale_py.env:AtariEnv", kwargs={"game": "pong", "obs_type": "rgb", "frameskip": 4}
            )
    env = gymnasium.make("ALE/Pong-v5", frameskip=1, repeat_action_probability=0.0, **kwargs)
    env = gymnasium.wrappers.AtariPreprocessing(env, noop_max=30, frame_skip=4, screen_size=84)
    if hasattr(gymnasium.wrappers, "FrameStackObservation"):
        return gymnasium.wrappers.FrameStackObservation(env, 4)
    return Arrays(gymnasium.wrappers.FrameStack(env, 4))


def cartpole() -> gymnasium.Env:
    return gymnasium.make("CartPole-v1")


def halfcheetah() -> gymnasium.Env:
    """Version 4 where gymnasium has no 5: the same simulator."""
    from gymnasium.envs.registration import registry

    return gymnasium.make(max(name for name in ("HalfCheetah-v4", "HalfCheetah-v5") if name in registry))


class Arrays(gymnasium.ObservationWrapper):
    """Lazily stacked frames as arrays."""

    def observation(self, observation: Any) -> Any:
        import numpy as np

        return np.asarray(observation)
