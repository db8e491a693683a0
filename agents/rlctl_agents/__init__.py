"""The role processes of rlctl: PyTorch and ZeroMQ. `load` loads a policy that a run has stored."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlctl_agents.policies.loaded import LoadedPolicy


def load(where: str | Path, *, seed: int = 0, verify: str | Path | None = None) -> LoadedPolicy:
    """Load a policy that a run on this machine has stored, or that `rlctl pull` has copied.

    Args:
        where: `RUN@best`, `RUN@goal`, `RUN@last` or `RUN@NUMBER`, of this machine; or a folder, as a path or
            with a `/` in its name, as in `./model`: a name without one is a run.
        seed: of the actions that `act` samples.
        verify: public key, a PEM file, whose owner must have signed the folder (`rlctl pull --sign`).

    Raises:
        ImportError: torch is not installed, or the extra `signing` to verify.
        LookupError: there is no such run, model or folder.
        ValueError: the policy is damaged or of another release, or its signature is missing or not valid for the key.

    Example:
        policy = rlctl_agents.load("cartpole@best")
        action, state = policy.act(obs)
        action, state = policy.act(obs, state)
    """
    try:
        from rlctl_agents.policies.loaded import load as loaded
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("torch", "safetensors", "numpy", "msgspec"):
            raise
        text = f'{error.name} is not installed, which a policy needs: pip install "rlctl[local]"'
        raise ImportError(text, name=error.name) from error
    return loaded(where, seed=seed, verify=verify)
