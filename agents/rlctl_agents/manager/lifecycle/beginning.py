"""Initial policy of a run, as stored: `init` of the spec, resolved."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from rlctl.spec.schema import Init
from rlctl_agents.manager.events import Events

log = logging.getLogger(__name__)


class InitialPolicySource:
    """Initial policy, looked up until it is stored.

    Args:
        init: `init` of the spec; None: the run begins with weights of its own.
        folder: folder that holds the policy, or will.
    """

    def __init__(self, init: Init | None, folder: Path) -> None:
        self._init, self._folder = init, folder
        self.found: dict[str, Any] | None = None
        """Model (RUN@MODEL), version, steps and SHA-256 of the policy, and the parts taken; None: not found."""

    def look(self, events: Events, *, begun: bool) -> None:
        """Look for the policy once more, and report it when it is found.

        Args:
            begun: the run has generations of its own, from which it resumes.
        """
        if self._init is None or self.found is not None or not (self._folder / "policy.json").is_file():
            return
        try:
            described, origin = (json.loads((self._folder / name).read_bytes()) for name in ("policy.json", "run.json"))
            name, steps = f"{origin['run']}@{origin['model']}", int(described["steps"])
            version, sha256 = int(described["ref"]["version"]), str(described["sha256"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.error("what the run begins with cannot be told: %s: %s", type(error).__name__, error)
            self._init = None
            return
        parts = ", ".join(self._init.parts) or "all parts"
        self.found = {
            "model": name, "version": version, "steps": steps, "sha256": sha256, "parts": list(self._init.parts),
            "text": f"{name}, version {version}, learned from {steps:,} agent steps: {parts}",
        }  # fmt: skip
        if not begun:
            events.add("init", f"the run begins from {self.found['text']}", version=version, sha256=sha256)
