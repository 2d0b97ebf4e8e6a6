"""torch.profiler as a callback: Lightning's own ends a run whose test has fewer steps than its schedule."""

from pathlib import Path
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from torch.profiler import profile, schedule

from lockstep.callbacks.monitors import Monitor
from lockstep.trainer.steps import ends_step


class TorchProfiler(Monitor, Callback):
    """Profile `steps` optimizer steps of rank zero, after `first_step` others since training began or was resumed.

    Write to `dirpath` operations.txt, the operations by the time they took, and rank0.pt.trace.json.gz.

    Args:
        settings: other arguments of torch.profiler.profile, with_stack for example.
    """

    def __init__(self, dirpath: str, first_step: int, steps: int, **settings: Any) -> None:
        self.folder, self.settings = Path(dirpath), settings
        self.window = schedule(skip_first=first_step - 1, wait=0, warmup=1, active=steps, repeat=1)
        self._profile: profile | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero:  # without acc_events torch 2.11 warns that earlier cycles, of which there are none, are lost
            self._profile = profile(schedule=self.window, on_trace_ready=self._write, acc_events=True, **self.settings)
            self._profile.start()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self._profile is not None and ends_step(trainer, batch_idx):
            self._profile.step()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.release()

    def release(self) -> None:
        if self._profile is not None:
            self._profile.stop()
            self._profile = None

    def _write(self, profiled: profile) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        by = "self_device_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
        table = profiled.key_averages().table(sort_by=by, row_limit=100, max_name_column_width=80)
        (self.folder / "operations.txt").write_text(table)
        profiled.export_chrome_trace(str(self.folder / "rank0.pt.trace.json.gz"))
