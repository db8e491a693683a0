"""What each process of a run is to do, as its lease and the answers to its reports say it."""

from __future__ import annotations

from collections.abc import Sequence

from rlctl.spec.schema import Spec
from rlctl_agents.manager.accounting.outliers import ActorEpisodes
from rlctl_agents.manager.checkpoints.schedule import Checkpoints
from rlctl_agents.manager.evaluation.evaluations import Evaluations
from rlctl_agents.manager.evaluation.matches import training
from rlctl_agents.manager.lifecycle.ending import Ending
from rlctl_agents.manager.membership.experience_spec import ExperienceSpec
from rlctl_agents.manager.membership.learner_progress import Learners
from rlctl_agents.manager.membership.leases import Holder
from rlctl_agents.manager.membership.registry import Members
from rlctl_agents.types.control import Match, Origin, Report


class Duties:
    """Decides nothing by itself: the same from the same state of the run.

    Args:
        policies: of the run; actors play the first one, and its rows count for `stop`.
    """

    def __init__(
        self,
        policies: Sequence[str],
        *,
        learners: Learners,
        checkpoints: Checkpoints,
        evaluations: Evaluations,
        members: Members,
        agreement: ExperienceSpec,
        ending: Ending,
    ) -> None:
        self._policies, self._learners, self._checkpoints = policies, learners, checkpoints
        self._evaluations, self._members, self._agreement, self._ending = evaluations, members, agreement, ending

    def generation(self, holder: Holder) -> int:
        """The generation that this process should save; 0: none."""
        return self._checkpoints.wanted(self._learners.policy_of(holder.index)) if holder.role == "learner" else 0

    def stop_rows(self, holder: Holder, settings: Spec) -> int:
        """Rows after which this process makes no update: those of the first policy count; 0: no limit."""
        if holder.role != "learner":
            return 0
        if self._evaluations.rests:
            return 1  # it has learned from more than that
        first = self._learners.policy_of(holder.index) == self._policies[0]
        return (settings.stop.rows or 0) if first else 0

    def match(self, holder: Holder, report: Report | None, settings: Spec) -> Match | None:
        """What this process is to play.

        Args:
            report: of an evaluator; None: it has not said yet what it plays.
        """
        seats = self._agreement.seats
        if holder.role == "actor":
            return training(self._policies[0], seats, settings.seed) if seats else None
        plays = self._ending.step == "not" or self._evaluations.awaits
        if holder.role != "evaluator" or report is None or not seats or not plays:
            return None
        return self._evaluations.match(report, self._members.published, seats, settings)

    def playing(self, settings: Spec) -> list[ActorEpisodes]:
        """Live actors, and what each says of its episodes."""
        members, found = self._members, []
        for one in members.leases.live("actor"):
            seen, match = members.seen.get(one.boot), self.match(one, None, settings)
            if seen is not None and match is not None:
                origin, epsilon = members.origins.get(one.boot, Origin()), match.hyper.get("epsilon", 0.0)
                found.append(ActorEpisodes(one.boot, f"actor/{one.index}", origin, seen.figures, epsilon))
        return found
