"""The learning rate that the optimizer's steps were made with."""

import time
from abc import abstractmethod
from pathlib import Path
from typing import Any

from lightning import Callback, LightningModule, Trainer
from torch import Tensor
from torch.optim import Optimizer

from lockstep.launchers.heartbeat import HEARTBEAT
from lockstep.runs.results import samples_trained
from lockstep.runs.saved import accept_config


class AfterEachStep(Callback):
    """Call `stepped` after each optimizer step, before a schedule changes the rate."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._hooks = [one.register_step_post_hook(lambda *_, one=one: self.stepped(trainer, one)) for one in trainer.optimizers]

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for hook in self._hooks:
            hook.remove()

    @abstractmethod
    def stepped(self, trainer: Trainer, optimizer: Optimizer) -> None:
        """Handle a step that the trainer has not counted yet."""


class SteppedRate(AfterEachStep):
    """Record `lr`, the highest rate of the first parameter group in any step, and `lr_last`, the latest. A resumed run continues
    the values of its checkpoint.

    At the first step the run's directory becomes permanent, and the new config of a resumed run is saved.

    Args:
        trained_with: values that a run resumed from this run's checkpoint can't change; see lockstep.runs.resume.

    Attributes:
        samples_before: number of samples trained on in the checkpoint from which this run is resumed.
        seconds_before: duration of training in this run's earlier starts.
    """

    def __init__(self, trained_with: dict[str, Any] | None = None) -> None:
        self.trained_with, self.samples_before, self.seconds_before = trained_with or {}, 0, 0.0
        self._began = time.monotonic()
        self._highest: float | Tensor | None = None
        self._latest: float | Tensor | None = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.trained_with["optimizers"] = [type(optimizer).__name__ for optimizer in trainer.optimizers]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        self._began = time.monotonic()

    def stepped(self, trainer: Trainer, optimizer: Optimizer) -> None:
        if not HEARTBEAT.has_stepped and trainer.is_global_zero:
            accept_config(Path(trainer.default_root_dir))
        HEARTBEAT.has_stepped = True
        if optimizer is not trainer.optimizers[0]:
            return
        rate = optimizer.param_groups[0]["lr"]
        if isinstance(rate, Tensor):  # read later, so as not to wait for the device
            rate = rate.detach().clone()
            self._highest = rate if self._highest is None else rate.clamp(min=self._highest)
        else:
            self._highest = rate if self._highest is None else max(rate, self._highest)
        self._latest = rate

    def facts(self) -> dict[str, float | None]:
        return self._rates() | {"samples_before": self.samples_before, "seconds_before": self.seconds_before}

    def _rates(self) -> dict[str, float | None]:
        rates = {"lr": self._highest, "lr_last": self._latest}
        return {name: None if rate is None else float(rate) for name, rate in rates.items()}

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint["samples_trained"] = self.samples_before + samples_trained(trainer)
        checkpoint["seconds_trained"] = self.seconds_before + time.monotonic() - self._began

    def on_load_checkpoint(self, trainer: Any, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn == "fit":
            self.samples_before = checkpoint.get("samples_trained", 0)
            self.seconds_before = checkpoint.get("seconds_trained", 0.0) if is_own_checkpoint(trainer) else 0.0
        else:  # the best checkpoint, for the test: these callbacks describe the end of the run
            ours = {one.state_key for one in trainer.callbacks if type(one).__module__.startswith(("lockstep.", "lightning."))}
            checkpoint["callbacks"] = {key: state for key, state in checkpoint["callbacks"].items() if key not in ours}
            if "current_model_state" in checkpoint:  # Lightning's WeightAveraging would test these, not the average
                checkpoint["current_model_state"] = checkpoint["state_dict"]

    def state_dict(self) -> dict[str, Any]:
        return self._rates() | {"trained_with": self.trained_with}

    def forget(self) -> None:
        """Reset the rates recorded before this run."""
        self._highest = self._latest = None

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._highest, self._latest = state_dict["lr"], state_dict["lr_last"]


def is_own_checkpoint(trainer: Trainer) -> bool:
    """Return whether training starts from this run's own checkpoint; a fork starts from another run's."""
    return Path(trainer.ckpt_path or "").is_relative_to(trainer.default_root_dir)
