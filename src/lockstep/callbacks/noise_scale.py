"""The gradient noise scale: the batch size beyond which a larger batch hardly improves a step."""

import logging
import math
from itertools import chain
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from torch import Tensor
from torch.optim import Optimizer

from lockstep.callbacks.monitors import Monitor, watched, watched_to_the_end
from lockstep.datamodules.batches import samples_in
from lockstep.errors import check_at_least
from lockstep.plain_lightning.callback import PlainLightning
from lockstep.runs.results import Records
from lockstep.strategies.ddp import PlannedWorldSize
from lockstep.trainer.steps import begins_step

log = logging.getLogger(__name__)


class NoiseScale(Monitor, Records):
    """Estimate tr(Sigma) / |G|^2, in samples, while training: G is the gradient of the expected loss, Sigma the covariance of
    the gradients of single samples (McCandlish et al. 2018, arXiv:1812.06162, equation 2.9 and appendix A.1).

    The batch of a measured step consists of parts, one for each process and accumulated batch. The squared norms of the parts'
    gradients, before the all-reduce, and of the whole gradient give unbiased estimates of |G|^2 and tr(Sigma). The ratio of their
    exponential averages is the noise scale. Training does not change by a bit.

    With BatchNorm a sample's gradient depends on its batch, and the noise scale is only approximate.
    """

    def __init__(self, every_n_steps: int = 40, decay: float = 0.95) -> None:
        check_at_least(1, every_n_steps=every_n_steps)
        if not 0 <= decay < 1:
            raise ValueError(f"decay={decay}: averages nothing; use 0 to less than 1")
        self.every_n_steps, self.decay = every_n_steps, decay
        self.gradient = self.trace = 0.0  # running means of |G|^2 and tr(Sigma), both biased by the same factor
        self.estimates = 0
        self._is_on = False
        self._samples = 0  # samples in this process's batch
        self._norms: list[Tensor] = []  # norms of that batch's gradients
        self._parts: list[tuple[Tensor, float, int]] = []  # squared norm, factor and samples of this process's parts of the step
        self._handles: list[Any] = []

    @property
    def ratio(self) -> float | None:
        """The noise scale in samples; None while the estimate of |G|^2 is not positive."""
        return self.trace / self.gradient if self.gradient > 0 else None

    def facts(self) -> dict[str, Any]:
        return {"noise_scale": self.ratio, "noise_scale_estimates": self.estimates}

    def state_dict(self) -> dict[str, Any]:
        return {"gradient": self.gradient, "trace": self.trace, "estimates": self.estimates}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        vars(self).update(state_dict)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        reason = _why_not(trainer, pl_module)
        self._is_on = reason is None
        if reason is not None:
            log.warning(f"callbacks.noise_scale: no noise scale is estimated: {reason}")

    def _is_measured(self, trainer: Trainer) -> bool:
        return self._is_on and trainer.global_step % self.every_n_steps == 0

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if self._is_measured(trainer):
            self._samples = samples_in(batch) or 0
            if begins_step(trainer, batch_idx):
                self._parts.clear()

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        if self._is_measured(trainer):  # a leaf's hook gets this backward pass's gradient, before DDP does
            parameters = [parameter for parameter in pl_module.parameters() if parameter.requires_grad]
            self._handles = [parameter.register_hook(self._add_norm) for parameter in parameters]

    @watched
    def _add_norm(self, gradient: Tensor) -> None:
        self._norms.append(_norm(gradient))

    def on_after_backward(self, trainer: Any, pl_module: LightningModule) -> None:
        if not self._is_measured(trainer):
            return
        self.release()
        norms, self._norms = self._norms, []
        weight = sum(one.weight for one in trainer.callbacks if isinstance(one, PlainLightning))
        if weight and self._samples and norms:
            # A sample counts in this gradient with weight / samples / accumulation, and in the part's mean with 1 / samples.
            scaler = getattr(trainer.precision_plugin, "scaler", None)  # 16-mixed unscales before the optimizer's step
            scale = 1.0 if scaler is None else scaler.get_scale()
            factor = trainer.accumulate_grad_batches * self._samples / weight / scale
            self._parts.append((_squared(norms), factor**2 / self._samples, self._samples))

    def release(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    @watched_to_the_end
    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        if not self._is_measured(trainer):
            return
        ranks = self.gather(self._rows)
        # fsum rounds once: the sums have the same bits however the parts are divided among processes
        squares, parts, samples = (math.fsum(column) for column in zip((0, 0, 0), *chain(*ranks), strict=True))
        norms = [_norm(parameter.grad) for parameter in pl_module.parameters() if parameter.grad is not None]
        if norms:  # otherwise the step was skipped, because it was not finite
            self._estimate(squares, parts, samples, float(_squared(norms)))
        if self.ratio is not None:
            for logger in trainer.loggers:
                logger.log_metrics({"noise_scale": self.ratio}, step=trainer.global_step)

    def _rows(self) -> list[tuple[float, int, int]]:
        return [(float(square) * factor, 1, samples) for square, factor, samples in self._parts]

    def _estimate(self, squares: float, parts: float, samples: float, whole: float) -> None:
        """Update the estimates from |g|^2 of the step and of its parts, whose sizes may differ. The sum of samples * |mean
        gradient|^2 over parts has the mean samples * |G|^2 + parts * tr(Sigma). For equal parts this is the paper's estimate."""
        if parts < 2 or not math.isfinite(whole + squares):
            return
        trace = (squares - samples * whole) / (parts - 1)
        self.gradient = self.decay * self.gradient + (1 - self.decay) * (whole - trace / samples)
        self.trace = self.decay * self.trace + (1 - self.decay) * trace
        self.estimates += 1


def _why_not(trainer: Any, model: LightningModule) -> str | None:
    """Return why the noise scale can't be measured, or None."""
    strategy = trainer.strategy
    if not model.automatic_optimization:
        return f"{type(model).__name__} optimizes by hand"
    if trainer.world_size * trainer.accumulate_grad_batches == 1:
        return "a batch has one part; use trainer.accumulate_grad_batches=2 or more processes"
    is_other_mean = isinstance(strategy, PlannedWorldSize) and (strategy.communication is not None or strategy.has_same_bits)
    if is_other_mean or not isinstance(strategy, DDPStrategy | SingleDeviceStrategy):
        return f"with {type(strategy).__name__} as configured the gradient is not the mean of whole gradients of processes"
    return None


def _norm(gradient: Tensor) -> Tensor:
    return torch.linalg.vector_norm(gradient, dtype=torch.promote_types(gradient.dtype, torch.float32))


def _squared(norms: list[Tensor]) -> Tensor:
    return torch.stack(norms).square().sum()
