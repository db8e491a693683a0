"""Read-only view of a run for its status and its pages: one object per subject, none of them changed here."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from rlctl.spec.schema import Spec
from rlctl_agents.manager.accounting.outliers import Outliers
from rlctl_agents.manager.checkpoints.schedule import Checkpoints
from rlctl_agents.manager.evaluation.evaluations import Evaluations
from rlctl_agents.manager.lifecycle.beginning import InitialPolicySource
from rlctl_agents.manager.lifecycle.stop import RunStop
from rlctl_agents.manager.membership.admission import LeaseAdmission
from rlctl_agents.manager.membership.learner_progress import Learners
from rlctl_agents.manager.membership.registry import Members
from rlctl_agents.manager.state_store import StateStore
from rlctl_agents.manager.timing import Clock


class ManagerLife(NamedTuple):
    """Identity of one life of a run's manager."""

    run: str
    uid: str
    boot: str
    term: int


class RunView(Protocol):
    """Read-only view of the coordinator."""

    @property
    def life(self) -> ManagerLife: ...

    @property
    def settings(self) -> Spec:
        """The manager's part of the spec."""

    @property
    def clock(self) -> Clock: ...

    @property
    def state(self) -> StateStore: ...

    @property
    def members(self) -> Members: ...

    @property
    def admission(self) -> LeaseAdmission: ...

    @property
    def learners(self) -> Learners: ...

    @property
    def checkpoints(self) -> Checkpoints: ...

    @property
    def evaluations(self) -> Evaluations: ...

    @property
    def stop(self) -> RunStop: ...

    @property
    def beginning(self) -> InitialPolicySource: ...

    @property
    def outliers(self) -> Outliers: ...

    @property
    def disk(self) -> str:
        """Failure to store or remove something, in words; "" without one."""
