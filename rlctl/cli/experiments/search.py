"""Search by Optuna: suggests settings, records their returns, and prunes trials."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from rlctl.cli.experiments.axes import Axis
from rlctl.errors import BackendUnreachable, UsageError

AGAIN: Final = "again"
"""Attribute of a trial in the study: number of the failed suggestion that it repeats."""
LOOKS: Final = 20
"""Equal parts of stop.agent_steps, at the ends of which the pruner compares trials."""


class Search:
    """A study that is kept in the folder of its sweep, so that it goes on after a kill.

    Args:
        folder: folder of the sweep.
        axes: ranges, and values to choose from.
        whole: paths whose values have to be whole numbers.
        prune: by the median of the other trials at the same share of their steps.
        seed: of the sampler; the number of known trials is added to it, or a new sampler would repeat itself.

    Raises:
        UsageError: Optuna is not installed.
        BackendUnreachable: the file of the study cannot be used.
    """

    def __init__(self, folder: Path, axes: Sequence[Axis], whole: Container[str], *, prune: bool, seed: int) -> None:
        try:
            import optuna
            from sqlalchemy import URL
        except ModuleNotFoundError as error:
            raise UsageError(f"{error.name} is not installed here", hint='pip install "rlctl[sweep]"') from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._optuna, self._axes, self._whole = optuna, axes, whole
        with self._reported():
            self._study = optuna.create_study(
                storage=URL.create("sqlite", database=str(folder / "optuna.db")).render_as_string(),
                study_name=folder.name,
                direction="maximize",
                pruner=optuna.pruners.MedianPruner() if prune else optuna.pruners.NopPruner(),
                load_if_exists=True,
            )
            known = len(self._study.trials)
        self._study.sampler = optuna.samplers.TPESampler(seed=(seed + known) % 2**32)

    def ask(self) -> tuple[int, dict[str, str]]:
        """Number and settings of the next suggestion."""
        with self._reported():
            trial = self._study.ask()
            return trial.number, {axis.path: self._suggest(trial, axis) for axis in self._axes}

    def _suggest(self, trial: Any, axis: Axis) -> str:
        if not axis.range:
            return str(trial.suggest_categorical(axis.path, axis.values))
        low, high = (float(bound) for bound in axis.values)
        if axis.path in self._whole:
            return str(trial.suggest_int(axis.path, int(low), int(high), log=axis.log))
        # as text and not in full: what the record says is what is trained
        return f"{trial.suggest_float(axis.path, low, high, log=axis.log):.6g}"

    def tell(self, number: int, value: float | None, *, pruned: bool = False) -> None:
        """Report the result of a suggestion; None: it has none. A reported one stays as it is; one that had failed and
        was trained again counts as another of the same settings.
        """
        states = self._optuna.trial.TrialState
        state = states.PRUNED if pruned else states.FAIL if value is None else states.COMPLETE
        told = value if state is states.COMPLETE else None
        with self._reported():
            before = self._study.get_trials(deepcopy=False)[number]
            if before.state is states.FAIL and state is states.COMPLETE:  # it was trained again
                if all(one.user_attrs.get(AGAIN) != number for one in self._study.get_trials(deepcopy=False)):
                    again = self._optuna.trial.create_trial(
                        params=before.params, distributions=before.distributions, value=told, user_attrs={AGAIN: number}
                    )
                    self._study.add_trial(again)
            else:
                self._study.tell(number, told, state=state, skip_if_finished=True)

    def forget(self, known: Container[int]) -> None:
        """Mark suggestions without a trial as failed: a command was killed before it had recorded them."""
        running = self._optuna.trial.TrialState.RUNNING
        with self._reported():
            begun = self._study.get_trials(deepcopy=False, states=(running,))
        for trial in begun:
            if trial.number not in known:
                self.tell(trial.number, None)

    def hopeless(self, number: int, curve: Sequence[tuple[int, float]], steps: int) -> bool:
        """Whether a trial is to be pruned.

        Args:
            curve: agent steps and mean of its evaluations so far, ascending.
            steps: agent steps of a whole trial.
        """
        with self._reported():
            frozen = self._study.get_trials(deepcopy=False)[number]
            if frozen.state.is_finished():  # it had failed, and is trained again
                return False
            trial = self._optuna.trial.Trial(self._study, frozen._trial_id)
            told = max(frozen.intermediate_values, default=0)
            for look in range(told + 1, LOOKS):
                reached = [mean for at, mean in curve if at * LOOKS >= look * steps]
                if not reached:
                    return False
                trial.report(reached[0], look)
                if trial.should_prune():
                    return True
            return False

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Report that the file of the study cannot be used."""
        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield
        except (SQLAlchemyError, self._optuna.exceptions.StorageInternalError) as error:
            why = str(error).splitlines()[0]
            raise BackendUnreachable(f"the study of the sweep cannot be read or written: {why}") from error
