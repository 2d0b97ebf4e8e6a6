"""Ending a trial of a search early, where those before it were better by now."""

import logging
from pathlib import Path
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn

from lockstep.runs.results import Records
from lockstep.search import PRUNED, STUDY

log = logging.getLogger(__name__)


class Pruning(Records):
    """After each validation rank zero reports `monitor`, the metric that the search optimizes, to the study, and asks its
    pruner; all ranks do what that decides. A run that is pruned ends as one that was stopped early, and is tested and recorded;
    its record says after how many validations. A run that is no trial of a search trains as without this callback.

    Steps are validations since the run began, which trials of any batch and number of processes have in common.
    """

    def __init__(self, monitor: str) -> None:
        self.monitor = monitor
        self.validations = 0
        self._pruned_after: int | None = None
        self._trial: Any = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._pruned_after is not None:
            trainer.should_stop = True
        run_dir = Path(trainer.default_root_dir)
        if trainer.is_global_zero and (run_dir.parent / STUDY).is_file():
            from lockstep.search.study import find_trial  # Optuna, which rank zero alone needs

            self._trial = find_trial(run_dir)
        if trainer.is_global_zero and self._trial is None:
            log.info("callbacks=pruning has nothing to do: this run is no trial of a search")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn != TrainerFn.FITTING or trainer.sanity_checking:
            return
        self.validations += 1
        is_worse = False
        if self._trial is not None:
            self._trial.report(float(trainer.callback_metrics[self.monitor]), self.validations - 1)
            is_worse = self._trial.should_prune()
        if trainer.strategy.broadcast(is_worse):
            trainer.should_stop = True
            self._pruned_after = self.validations

    @property
    def ended_by(self) -> str | None:
        return None if self._pruned_after is None else f"pruned after {self._pruned_after} validations"

    def facts(self) -> dict[str, Any]:
        return {} if self._pruned_after is None else {PRUNED: self._pruned_after}

    def state_dict(self) -> dict[str, Any]:
        return {"validations": self.validations, "pruned_after": self._pruned_after}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.validations, self._pruned_after = state_dict["validations"], state_dict["pruned_after"]
