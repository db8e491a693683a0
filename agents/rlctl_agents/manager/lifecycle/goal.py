"""What a run ends for: whether a stop condition holds, of which weights, and whether these are saved."""

from __future__ import annotations

from collections.abc import Sequence

from rlctl.spec.schema import Stop
from rlctl_agents.manager.lifecycle import stopping
from rlctl_agents.manager.membership.learner_progress import Learners
from rlctl_agents.manager.state_store import Evaluation, Progress


class Goal:
    """Of one run. Rows and evaluations count only as long as the weights behind them exist.

    Args:
        policies: of the run; rows of the first one count for `stop`.
    """

    def __init__(self, policies: Sequence[str], progress: Progress, learners: Learners) -> None:
        self._policies, self._progress, self._learners = policies, progress, learners
        self._proof: tuple[stopping.Met, Evaluation | None] | None = None  # condition, and by what evaluation
        self._claimed: dict[str, int] = {}  # policy -> rows, when the run began to end

    @property
    def judged(self) -> bool:
        """Stop conditions ended the run, not somebody's word."""
        return self._proof is not None

    @property
    def rows(self) -> int:
        """That weights which exist for sure were learned from."""
        return self._learners.sure_rows(self._policies[0])

    def met(self, stop: Stop, wall_s: float) -> stopping.Met | None:
        """The stop condition that holds."""
        evaluation, rows = self._progress.evaluation, self.rows
        if evaluation is not None and not self._learners.stands(evaluation.ref):
            evaluation = None  # that model is gone with its learner
        learned = self._progress.started and rows > 0
        return stopping.met(stop, evaluation=evaluation, rows=rows, wall_s=wall_s, learned=learned)

    def reached(self, met: stopping.Met) -> None:
        """The run ends for this."""
        self._proof = met, self._progress.evaluation

    def forget(self) -> None:
        """It does not end for a stop condition, or not any more."""
        self._proof = None

    def claim(self) -> None:
        """The run begins to end: so much it says that it has learned."""
        self._claimed = {policy: self._learners.sure_rows(policy) for policy in self._policies}

    def lost(self, stop: Stop) -> bool:
        """The weights for which the run ends are gone: their learner was killed and came back with older ones."""
        if self._proof is None:
            return False
        met, evaluation = self._proof
        if met.condition == "eval_return":
            return evaluation is not None and not self._learners.stands(evaluation.ref)
        return self.rows == 0 if met.condition == "wall_time" else self.rows < (stop.rows or 0)

    def unsaved(self, *, rests: bool) -> list[str]:
        """Policies whose newest generation holds less than the run claims to have learned.

        Args:
            rests: learners learn nothing more. Else they go on until they are told to stop, and what they had learned
                before the run began to end counts.
        """
        found = []
        for policy in self._policies:
            claimed = rows = self._learners.sure_rows(policy)
            if not rests:
                claimed = min(rows, self._claimed.get(policy, rows))
            if claimed > self._learners.saved_rows(policy):
                found.append(policy)
        return found

    def in_words(self, unsaved: Sequence[str]) -> str:
        """That the last models of these policies are not saved; "" without any."""
        texts = []
        for policy in unsaved:
            newest = next(iter(self._learners.usable(policy)), None)
            which = f" of {policy}" if len(self._policies) > 1 else ""
            saved = "there is no generation"
            if newest is not None:
                saved = f"newest generation {newest.number} at {newest.rows} rows"
            texts.append(f"the last model{which}, at {self._learners.rows(policy)} rows, was not saved: {saved}")
        return "; ".join(texts)
