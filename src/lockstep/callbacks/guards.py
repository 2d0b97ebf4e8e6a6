"""Guards against losing training: stop signals are answered between two steps, and a rank without progress ends the run."""

import time
from collections.abc import Callable
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer

from lockstep.callbacks.checkpoints import find_last_checkpoint
from lockstep.errors import check_at_least
from lockstep.launchers.heartbeat import HEARTBEAT
from lockstep.launchers.stop_signals import STOP_SIGNALS, Preempted, leading
from lockstep.runs.results import steps_made
from lockstep.trainer.steps import begins_step

_PAUSE = 0.5  # seconds of training between two checks


class Preemption(Callback):
    """Check every half second, or every `every_n_steps` steps, and after each validation, whether any rank has received a stop
    signal. If so, all ranks save last.ckpt together and raise Preempted.

    A check is one all-reduce, read a step later. Lightning broadcasts before every batch, and inside its signal handler.

    lockstep.runs.run enforces `deadline`, the seconds from a signal to the end of the run, saving included. After it, a run
    that is stuck writes the stacks of its threads to its logs, and ends with the last checkpoint that was saved.
    """

    def __init__(self, every_n_steps: int | None = None, deadline: float | None = 300) -> None:
        check_at_least(1, every_n_steps=every_n_steps, deadline=deadline)
        self.every_n_steps, self.deadline = every_n_steps, deadline
        self._is_overdue = True  # more than a step has passed since the last check
        self._asked: Callable[[], int] = int  # waits for the result of the last check; 0 without one
        self._next_step, self._since = 0, (0, 0.0)  # step of the next check; step and time of the last one

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        STOP_SIGNALS.deferred = self._is_overdue = True
        self._next_step, self._since = 0, (steps_made(trainer), time.monotonic())

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._is_overdue = True

    def on_train_epoch_start(self, trainer: Any, pl_module: LightningModule) -> None:
        self._leave_if_asked(trainer)  # for its first step, too

    def on_train_batch_start(self, trainer: Any, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if batch_idx and begins_step(trainer, batch_idx):
            self._leave_if_asked(trainer)

    def _leave_if_asked(self, trainer: Any) -> None:
        waits = trainer.world_size == 1 or self._is_overdue
        number = self._asked() or (self._ask(trainer)() if waits else 0)
        is_due = not waits and steps_made(trainer) >= self._next_step
        self._asked, self._is_overdue = self._ask(trainer) if is_due and not number else int, False
        if number:
            saver = find_last_checkpoint(trainer)
            if saver is not None and steps_made(trainer):
                saver.save(trainer)
            raise Preempted(number)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop before the test if a rank has received a signal: training is over and saved."""
        if STOP_SIGNALS.deferred:
            STOP_SIGNALS.deferred = False
            if number := self._asked() or self._ask(trainer)():
                raise Preempted(number)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Ignore stop signals from now on; torchrun, for example, sends them to the other ranks when one has failed."""
        STOP_SIGNALS.leave()

    def _ask(self, trainer: Trainer) -> Callable[[], int]:
        """Return a function that waits for the signal that any rank has received, or 0; the result is equal on every rank. The
        ranks also agree on the duration of a step, and so on the step of the next check."""
        if trainer.world_size == 1:
            return lambda: leading(STOP_SIGNALS.received)
        (before, began), now, step = self._since, time.monotonic(), steps_made(trainer)
        self._since = step, now
        microseconds = int((now - began) * 1e6 / max(1, step - before))
        own = [leading(STOP_SIGNALS.received), microseconds]
        agreed = torch.tensor(own, device=trainer.strategy.root_device)
        work: Any = torch.distributed.all_reduce(agreed, torch.distributed.ReduceOp.MAX, async_op=True)

        def answer() -> int:
            work.wait()
            number, slowest = agreed.tolist()
            pause = int(_PAUSE * 1e6 / max(1, slowest))
            self._next_step = step + (self.every_n_steps - step % self.every_n_steps if self.every_n_steps else max(1, pause))
            return number

        return answer


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
