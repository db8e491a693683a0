"""Choice of the device, and the differences between a CPU and a GPU."""

from __future__ import annotations

import os

import torch

from rlctl.spec.schema import Spec
from rlctl_agents.runtime.process import UserFault


def require_device(spec: Spec) -> None:
    """Check that there is a GPU if the spec asks for one; raises UserFault."""
    if spec.roles.learner.gpu and not torch.cuda.is_available():
        built = "" if torch.version.cuda else f"; torch {torch.__version__} is built without CUDA"
        raise UserFault(f"roles.learner.gpu is {spec.roles.learner.gpu}, but there is no GPU for torch here{built}")


def choose_device(spec: Spec, index: int = 0, learners: int = 1) -> torch.device:
    """Device on which the learner computes.

    Args:
        index: of the learner; several on one machine divide its GPUs.
        learners: number of learners.

    Raises:
        UserFault: the spec asks for a GPU, and torch sees none, or on one machine fewer than there are learners.
    """
    require_device(spec)
    if spec.roles.learner.gpu == 0:
        return torch.device("cpu")
    gpus, learners = torch.cuda.device_count(), max(learners, index + 1)
    if spec.target == "local" and learners > gpus:  # a pod has its own; NCCL takes no GPU twice
        raise UserFault(
            f"roles.learner.replicas: {learners} learners with a GPU each, but torch sees {gpus} on this machine;"
            f" set roles.learner.replicas: {gpus}, or roles.learner.gpu: 0"
        )
    if spec.sync:
        torch.use_deterministic_algorithms(True)
    device = torch.device("cuda", index % gpus)
    torch.cuda.set_device(device)
    return device


def compiles(spec: Spec, device: torch.device) -> bool:
    """True if the learner compiles its loss there. Not in lock-step: compiled code differs between machines."""
    return device.type == "cuda" and not spec.sync


def backend(device: torch.device) -> str:
    """Backend for `init_process_group`: gloo for tensors on the host, NCCL for gradients on GPUs."""
    if device.type != "cuda":
        return "gloo"
    # an operation that fails or takes too long raises in the thread that waits for it; the process lives on
    os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    return "cpu:gloo,cuda:nccl"
