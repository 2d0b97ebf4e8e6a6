"""The gradient noise scale: how large a batch has to be until a larger one makes hardly better steps."""

import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, fields
from functools import partial
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from torch import Tensor
from torch.optim import Optimizer

from lockstep.extras.monitors.monitor import Monitor, together, watched
from lockstep.extras.noise_scale.smoothed import Smoothed
from lockstep.models import Task
from lockstep.trainer.steps import begins_step

log = logging.getLogger(__name__)
_KNOWN = {"SGD", "Adam", "AdamW", "NAdam", "RAdam"}  # optimizers, and those derived from them, whose steps' geometry is known


class NoiseScale(Monitor, Callback):
    """Estimates tr(Sigma) / |G|^2, in samples, while training: G is the gradient of the expected loss, Sigma the covariance of
    the gradients of single samples (McCandlish et al. 2018, arXiv:1812.06162, equation 2.9 and appendix A.1).

    A sampled step's batch consists of parts: what each process has of it, or each accumulated batch, or each virtual worker, and
    in one process without accumulation two halves. From the gradients' squared norms over the parts, before the all-reduce, and
    over the whole follow unbiased estimates of |G|^2 and tr(Sigma); each is smoothed, then they are divided. Gradients are only
    looked at: training is the same to the bit. Halves take another backward pass, and for its time the memory of another set of
    gradients.

    geometry: with `optimizer`, gradients of Adam and AdamW are measured as these scale them: |g|^2 is the sum of
    g_i^2 / (sqrt(v_i) + eps), v the optimizer's second moment before the step, so that it is tr(P Sigma) / G P G. Those of an SGD
    are measured as with `euclidean`, those of other optimizers not at all. The first step, which has no moments yet, is not
    sampled then.

    Where BatchNorm couples samples there is no gradient of a single one; what a part then adds to the step's gradient counts.
    """

    def __init__(
        self, every_n_steps: int = 40, every_n_steps_alone: int = 100, decay: float = 0.95, geometry: str = "euclidean"
    ) -> None:
        self.every_n_steps, self.every_n_steps_alone, self.decay = every_n_steps, every_n_steps_alone, decay
        self.geometry = geometry
        self._metric: dict[Tensor, Tensor] = {}  # of a parameter: what its gradient is multiplied by before its norm
        self.smoothed = Smoothed()
        self._every = 0  # steps; 0: none is sampled
        self._has_halves = False
        self._batch: Any = None
        self._parts: list[tuple[Tensor, float, int]] = []  # of this step and process: squared norm, factor, samples
        self._factor = 0.0  # of a part: what the square of its gradient is multiplied by for samples * |mean gradient|^2
        self._whole: float | None = None  # |g|^2 of the step
        self._norms: list[Tensor] = []
        self._outputs: list[Any] = []
        self._first_half: list[tuple[Tensor, Tensor]] = []  # parameters and gradients
        self._handles: list[Any] = []

    def facts(self) -> dict[str, Any]:
        """Returns what the record of the run has of it."""
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
        content = dict(state_dict)
        if "told" in content:  # as earlier checkpoints name it
            content["ratios"] = content.pop("told")
        self.smoothed = Smoothed(**{field.name: content[field.name] for field in fields(Smoothed) if field.name in content})

    @together
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.synchronize(trainer, lambda: self._begin(trainer, pl_module))

    def _begin(self, trainer: Trainer, pl_module: LightningModule) -> None:
        shares = getattr(trainer.strategy, "workers", trainer.world_size)
        self._has_halves = shares * trainer.accumulate_grad_batches == 1
        reason = _why_not(trainer, pl_module, self._has_halves)
        kinds = [type(optimizer) for optimizer in trainer.optimizers] if self.geometry == "optimizer" else []
        if unknown := [kind.__name__ for kind in kinds if not {base.__name__ for base in kind.__mro__} & _KNOWN]:
            reason = f"the geometry of {unknown[0]}'s steps is not known; accepted is geometry=euclidean"
        if reason is not None:
            log.warning(f"callbacks.noise_scale: no noise scale is estimated: {reason}")
        self._every = 0 if reason else self.every_n_steps_alone if self._has_halves else self.every_n_steps

    def _is_sampled(self, trainer: Trainer) -> bool:
        first, step = 0 if self.geometry == "euclidean" else 1, trainer.global_step
        return self._every > 0 and step >= first and step % self._every == 0

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if not self._is_sampled(trainer):
            return
        if begins_step(trainer, batch_idx):
            self._parts.clear()
            self._metric = _metric(trainer.optimizers) if self.geometry == "optimizer" else {}
        self._batch = batch
        if self._has_halves:
            self._handles.append(pl_module.register_forward_hook(lambda _, __, outputs: self._outputs.append(outputs)))

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        if not self._is_sampled(trainer):
            return
        parameters = [parameter for parameter in pl_module.parameters() if parameter.requires_grad]
        if self._has_halves:
            self._remove_hooks()
            self._first_half = self._differentiate_first_half(loss, parameters)
        else:  # a leaf's hook is called with what this backward adds to its gradient, before DDP has it
            self._factor = _factor(trainer, self._batch, len(self._batch.ids))
            self._handles += [parameter.register_hook(partial(self._keep, parameter)) for parameter in parameters]

    @watched
    def _keep(self, parameter: Tensor, gradient: Tensor) -> None:
        self._norms.append(self._norm(parameter, gradient))

    def _norm(self, parameter: Tensor, gradient: Tensor) -> Tensor:
        factor = self._metric.get(parameter)
        return _norm(gradient if factor is None else gradient * factor)

    def _differentiate_first_half(self, loss: Tensor, parameters: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """What the first half of the samples adds to each parameter's gradient, through the outputs that the loss is of; nothing
        where these are not one row for each sample."""
        passes, self._outputs = self._outputs, []
        samples, outputs = len(self._batch.ids), passes[0] if len(passes) == 1 else None
        if not isinstance(outputs, Tensor) or len(outputs) != samples or samples < 2:
            return []
        (slopes,) = torch.autograd.grad(loss, outputs, retain_graph=True)
        slopes = slopes.clone()
        slopes[samples // 2 :] = 0
        gradients = torch.autograd.grad(outputs, parameters, slopes, retain_graph=True, allow_unused=True)
        return [(parameter, half) for parameter, half in zip(parameters, gradients, strict=True) if half is not None]

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self._is_sampled(trainer):
            return
        self._remove_hooks()
        if self._has_halves:
            for gradients, samples in self._halves():
                self._add_part(trainer, gradients, samples, self._batch)
        else:
            self._end_part(len(self._batch.ids))
        self._first_half = []

    def on_worker_end(self, trainer: Trainer, pl_module: LightningModule, batch: Any) -> None:
        """Called by a strategy that divides a step among virtual workers, with the gradients of one of them."""
        if self._is_sampled(trainer):
            self._add_part(trainer, _gradients(pl_module), len(batch.ids), batch)

    def _add_part(self, trainer: Trainer, gradients: Iterable[tuple[Tensor, Tensor]], samples: int, batch: Any) -> None:
        self._factor = _factor(trainer, batch, samples)
        for parameter, gradient in gradients:
            self._keep(parameter, gradient)
        self._end_part(samples)

    def _end_part(self, samples: int) -> None:
        if samples and self._norms:
            self._parts.append((_squared(self._norms), self._factor, samples))
        self._norms = []

    def _halves(self) -> Iterator[tuple[list[tuple[Tensor, Tensor]], int]]:
        pairs = [(parameter, parameter.grad, half) for parameter, half in self._first_half if parameter.grad is not None]
        samples = len(self._batch.ids)
        yield [(parameter, half) for parameter, _, half in pairs], samples // 2
        yield [(parameter, whole - half) for parameter, whole, half in pairs], samples - samples // 2

    def release(self) -> None:
        self._remove_hooks()

    def _remove_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    @together
    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        if self._is_sampled(trainer):
            self._sample(trainer, pl_module)

    def _sample(self, trainer: Trainer, model: LightningModule) -> None:
        rows = self.synchronize(trainer, lambda: self._own_rows(trainer, model))
        if rows is None:
            return
        ranks: list[Any] = [rows] * trainer.world_size
        if trainer.world_size > 1:
            dist.all_gather_object(ranks, rows)
        # fsum rounds once: the sums have the same bits however the parts are divided among processes
        squares, parts, samples = (math.fsum(column) for column in zip((0, 0, 0), *chain(*ranks), strict=True))
        self._estimate(squares, parts, samples, self._whole)
        if (ratio := self.smoothed.ratio) is not None:
            for logger in trainer.loggers:
                logger.log_metrics({"noise_scale": ratio}, step=trainer.global_step)

    def _estimate(self, squares: float, parts: float, samples: float, whole: float | None) -> None:
        """From |g|^2 of the step, and of its parts, which may be of unequal size: the sum over the parts of samples * |mean
        gradient|^2 is expected to be samples * |G|^2 + parts * tr(Sigma). For equal ones these are the paper's estimates."""
        if parts < 2 or whole is None or not math.isfinite(whole + squares):
            return
        trace = (squares - samples * whole) / (parts - 1)
        gradient = whole - trace / samples
        if abs(gradient) + abs(trace) < float("inf"):
            self.smoothed.add(gradient, trace, self.decay)

    def _own_rows(self, trainer: Trainer, model: LightningModule) -> list[tuple[float, int, int]]:
        """Samples * |mean gradient|^2, 1, samples: of each of this process's parts of the step."""
        norms = [self._norm(parameter, gradient) for parameter, gradient in _gradients(model)]
        self._whole = float(_squared(norms)) if norms else None  # the step is left out: its gradients were not finite
        return [(float(square) * factor, 1, samples) for square, factor, samples in self._parts]


def _gradients(model: LightningModule) -> list[tuple[Tensor, Tensor]]:
    return [(parameter, parameter.grad) for parameter in model.parameters() if parameter.grad is not None]


def _factor(trainer: Trainer, batch: Any, samples: int) -> float:
    """A sample counts in a part's gradient with loss_weight / accumulation, and in its mean with 1 / samples."""
    scaler = getattr(trainer.precision_plugin, "scaler", None)  # 16-mixed unscales before the optimizer's step
    scale = 1.0 if scaler is None else scaler.get_scale()
    return (trainer.accumulate_grad_batches / batch.loss_weight / scale) ** 2 / samples if samples else 0.0


def _why_not(trainer: Any, model: LightningModule, has_halves: bool) -> str | None:
    """What keeps a run from being measured."""
    if not isinstance(model, Task):
        return f"{type(model).__name__} is no lockstep.models.Task, which says how a sample counts in the gradient"
    if not isinstance(trainer.strategy, DDPStrategy | SingleDeviceStrategy):
        return f"with {type(trainer.strategy).__name__} a process does not have whole gradients"
    if getattr(trainer.strategy, "communication", None) is not None:
        return "with trainer.strategy.communication the gradient of a step is not the mean of its parts"
    if has_halves and hasattr(trainer.strategy, "workers"):
        return "one virtual worker is one part of a step; accepted is trainer.exact=2 or more"
    if has_halves and any(getattr(module, "_compiled_call_impl", None) is not None for module in model.modules()):
        return "a compiled net can't be passed backward twice; accepted is trainer.accumulate_grad_batches=2 or more processes"
    return None


def _metric(optimizers: Sequence[Optimizer]) -> dict[Tensor, Tensor]:
    """The square root of what an Adam divides by, of each parameter that one has stepped."""
    groups = [(optimizer.state, group) for optimizer in optimizers for group in optimizer.param_groups if "betas" in group]
    states = [
        (state[one], group, one) for state, group in groups for one in group["params"] if "exp_avg_sq" in state.get(one, {})
    ]
    return {
        one: ((state["exp_avg_sq"] / (1 - group["betas"][1] ** state["step"])).sqrt() + group["eps"]).rsqrt()
        for state, group, one in states
    }


def _norm(gradient: Tensor) -> Tensor:
    gradient = gradient.coalesce().values() if gradient.is_sparse else gradient
    return torch.linalg.vector_norm(gradient, dtype=torch.promote_types(gradient.dtype, torch.float32))


def _squared(norms: list[Tensor]) -> Tensor:
    return torch.stack(norms).square().sum()
