"""Protocol of the programs that act with a stored model: one JSON request on stdin, JSON lines on stdout, an error line
last."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TextIO

import torch

from rlctl_agents.algorithms.base import Algorithm
from rlctl_agents.checkpoint.parts import PartError
from rlctl_agents.checkpoint.policy import PolicyFile
from rlctl_agents.envs.base import Env, EnvError, EnvRefused
from rlctl_agents.training.stored_policy import load_kept
from rlctl_agents.types.spaces import Leaf, leaves


def answering(work: Callable[[Mapping[str, Any], TextIO], None]) -> int:
    """Run a program of this protocol; what the environment prints goes to stderr.

    Args:
        work: called with the request, and the stream to which it writes replies.

    Returns:
        The exit code: 1 after an error line.
    """
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        question = json.loads(sys.stdin.buffer.read())
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        try:
            work(question, answers)
        except NoModel as error:
            return failed(answers, str(error))
        except EnvRefused as error:
            return failed(answers, str(error), "refused")
        except EnvError as error:
            if error.__cause__ is not None:  # where it is, in the user's own code
                traceback.print_exception(error.__cause__)
            return failed(answers, str(error), "crashed")
        except OSError as error:
            answer(answers, {"error": error.strerror or str(error), "errno": error.errno, "file": error.filename})
            return 1
    return 0


class NoModel(Exception):
    """A stored model that cannot be loaded, or cannot do what is asked."""


def stored_model(question: Mapping[str, Any]) -> tuple[PolicyFile, Algorithm]:
    """Load the model in the folder that the request names, ready to act.

    Raises:
        NoModel: it is damaged, or of another release.
    """
    try:
        return load_kept(Path(question["folder"]) / "policy.json")
    except (PartError, OSError, ValueError) as error:
        raise NoModel(f"the model cannot be loaded: {error}") from error


def failed(answers: TextIO, error: str, environment: Literal["", "refused", "crashed"] = "") -> int:
    """Write an error line; returns the exit code.

    Args:
        environment: how the environment failed; "": it did not.
    """
    answer(answers, {"error": error, "environment": environment})
    return 1


@contextmanager
def writing(file: Path) -> Iterator[None]:
    """Name the file in an error of the operating system, which for a full disk does not.

    Raises:
        OSError: as the system says.
    """
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(file)) from error


def answer(answers: TextIO, value: Mapping[str, Any]) -> None:
    """Write one JSON line."""
    answers.write(json.dumps(value) + "\n")
    answers.flush()


def require_spaces(env: Env, described: PolicyFile) -> None:
    """Require that a model fits an environment.

    Raises:
        EnvRefused: a model for other observations or actions.
    """
    told: list[str] = []
    sides = (("obs", env.spaces.obs, described.spaces.obs), ("action", env.spaces.action, described.spaces.action))
    for name, here, there in sides:
        ours, theirs = dict(leaves(here, name)), dict(leaves(there, name))
        differ = [key for key in sorted(ours.keys() | theirs.keys()) if ours.get(key) != theirs.get(key)]
        told += [f"`{key}` is {_shown(ours.get(key))}, and was {_shown(theirs.get(key))}" for key in differ]
    if env.spaces.legal != described.spaces.legal:
        where = "here and were not" if env.spaces.legal else "not here and were there"
        told.append(f"masks of legal actions are {where}")
    if told:
        raise EnvRefused(
            f"the environment has other spaces here than where the model was trained: {'; '.join(told)}. Bring it as it"
            " was then; --code DIR names the folder of its modules"
        )


def _shown(leaf: Leaf | None) -> str:
    return "not there" if leaf is None else str(leaf)[:200]
