"""What conf/profiler offers: a few steps in every detail.

They are callbacks, not Lightning's Profilers: those are called around each block of Lightning's ordinary loop, and a plain step
does not go through it (extras/fast_loop).
"""

import logging
from pathlib import Path
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from torch.autograd.profiler import emit_nvtx
from torch.profiler import ProfilerActivity, profile, schedule

from lockstep.errors import check_at_least, config_error
from lockstep.extras.monitors.monitor import Monitor
from lockstep.trainer.steps import ends_step

log = logging.getLogger(__name__)


class _Window(Monitor, Callback):
    """Profile `steps` optimizer steps of rank zero, after `first_step` others since training began or was resumed."""

    def __init__(self, first_step: int, steps: int) -> None:
        check_at_least(1, first_step=first_step, steps=steps)
        self.first_step, self.steps = first_step, steps

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.release()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.release()


class TorchProfiler(_Window):
    """torch.profiler.

    Leaves in `dirpath` operations.txt, the operations by the time they took, and with `trace` rank0.pt.trace.json.gz. A training
    that ends within the window leaves what there is of it.
    """

    def __init__(
        self,
        dirpath: str,
        first_step: int,
        steps: int,
        trace: bool,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
    ) -> None:
        super().__init__(first_step, steps)
        self.folder, self.trace = Path(dirpath), trace
        self.settings = dict[str, Any](record_shapes=record_shapes, profile_memory=profile_memory, with_stack=with_stack)
        self.settings["acc_events"] = True  # there is one cycle; without it torch 2.11 warns that those before are lost
        self._profile: profile | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        window = schedule(skip_first=self.first_step - 1, wait=0, warmup=1, active=self.steps, repeat=1)
        devices = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
        self._profile = profile(activities=devices, schedule=window, on_trace_ready=self._write, **self.settings)
        self._profile.start()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self._profile is not None and ends_step(trainer, batch_idx):
            self._profile.step()
            if self._profile.step_num == self.first_step + self.steps:
                self.release()

    def release(self) -> None:
        if self._profile is None:
            return
        ended, self._profile = self._profile, None
        ended.stop()
        if ended.step_num <= self.first_step:
            log.warning(f"nothing is profiled: training ended after {ended.step_num} steps; see callbacks.profiler.first_step")

    def _write(self, profiled: profile) -> None:
        if (steps := profiled.step_num - self.first_step) == 0:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        by = "self_device_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
        table = profiled.key_averages().table(sort_by=by, row_limit=100, max_name_column_width=80)
        (self.folder / "operations.txt").write_text(table)
        if self.trace:
            profiled.export_chrome_trace(str(self.folder / "rank0.pt.trace.json.gz"))
        log.info(f"profiled {steps} steps: {self.folder}")


class Nsight(_Window):
    """NVIDIA's Nsight Systems: cudaProfilerStart and cudaProfilerStop around the window, and every operation as an NVTX range."""

    _operations: emit_nvtx | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if trainer.strategy.root_device.type != "cuda":
            raise config_error("profiler", "nsight", "is for GPUs, and this run has none; accepted are simple, pytorch")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._began_at = trainer.global_step

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        done = trainer.global_step - self._began_at
        if self._operations is None and self.first_step == done and trainer.is_global_zero:
            torch.cuda.profiler.start()
            self._operations = emit_nvtx()
            self._operations.__enter__()
        elif done >= self.first_step + self.steps:
            self.release()

    def release(self) -> None:
        if self._operations is not None:
            self._operations.__exit__(None, None, None)
            self._operations = None
            torch.cuda.profiler.stop()
            log.info("a window of steps is marked; Nsight Systems records it if nsys profile has started this run")
