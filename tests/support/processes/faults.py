"""Callbacks that tests put into real runs: ways for a rank to fail, and a record of what each rank has seen."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning import Callback, LightningModule, Trainer


class Fault(Callback):
    """At a training batch of one rank, or of all if that is None: raise, kill, exit, hang, stop at a debugger's prompt, or raise
    before a collective that the others wait in; or a signal by its name. With `once` in one life of the run alone."""

    def __init__(self, rank: int | None, how: str, batch: int = 3, epoch: int = 0, once: bool = False) -> None:
        self.rank, self.how, self.batch, self.epoch, self.once = rank, how, batch, epoch, once

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if (trainer.current_epoch, batch_idx) != (self.epoch, self.batch):
            return
        if self.once and _has_happened(trainer, f"fault of rank {self.rank}"):
            return
        if self.rank in (None, trainer.global_rank):
            if self.how == "raise in barrier":
                time.sleep(0.5)  # the others are in the barrier by now
            if self.how.startswith("raise"):
                raise ArithmeticError("planted fault")
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.how.startswith("SIG"):
                os.kill(os.getpid(), signal.Signals[self.how])
            if self.how == "exit":
                os._exit(7)
            if self.how == "hang":
                time.sleep(600)
            if self.how == "prompt":
                breakpoint()
        if self.how == "raise in barrier":
            dist.barrier()


class LateBatch(Callback):
    """Stops one rank between two batches, as data that do not come, before it takes part in what the others have begun."""

    def __init__(self, rank: int, batch: int) -> None:
        self.rank, self.batch = rank, batch

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        if (trainer.global_rank, batch_idx) == (self.rank, self.batch):
            time.sleep(600)


class AskedInTest(Callback):
    """SIGTERM to this process at the first test batch, in one life of the run only."""

    def on_test_batch_start(self, trainer: Trainer, *_: Any) -> None:
        if not _has_happened(trainer, "asked in the test"):
            os.kill(os.getpid(), signal.SIGTERM)


def _has_happened(trainer: Trainer, what: str) -> bool:
    """Return whether it has happened in an earlier start of this run, and record that it has. The same on every rank."""
    mark = Path(trainer.default_root_dir) / what
    answer = mark.exists()
    if dist.is_initialized():
        dist.barrier()
    mark.touch()
    return answer


class Poison(Callback):
    """Makes the output of some training batches NaN for one sample, on some ranks; notes the ids of those batches."""

    def __init__(self, batches: tuple[int, ...], ranks: tuple[int, ...] = (0,), epoch: int = 0) -> None:
        self.batches, self.ranks, self.epoch = batches, ranks, epoch
        self.given: list[list[int]] = []

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if batch_idx not in self.batches or trainer.global_rank not in self.ranks or trainer.current_epoch != self.epoch:
            return
        self.given.append([*trainer.train_dataloader.sampler.draws(batch_idx)])
        factor = torch.ones(len(batch[0]), 1).index_fill(0, torch.tensor([1]), float("nan"))
        net: Any = pl_module.net
        hook = net.register_forward_hook(lambda *all_of_it: (all_of_it[-1] * factor, hook.remove())[0])


class Slow(Callback):
    """Makes a run last long enough to be interrupted."""

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if batch_idx == 0 and trainer.current_epoch == 0 and trainer.is_global_zero:
            (Path(trainer.default_root_dir) / "training").touch()
        time.sleep(0.05)


class Witness(Callback):
    """Writes what this rank has seen: its world, and the ids of the samples of every training and test batch."""

    def __init__(self) -> None:
        self.seen: dict[str, Any] = {"train": [], "test": []}

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self.seen["train"].append([*trainer.train_dataloader.sampler.draws(batch_idx)])

    def on_test_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.seen["test"].append([*trainer.test_dataloaders.sampler.draws(batch_idx)])

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.seen["world"] = {
            "trainer": trainer.world_size,
            "group": dist.get_world_size() if dist.is_initialized() else 1,
            "rank": trainer.global_rank,
            "strategy": type(trainer.strategy).__name__,
            "backend": dist.get_backend() if dist.is_initialized() else None,
        }

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._write(trainer)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._write(trainer)

    def _write(self, trainer: Trainer) -> None:
        (Path(trainer.default_root_dir) / f"seen.{trainer.global_rank}.json").write_text(json.dumps(self.seen))
