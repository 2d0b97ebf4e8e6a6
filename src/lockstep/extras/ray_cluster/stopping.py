"""What ends a job of a search by Ray Tune before its last epoch: others that were better by now, or the end of its generation."""

from pathlib import Path
from typing import Any

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn

from lockstep.extras.ray_cluster.reports import TUNE, report
from lockstep.extras.search.pruning import EndEarly

GENERATION = "last_validation"  # in the record of a job: how many validations there were, and the value of the last


class Stopping(EndEarly):
    """Reports to the sweep's directory, and asks Ray Tune's scheduler. A run of another sweep, or of none, trains as without this
    callback."""

    _run_dir: Path | None = None

    def find_search(self, run_dir: Path) -> None:
        self._run_dir = run_dir if (run_dir.parent / TUNE).is_file() else None

    def should_prune(self, value: float) -> bool:
        return self._run_dir is not None and report(self._run_dir, self.validations, value)


class Generation(Callback):
    """Ends training after `until` validations, counted since the first of the runs that this one is a fork of."""

    def __init__(self, monitor: str, until: int | None = None) -> None:
        self.monitor, self.until = monitor, until
        self.validations = 0
        self.value: float | None = None

    @property
    def is_over(self) -> bool:
        return self.until is not None and self.validations >= self.until

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        trainer.should_stop = trainer.should_stop or self.is_over

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking:
            self.validations, self.value = self.validations + 1, float(trainer.callback_metrics[self.monitor])
            trainer.should_stop = trainer.should_stop or self.is_over

    @property
    def ended_by(self) -> str | None:
        return f"the end of its generation, after {self.until} validations" if self.is_over else None

    def facts(self) -> dict[str, Any]:
        return {GENERATION: {"validations": self.validations, "value": self.value}}

    def state_dict(self) -> dict[str, Any]:
        return {"validations": self.validations, "value": self.value}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.validations, self.value = state_dict["validations"], state_dict["value"]
