"""The gradient noise scale: how large a batch has to be until a larger one makes hardly better steps."""

import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from torch import Tensor
from torch.optim import Optimizer

from lockstep.errors import check_at_least
from lockstep.extras.any_batch.any_batch import samples_in
from lockstep.extras.monitor import Monitor, together, watched
from lockstep.extras.plain_lightning.callback import PlainLightning
from lockstep.extras.plain_lightning.processes import all_ranks
from lockstep.trainer.steps import begins_step

log = logging.getLogger(__name__)


@dataclass
class Smoothed:
    """Running means of |G|^2 and tr(Sigma), as Adam has them: divided by `weight` they don't lean towards zero.

    ratios, total: how many ratios there were, and their sum.
    """

    gradient: float = 0.0
    trace: float = 0.0
    weight: float = 0.0
    estimates: int = 0
    ratios: int = 0
    total: float = 0.0

    @property
    def ratio(self) -> float | None:
        """The noise scale in samples; None while |G|^2 can't be told from zero."""
        return self.trace / self.gradient if self.gradient > 0 else None

    def mean(self, value: float) -> float | None:
        return value / self.weight if self.estimates else None

    def add(self, gradient: float, trace: float, decay: float) -> None:
        self.gradient = decay * self.gradient + (1 - decay) * gradient
        self.trace = decay * self.trace + (1 - decay) * trace
        self.weight = decay * self.weight + 1 - decay
        self.estimates += 1
        if (ratio := self.ratio) is not None:
            self.ratios, self.total = self.ratios + 1, self.total + ratio


