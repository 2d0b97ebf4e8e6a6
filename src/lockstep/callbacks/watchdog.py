"""A rank that makes no progress."""

import faulthandler
import os
import threading
import time
from pathlib import Path
from typing import Any

from lightning import Callback, LightningModule, Trainer

from lockstep.console import say
from lockstep.launchers.environment import rank_log
from lockstep.launchers.rank import tell_parent
from lockstep.runs import record

LAST_WORDS = 3.0  # seconds for the other ranks, which wait for this one, to dump their stacks too


class Watchdog(Callback):
    """Ends the run when no batch has begun or ended for `seconds`: long before a collective's timeout, which tells nobody
    where the ranks are. Every rank writes the stacks of its threads to its log first.

    It watches from the end of the first training batch on: compiling may take its time.
    """

    def __init__(self, seconds: float = 600) -> None:
        self.seconds = seconds
        self._beat = float("inf")  # time.monotonic of the last sign of progress
        self._at = ""
        self._over = threading.Event()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._over.clear()
        watch = (Path(trainer.default_root_dir), trainer.global_rank)
        threading.Thread(target=self._watch, args=watch, name="watchdog", daemon=True).start()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if self._beat != float("inf"):
            self._progress(f"training batch {batch_idx} of epoch {trainer.current_epoch}")

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._progress(f"after training batch {batch_idx} of epoch {trainer.current_epoch}")

    def on_validation_batch_end(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        if self._beat != float("inf"):
            self._progress("validation")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._stop()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._stop()

    def _progress(self, where: str) -> None:
        self._beat, self._at = time.monotonic(), where

    def _stop(self) -> None:
        self._over.set()
        self._beat = float("inf")

    def _watch(self, run_dir: Path, rank: int) -> None:
        while not self._over.wait(min(1.0, self.seconds / 4)):
            if time.monotonic() - self._beat > self.seconds:
                self._bite(run_dir, rank)

    def _bite(self, run_dir: Path, rank: int) -> None:
        reason = f"rank {rank}: no progress for {self.seconds:g} s, {self._at}; the stacks of its threads are in {rank_log()}"
        with (run_dir / rank_log()).open("a") as file:
            print(reason, file=file, flush=True)
            faulthandler.dump_traceback(file)
        if self._over.wait(LAST_WORDS) or time.monotonic() - self._beat < self.seconds:
            return  # it has moved after all
        if not tell_parent(1, reason):
            say(f"The run failed: {reason}. Logs: {run_dir}")
            record.write_failure(run_dir, reason, rank)
        os._exit(1)
