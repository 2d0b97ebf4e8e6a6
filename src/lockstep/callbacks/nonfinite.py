"""Detection of a loss that is NaN or infinite."""

import logging
import math
from typing import Any, Literal

import torch
from lightning import Callback, LightningModule, Trainer
from torch import Tensor
from torch.optim import Optimizer

from lockstep.console import join_first
from lockstep.errors import NamedFailure, check_at_least
from lockstep.plain_lightning.loaders import SharedSampler
from lockstep.runs.results import steps_made
from lockstep.strategies.ddp import PlannedWorldSize
from lockstep.trainer.lightning_internals import remember_logs
from lockstep.trainer.steps import begins_step, ends_step

log = logging.getLogger(__name__)


class NonFiniteLoss(NamedFailure):
    """The loss of a step is NaN or infinite."""


class NonFinite(Callback):
    """Check every step's loss, and name the step and the samples of the batch whose loss is not finite.

    Args:
        action: "stop" ends the run. "skip" skips the step: weights, optimizer state, BatchNorm statistics and metrics are not
            updated. It checks the gradients, which are equal on all ranks, at every step, and copies the buffers before it.
        every_n_steps: how often "stop" checks the losses since its last check; each check waits for the device. Losses
            are also checked before a checkpoint is saved.
    """

    def __init__(self, action: Literal["stop", "skip"] = "stop", every_n_steps: int = 10) -> None:
        check_at_least(1, every_n_steps=every_n_steps)
        self.action, self.every_n_steps = action, every_n_steps
        self._losses: list[tuple[int, Tensor, int | None]] = []  # step, loss, index of the batch in the epoch
        self._before: list[tuple[Tensor, Tensor]] = []  # buffers, such as BatchNorm's statistics, and their values before a step
        self._was_skipped = False
        self.skipped_step: int | None = None  # the latest skipped step

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if self.action == "skip" and begins_step(trainer, batch_idx):
            self._before = [(state, state.clone()) for state in pl_module.buffers()]
            self._restore_logs = remember_logs(trainer, pl_module)
            self._losses.clear()

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        if self.action != "skip" or self.may_step(trainer, pl_module):
            return
        pl_module.zero_grad(set_to_none=True)  # optimizers skip parameters without a gradient
        self._was_skipped, self.skipped_step = True, trainer.global_step

    def may_step(self, trainer: Trainer, pl_module: LightningModule) -> bool:
        """Return whether all gradients of the step are finite; equal on every rank."""
        gradients: list[Any] = [parameter.grad for parameter in pl_module.parameters() if parameter.grad is not None]
        is_sharded = [hasattr(gradient, "to_local") for gradient in gradients]  # DTensors: each rank checks its own shard
        local = [g.to_local() if sharded else g for g, sharded in zip(gradients, is_sharded, strict=True)]
        # the norm of finite numbers may be too large for float16
        norms = [(gradient.float() if gradient.dtype == torch.float16 else gradient).norm() for gradient in local]
        is_finite = not norms or bool(torch.isfinite(torch.stack(norms)).all())
        strategy = trainer.strategy
        if any(is_sharded) or (isinstance(strategy, PlannedWorldSize) and strategy.has_parts):
            is_finite = strategy.reduce_boolean_decision(is_finite)
        return is_finite

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """Record the loss of a module with manual optimization, which need not return it. A loss scaled for float16 may be
        infinite."""
        if not pl_module.automatic_optimization and getattr(trainer.precision_plugin, "scaler", None) is None:
            self._losses.append((trainer.global_step, loss.detach().sum(), None))

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if isinstance(loss, Tensor):  # otherwise the model skipped the batch, or it optimizes manually
            if self.action == "stop" and loss.is_cpu and math.isfinite(loss):
                return  # all losses are finite
            self._losses.append((trainer.global_step - ends_step(trainer, batch_idx), loss.detach(), batch_idx))
        if self.action == "stop":
            if pl_module.device.type == "cpu" or trainer.global_step % self.every_n_steps == 0:
                self._look(trainer)
        elif self._was_skipped:
            self._was_skipped = False
            with torch.no_grad():
                for state, before in self._before:
                    state.copy_(before)
            self._restore_logs()
            log.warning(f"step {trainer.global_step} is left out: its gradients are not finite; {self._where(trainer)}")

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if self.action == "stop":
            self._look(trainer)
            if not pl_module.automatic_optimization:  # whose loss is not seen after loss.backward()
                self._look_at_weights(trainer, pl_module)

    def _look_at_weights(self, trainer: Trainer, pl_module: LightningModule) -> None:
        weights: Any = {name: parameter.detach() for name, parameter in pl_module.named_parameters() if parameter.requires_grad}
        local = {name: getattr(weight, "to_local", lambda own=weight: own)() for name, weight in weights.items()}
        if names := [name for name, weight in local.items() if not torch.isfinite(weight).all()]:
            raise NonFiniteLoss(f"up to step {steps_made(trainer)} weights have become NaN or infinite: {join_first(names)}")

    def _look(self, trainer: Trainer) -> None:
        if self._losses and not torch.isfinite(torch.stack([loss for _, loss, _ in self._losses])).all():
            raise NonFiniteLoss(self._where(trainer))
        self._losses.clear()

    def _where(self, trainer: Trainer) -> str:
        """Describe this rank's first batch since the last check whose loss is not finite, with some of its sample numbers."""
        sampler = getattr(trainer.train_dataloader, "sampler", None)
        for step, loss, batch in self._losses:
            if not torch.isfinite(loss):
                numbers = sampler.draws(batch) if isinstance(sampler, SharedSampler) and batch is not None else []
                samples = f", of samples {join_first(numbers, 4)}" if numbers else ""
                return f"at step {step + 1} the loss is {float(loss)}{samples}"
        return "that of another rank's samples"
