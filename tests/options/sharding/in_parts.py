"""Trainings of models in parts, watched or stopped, and what their checkpoints hold."""

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from faults import Poison
from in_process import preempted
from lightning import Callback, LightningModule, Trainer
from torch import Tensor

from lockstep.strategies.sharding.parts import local_tensor

NOWHERE = {"callbacks": None}  # which say where the best checkpoint is


class Watched(Callback):
    """Counts the numbers that this process has when training ends; asks to stop after `stop_at` steps."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.stop_at, self.held = stop_at, {"whole": 0, "weights": 0, "gradients": 0, "optimizer": 0}

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        gradients = [parameter.grad for parameter in pl_module.parameters() if parameter.grad is not None]
        self.held["gradients"] = sum(local_tensor(gradient).numel() for gradient in gradients)

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step == self.stop_at and trainer.global_rank == trainer.world_size - 1:
            os.kill(os.getpid(), signal.SIGTERM)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        parameters = list(pl_module.parameters())
        moments = [state["exp_avg"] for state in trainer.optimizers[0].state.values()]
        self.held["whole"] = sum(parameter.numel() for parameter in parameters)
        self.held["weights"] = sum(local_tensor(parameter).numel() for parameter in parameters if not parameter.is_meta)
        self.held["optimizer"] = sum(local_tensor(moment).numel() for moment in moments)


class Killed(Callback):
    """SIGKILL to one rank at its nth call of what brings a checkpoint to the disk or lets an older one go. Leaves a mark."""

    def __init__(self, rank: int, nth: int, mark: Path) -> None:
        self.rank, self.nth, self.mark = rank, nth, mark

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if trainer.global_rank == self.rank:
            for owner, name in ((Path, "replace"), (os, "fsync"), (os, "link"), (shutil, "rmtree")):
                setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            self.nth -= 1
            if self.nth == 0:
                self.mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **named)

        return counted


def poison(*, rank: int = 1) -> Poison:
    """Make the third batch's loss NaN on one rank: all leave the step out."""
    return Poison((2,), ranks=(rank,))


def stopped(folder: Path, at: int, *options: str, fault: Callback | None = None, ckpt_path: Path | None = None) -> int:
    """Return the signal by which a training in parts is preempted."""
    return preempted(folder, *options, extra=[Watched(at), fault or poison()], ckpt_path=ckpt_path)


def furthest(own: Any, expected: Any) -> float:
    """Return the largest difference of numbers in two contents of the same form."""
    if isinstance(own, dict):
        assert own.keys() == expected.keys()
        return max((furthest(own[key], expected[key]) for key in own), default=0.0)
    if isinstance(own, Tensor):
        assert (own.shape, own.dtype) == (expected.shape, expected.dtype)
        return float((own - expected).abs().max()) if own.numel() else 0.0
    return 0.0


def assert_equal(own: dict[str, Any], expected: dict[str, Any]) -> None:
    """Assert that checkpoints of two trainings are equal up to the rounding of float64."""
    assert own["global_step"] == expected["global_step"]
    for key in {"state_dict", "current_model_state"} & expected.keys():  # with and without an average of the weights
        assert furthest(own[key], expected[key]) < 1e-10
    assert furthest(own["optimizer_states"][0]["state"], expected["optimizer_states"][0]["state"]) < 1e-10
