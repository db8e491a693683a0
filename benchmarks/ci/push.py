"""A push to a training on this machine, from the signed hook until the run is verified, stage by stage.

The run learns all the while. Every push changes the code of its environment, so the learner, the actor and the
evaluator restart. The first push of a service is cold: its repository is cloned then.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import yaml

from benchmarks.ci import world
from benchmarks.shared import processes, product

WATCH_S = 5.0
"""Seconds of watching in this run's ci.yaml; they are part of `verified` and of no other figure."""
RUN = "bench"
SPEC: dict[str, Any] = {
    "run": RUN,
    "env": {"id": "lights.guess:Guess"},
    "algorithm": {"name": "impala", "unroll_length": 10, "batch_size": 160},
    "code": {"path": "."},
    "roles": {"actor": {"envs": 16}},
    "evaluation": {"episodes": 10, "every": "5s"},
    "checkpoint": {"every": "10s"},
}
ENVIRONMENT = '''"""Number {number}."""
import gymnasium
import numpy as np


class Guess(gymnasium.Env):
    """Shown one of two lights, press the button below it: 1 for the right one, 20 times an episode."""

    observation_space = gymnasium.spaces.Box(0, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def _see(self):
        self.light = int(self.np_random.integers(2))
        return np.eye(2, dtype=np.float32)[self.light]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 20
        return self._see(), {{}}

    def step(self, action):
        reward = float(action == self.light)
        self.left -= 1
        return self._see(), reward, self.left == 0, False, {{}}
'''
STAGES = ("received", "queued", "fetching", "building", "pushing", "deploying", "verifying")
READY_S, ENDED_S = 120.0, 600.0


def files(number: int) -> dict[str, str]:
    """The commit of that number."""
    code = ENVIRONMENT.format(number=number)
    return {"spec.yaml": yaml.safe_dump(SPEC), "lights/__init__.py": "", "lights/guess.py": code}


class Training:
    """A run that learns, and the service that redeploys it."""

    def __init__(self, run: product.Run, repository: world.Repository, service: world.Serving) -> None:
        self._run, self._repository, self._service = run, repository, service
        self._pushed = 0

    def push(self) -> dict[str, float]:
        """One push; seconds by stage, and CPU seconds of the service with its programs, and of the roles.

        Raises:
            RuntimeError: it was not verified.
            TimeoutError: it has no end.
        """
        self._pushed += 1
        sha = self._repository.commit(files(self._pushed))
        service, roles = processes.cpu_s([self._service.pid]), self._run.cpu_s()
        build = self._service.hook(sha)
        found = self._service.ended(build, ENDED_S, look_s=1.0)  # the build tells its stages' times itself
        took = found["seconds"]
        if took["verified"] is None:
            raise RuntimeError(f"build {build}: {found['state']}: {found['reason']}")
        return {
            **{f"{stage}_s": took["stages"].get(stage, 0.0) for stage in STAGES},
            "redeployed_s": took["redeployed"],
            "verified_s": took["verified"],
            "service_cpu_s": processes.cpu_s([self._service.pid]) - service,
            "roles_cpu_s": self._run.cpu_s() - roles,
        }


def pushes(warm: int, figures: list[dict[str, float]]) -> dict[str, float]:
    """The figures of the first push to a fresh training; those of so many more are put into the list.

    Raises:
        RuntimeError, TimeoutError: see `training` and `Training.push`.
    """
    with training() as one:
        cold = one.push()
        for _ in range(warm):
            figures.append(one.push())
        return cold


@contextmanager
def training() -> Iterator[Training]:
    """A run on this machine that has learned something, and a fresh service.

    Raises:
        RuntimeError: the run does not come up.
        TimeoutError: it does not learn, or the service does not listen.
    """
    with product.made(SPEC) as run:
        repository = world.Repository(run.folder / "repository")
        repository.commit(files(0))
        run.rlctl("up", str(repository.folder / "spec.yaml"), "--detach", timeout_s=300.0)
        try:
            product.wait_for_steps(run, 2_000, READY_S)
            verify = {"watch_s": WATCH_S, "min_throughput": 0.01}
            with world.serving(run.folder, run.env, repository.folder, RUN, verify=verify) as service:
                yield Training(run, repository, service)
        finally:
            product.end(run)