class NoiseScale(Monitor, Callback):
    """Estimate tr(Sigma) / |G|^2, in samples, while training: G is the gradient of the expected loss, Sigma the covariance of
    the gradients of single samples (McCandlish et al. 2018, arXiv:1812.06162, equation 2.9 and appendix A.1).

    A sampled step's batch consists of parts: what each process has of it, or each accumulated batch, and in one process without
    accumulation two halves. From the gradients' squared norms over the parts, before the all-reduce, and
    over the whole follow unbiased estimates of |G|^2 and tr(Sigma); each is smoothed, then they are divided. Gradients are only
    looked at: training is the same to the bit. Halves take another backward pass, and for its time the memory of another set of
    gradients.

    Where BatchNorm couples samples there is no gradient of a single one; what a part then adds to the step's gradient counts.
    """

    def __init__(self, every_n_steps: int = 40, every_n_steps_alone: int = 100, decay: float = 0.95) -> None:
        check_at_least(1, every_n_steps=every_n_steps, every_n_steps_alone=every_n_steps_alone)
        if not 0 <= decay < 1:
            raise ValueError(f"decay={decay}: averages nothing; use 0 to less than 1")
        self.every_n_steps, self.every_n_steps_alone, self.decay = every_n_steps, every_n_steps_alone, decay
        self.smoothed = Smoothed()
        self._every = 0  # steps; 0: none is sampled
        self._has_halves = False
        self._batch: Any = None
        self._parts: list[tuple[Tensor, float, int]] = []  # of this step and process: squared norm, factor, samples
        self._norms: list[Tensor] = []
        self._outputs: list[Any] = []
        self._first_half: list[tuple[Tensor, Tensor]] = []  # gradients of parameters, and their first half
        self._handles: list[Any] = []

    def facts(self) -> dict[str, Any]:
        smoothed = self.smoothed
        return {
            "noise_scale": smoothed.ratio,
            "noise_scale_mean": smoothed.total / smoothed.ratios if smoothed.ratios else None,
            "noise_scale_gradient_squared": smoothed.mean(smoothed.gradient),
            "noise_scale_trace": smoothed.mean(smoothed.trace),
            "noise_scale_estimates": smoothed.estimates,
        }

    def state_dict(self) -> dict[str, Any]:
        return asdict(self.smoothed)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.smoothed = Smoothed(**state_dict)

    @together
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.synchronize(trainer, lambda: self._begin(trainer, pl_module))

    def _begin(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._has_halves = trainer.world_size * trainer.accumulate_grad_batches == 1
        if (reason := _why_not(trainer, pl_module, self._has_halves)) is not None:
            log.warning(f"callbacks.noise_scale: no noise scale is estimated: {reason}")
        self._every = 0 if reason else self.every_n_steps_alone if self._has_halves else self.every_n_steps

    def _is_sampled(self, trainer: Trainer) -> bool:
        return self._every > 0 and trainer.global_step % self._every == 0

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if not self._is_sampled(trainer):
            return
        if begins_step(trainer, batch_idx):
            self._parts.clear()
        self._batch = batch
        if self._has_halves:
            self._handles.append(pl_module.register_forward_hook(lambda _, __, outputs: self._outputs.append(outputs)))

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        if not self._is_sampled(trainer):
            return
        parameters = [parameter for parameter in pl_module.parameters() if parameter.requires_grad]
        if self._has_halves:
            self.release()
            self._first_half = self._differentiate_first_half(loss, parameters)
        else:  # a leaf's hook is called with what this backward adds to its gradient, before DDP has it
            self._handles += [parameter.register_hook(self._keep) for parameter in parameters]

    @watched
    def _keep(self, gradient: Tensor) -> None:
        self._norms.append(_norm(gradient))

    def _differentiate_first_half(self, loss: Tensor, parameters: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Return what the first half of the samples adds to each parameter's gradient, through the outputs that the loss is of;
        nothing where these are not one row for each sample."""
        passes, self._outputs = self._outputs, []
        samples, outputs = samples_in(self._batch) or 0, passes[0] if len(passes) == 1 else None
        if not isinstance(outputs, Tensor) or len(outputs) != samples or samples < 2:
            return []
        (slopes,) = torch.autograd.grad(loss, outputs, retain_graph=True)
        slopes = slopes.clone()
        slopes[samples // 2 :] = 0
        gradients = torch.autograd.grad(outputs, parameters, slopes, retain_graph=True, allow_unused=True)
        return [(parameter, half) for parameter, half in zip(parameters, gradients, strict=True) if half is not None]

    def on_after_backward(self, trainer: Any, pl_module: LightningModule) -> None:
        if not self._is_sampled(trainer):
            return
        self.release()
        samples = samples_in(self._batch) or 0
        weight = sum(one.weight for one in trainer.callbacks if isinstance(one, PlainLightning)) / samples
        if self._has_halves:
            pairs = [(parameter.grad, half) for parameter, half in self._first_half if parameter.grad is not None]
            self._add_part(trainer, (half for _, half in pairs), samples // 2, weight)
            self._add_part(trainer, (whole - half for whole, half in pairs), samples - samples // 2, weight)
        elif weight:
            self._add_part(trainer, (), samples, weight)
        self._first_half = []

    def _add_part(self, trainer: Trainer, gradients: Iterable[Tensor], samples: int, weight: float) -> None:
        norms, self._norms = [*self._norms, *map(_norm, gradients)], []
        if samples and norms:
            self._parts.append((_squared(norms), _factor(trainer, weight, samples), samples))

    def release(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    @together
    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        if not self._is_sampled(trainer):
            return
        own = self.synchronize(trainer, lambda: self._own_rows(pl_module))
        if own is None:
            return
        whole, rows = own
        # fsum rounds once: the sums have the same bits however the parts are divided among processes
        squares, parts, samples = (math.fsum(column) for column in zip((0, 0, 0), *chain(*all_ranks(rows)), strict=True))
        self._estimate(squares, parts, samples, whole)
        if (ratio := self.smoothed.ratio) is not None:
            for logger in trainer.loggers:
                logger.log_metrics({"noise_scale": ratio}, step=trainer.global_step)

    def _own_rows(self, model: LightningModule) -> tuple[float | None, list[tuple[float, int, int]]]:
        """Return |g|^2 of the step, None where it is left out since it was not finite, and of each of this process's parts
        samples * |mean gradient|^2, 1, samples."""
        norms = [_norm(gradient) for gradient in _gradients(model)]
        rows = [(float(square) * factor, 1, samples) for square, factor, samples in self._parts]
        return float(_squared(norms)) if norms else None, rows

    def _estimate(self, squares: float, parts: float, samples: float, whole: float | None) -> None:
        """From |g|^2 of the step, and of its parts, which may be of unequal size: the sum over the parts of samples * |mean
        gradient|^2 is expected to be samples * |G|^2 + parts * tr(Sigma). For equal ones these are the paper's estimates."""
        if parts < 2 or whole is None or not math.isfinite(whole + squares):
            return
        trace = (squares - samples * whole) / (parts - 1)
        self.smoothed.add(whole - trace / samples, trace, self.decay)


def _gradients(model: LightningModule) -> list[Tensor]:
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def _factor(trainer: Trainer, weight: float, samples: int) -> float:
    """A sample counts in a part's gradient with weight / accumulation, and in its mean with 1 / samples."""
    scaler = getattr(trainer.precision_plugin, "scaler", None)  # 16-mixed unscales before the optimizer's step
    scale = 1.0 if scaler is None else scaler.get_scale()
    return (trainer.accumulate_grad_batches / weight / scale) ** 2 / samples


def _why_not(trainer: Any, model: LightningModule, has_halves: bool) -> str | None:
    """Return what keeps a run from being measured."""
    if not model.automatic_optimization:
        return f"{type(model).__name__} optimizes by hand"
    if not isinstance(trainer.strategy, DDPStrategy | SingleDeviceStrategy):
        return f"with {type(trainer.strategy).__name__} a process does not have whole gradients"
    if getattr(trainer.strategy, "communication", None) is not None:
        return "with trainer.strategy.communication the gradient of a step is not the mean of its parts"
    if hasattr(trainer.strategy, "workers"):
        return "trainer.exact sums gradients in its own way"
    if has_halves and any(getattr(module, "_compiled_call_impl", None) is not None for module in model.modules()):
        return "a compiled net can't be passed backward twice; use trainer.accumulate_grad_batches=2 or more processes"
    return None


def _norm(gradient: Tensor) -> Tensor:
    gradient = gradient.coalesce().values() if gradient.is_sparse else gradient
    return torch.linalg.vector_norm(gradient, dtype=torch.promote_types(gradient.dtype, torch.float32))


def _squared(norms: list[Tensor]) -> Tensor:
    return torch.stack(norms).square().sum()
