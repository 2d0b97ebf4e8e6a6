"""Detection of a rank that makes no progress."""

from typing import Any

from lightning import Callback, LightningModule, Trainer

from lockstep.errors import check_at_least
from lockstep.launchers.heartbeat import HEARTBEAT


class Watchdog(Callback):
    """Report progress at every batch, and at the beginning and end of a stage. After `seconds` without a report, every rank
    writes the stacks of its threads to its log and the run ends, long before a collective times out without naming the cause.

    lockstep.runs.run watches from the start of the run to its end. Until the first batch of each stage has ended,
    `seconds_to_first_batch` applies instead, which covers the rendezvous, reading data and compiling.
    """

    def __init__(self, seconds: float = 600, seconds_to_first_batch: float = 1800) -> None:
        check_at_least(1, seconds=seconds, seconds_to_first_batch=seconds_to_first_batch)
        self.seconds, self.seconds_to_first_batch = seconds, seconds_to_first_batch
        self._has_had_a_batch: set[str] = set()  # stages

    def _progress(self, stage: str, where: str, is_over: bool = False) -> None:
        if is_over:
            self._has_had_a_batch.add(stage)
        HEARTBEAT.beat(where, self.seconds if stage in self._has_had_a_batch else self.seconds_to_first_batch)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        HEARTBEAT.beat(f"before the first batch to {stage.lower()}", self.seconds_to_first_batch)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._progress("fit", f"in training batch {batch_idx + 1} of epoch {trainer.current_epoch + 1}")

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._progress("fit", f"after training batch {batch_idx + 1} of epoch {trainer.current_epoch + 1}", is_over=True)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._progress("validate", f"before the first validation batch of epoch {trainer.current_epoch + 1}")

    def on_validation_batch_end(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        self._progress("validate", f"in validation, in epoch {trainer.current_epoch + 1}", is_over=True)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._progress("validate", f"after validation, in epoch {trainer.current_epoch + 1}")

    def on_test_batch_end(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        self._progress("test", "in the test", is_over=True)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        HEARTBEAT.beat("saving a checkpoint", self.seconds)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        HEARTBEAT.beat(f"at the end of {stage.lower()}", self.seconds)
