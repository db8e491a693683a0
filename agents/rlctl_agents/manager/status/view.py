"""A run as its status and its pages read it: one object per subject, none of them changed here."""

from __future__ import annotations

from typing import Protocol

from rlctl.spec.schema import Spec
from rlctl_agents.manager.accounting.outliers import Outliers
from rlctl_agents.manager.checkpoints.schedule import Checkpoints
from rlctl_agents.manager.evaluation.evaluations import Evaluations
from rlctl_agents.manager.lifecycle.ending import Ending
from rlctl_agents.manager.lifecycle.stop import Closing
from rlctl_agents.manager.membership.learner_progress import Learners
from rlctl_agents.manager.membership.registry import Members
from rlctl_agents.manager.state_store import Progress
from rlctl_agents.manager.timing import Clock
from rlctl_agents.runtime.addresses import Addresses


class RunView(Protocol):
    """What the coordinator lets others read."""

    @property
    def run(self) -> str:
        """Name."""

    @property
    def uid(self) -> str: ...

    @property
    def boot(self) -> str:
        """Of the manager."""

    @property
    def term(self) -> int: ...

    @property
    def policies(self) -> list[str]: ...

    @property
    def began(self) -> float:
        """Monotonic seconds."""

    @property
    def wall_s(self) -> float:
        """Over all ups."""

    @property
    def settings(self) -> Spec:
        """The manager's part of the spec."""

    @property
    def clock(self) -> Clock: ...

    @property
    def addresses(self) -> Addresses: ...

    @property
    def members(self) -> Members: ...

    @property
    def learners(self) -> Learners: ...

    @property
    def progress(self) -> Progress: ...

    @property
    def checkpoints(self) -> Checkpoints: ...

    @property
    def evaluations(self) -> Evaluations: ...

    @property
    def closing(self) -> Closing: ...

    @property
    def ending(self) -> Ending: ...

    @property
    def outliers(self) -> Outliers: ...

    @property
    def refusal(self) -> tuple[str, float]:
        """Newest refused hello, and when."""

    @property
    def lost(self) -> str:
        """What of the progress was lost; empty: nothing."""

    @property
    def disk(self) -> str:
        """Why something could not be stored, or removed; empty when all was."""
