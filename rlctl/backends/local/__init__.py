"""One machine: role processes below the `supervisor` package, one supervisord for each run."""

from rlctl.backends.local.backend import LocalBackend
from rlctl.backends.local.state.places import Place

__all__ = ["LocalBackend", "Place"]
