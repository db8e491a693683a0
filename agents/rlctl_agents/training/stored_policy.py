"""Policies loaded from generations and kept models: built from their description, with the stored weights."""

from __future__ import annotations

from pathlib import Path

import pydantic
import torch

from rlctl.spec.algorithms import AnyAlgorithm
from rlctl.spec.schema import Network
from rlctl_agents import algorithms
from rlctl_agents.algorithms.base import Algorithm
from rlctl_agents.checkpoint.parts import LEARNER, POLICY, read_part
from rlctl_agents.checkpoint.policy import PolicyFile, PolicyFileError, unpack_policy
from rlctl_agents.models.torso import hold_still
from rlctl_agents.models.weights import unpack_into
from rlctl_agents.training.learner_state import restore_weights
from rlctl_agents.types.control import Generation

_ALGORITHM: pydantic.TypeAdapter[AnyAlgorithm] = pydantic.TypeAdapter(AnyAlgorithm)


def read_policy(folder: Path, generation: Generation) -> PolicyFile:
    """Read the description of a generation's policy.

    Args:
        folder: of checkpoints.

    Raises:
        PolicyFileError: it has none, as in release 0.1, or one in another format.
        PartError: the part cannot be read, or is damaged.
    """
    if POLICY not in generation.parts:
        raise PolicyFileError(f"generation {generation.number} does not describe its policy: release 0.1 did not")
    return unpack_policy(read_part(folder, generation.parts[POLICY], generation.sha256[POLICY]))


def load_policy(folder: Path, generation: Generation) -> tuple[PolicyFile, Algorithm]:
    """Load the policy of a generation, ready to act, from its parts alone.

    Args:
        folder: of checkpoints.

    Raises:
        PolicyFileError, PartError: as `read_policy`; or the sections are not of this release's spec.
        AlgorithmError: the algorithm cannot be found, or does not fit.
        StateError: the weights belong to another network.
    """
    described = read_policy(folder, generation)
    made = _made(described)
    restore_weights(read_part(folder, generation.parts[LEARNER], generation.sha256[LEARNER]), made.net)
    return described, made


def load_kept(file: Path) -> tuple[PolicyFile, Algorithm]:
    """Load a model that was kept, as best or goal, ready to act, from its two files alone.

    Args:
        file: file that describes it: `policy` of models/best.json or models/goal.json, and of the status.

    Raises:
        PolicyFileError: the file describes no policy, or one of another release.
        OSError: it cannot be read.
        PartError: its weights cannot be read, or are damaged.
        AlgorithmError: the algorithm cannot be found, or does not fit.
        WeightsError: the weights belong to another network.
    """
    described = unpack_policy(file.read_bytes())
    made = _made(described)
    unpack_into(made.net, read_part(file.parent, described.tensors, described.sha256))
    return described, made


def _made(described: PolicyFile) -> Algorithm:
    """Make the policy with initial weights, for acting.

    Raises:
        PolicyFileError: its sections are not of this release's spec.
    """
    try:
        config = _ALGORITHM.validate_python(described.algorithm)
        network = Network.model_validate(described.network)
    except pydantic.ValidationError as error:
        raise PolicyFileError(f"{described.ref} is a policy of another release: {error}") from error
    with torch.random.fork_rng(devices=[]):
        made = algorithms.class_of(config)(config, network, described.spaces, seed=0)
    for module in made.modules.values():
        hold_still(module)
    return made
