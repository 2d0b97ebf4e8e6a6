"""Inside the ranks: what each step did, and how far that is from what the other side did from the same state.

The leader trains as it would. Before each step a follower takes over the leader's state and makes the same step with its
own processes, batches and kernels: what then differs, differs because of these, and not of an earlier step.
"""

import contextlib
import math
from typing import Any

import torch
import torch.distributed as dist
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, DeviceStatsMonitor, EarlyStopping, LearningRateMonitor, ProgressBar
from omegaconf import DictConfig
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves

from lockstep.build import build
from lockstep.callbacks import NonFinite, Preemption, Watchdog
from lockstep.callbacks.nonfinite import NonFiniteLoss
from lockstep.config.plan import Plan
from lockstep.models.task import Task
from lockstep.parity.exchange import Exchange
from lockstep.parity.interventions import freeze, permute, without_dropout
from lockstep.parity.sides import LR, NO_DROPOUT, Difference, Findings, Role

Tensors = dict[str, Tensor]
Observed = dict[str, Tensors]  # by quantity, by name


def train(cfg: DictConfig, role: Role, where: tuple[Any, ...], permutation: int, interventions: frozenset[str]) -> Findings:
    """One training of one side, in every rank of it. `lead` and `follow` run at the same time; `finish` trains freely,
    afterwards, and compares the weights it ends with."""
    datamodule, model, trainer = _built(cfg)
    recorder = {"lead": Leader, "follow": Follower, "finish": Finisher}[role](Exchange(*where), LR in interventions)
    # what leaves something, ends it, or needs a logger
    unwanted = (Checkpoint, ProgressBar, EarlyStopping, Preemption, NonFinite, Watchdog, LearningRateMonitor, DeviceStatsMonitor)
    kept = [callback for callback in trainer.callbacks if not isinstance(callback, unwanted)]
    trainer.callbacks = [*kept, recorder]
    freeze(model, interventions)
    if permutation:
        permute(datamodule, permutation)
    with without_dropout(model) if NO_DROPOUT in interventions else contextlib.nullcontext():
        trainer.fit(model, datamodule)
    recorder.facts |= {
        "batchnorm": has_batchnorm(model),
        "sgd": all(isinstance(optimizer, torch.optim.SGD) for optimizer in trainer.optimizers),
        "validation": datamodule.describe()["val"] if hasattr(datamodule, "describe") else 0,
        "whole epoch": trainer.num_training_batches < cfg.trainer.limit_train_batches,
    }
    return Findings(recorder.differences, recorder.facts)


def _built(cfg: DictConfig) -> tuple[Any, Any, Any]:
    return build(cfg, Plan.of(cfg))


def has_batchnorm(model: torch.nn.Module) -> bool:
    return any(isinstance(module, _BatchNorm) for module in model.modules())


def builds_batchnorm(cfg: DictConfig) -> bool:
    """Has the configured model a BatchNorm: then a larger batch is not what an accumulated one is."""
    return has_batchnorm(_built(cfg)[1])


class Recorder(Callback):
    """Collects what happens from the beginning of an optimizer step, or a validation, to its end."""

    def __init__(self, exchange: Exchange, take_over_rates: bool) -> None:
        self.exchange, self.take_over_rates = exchange, take_over_rates
        self.differences: list[Difference] = []
        self.facts: dict[str, Any] = {"draws": False, "unused": False}
        self._in_step = False
        self._observed: Observed = {}
        self._losses: list[Tensor] = []
        self._samples: list[Tensor] = []
        self._known: dict[str, Tensor] = {}  # metrics from before a validation
        self._step = 0  # the trainer's, of which an optimizer each counts where there are several
        self._number = 0  # of the step

    def begins(self, trainer: Trainer, model: LightningModule) -> None:
        """Before a step or validation."""

    def ends(self, trainer: Trainer, model: LightningModule, observed: Observed) -> None:
        """After it; `observed` is whole on rank zero."""

    def rates(self) -> list[float] | None:
        """The other side's learning rates in this step, where it is known."""
        return None

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if not self._in_step:
            self._in_step, self._observed, self._losses, self._samples = True, {}, [], []
            self.begins(trainer, pl_module)
        self._samples.append(fingerprints(batch))
        self._generator = _generator_state(pl_module)

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.facts["draws"] |= not torch.equal(self._generator, _generator_state(pl_module))

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        rates = self.rates() if self.take_over_rates else None
        for group, rate in zip(optimizer.param_groups, rates or [], strict=False):
            group["lr"] = rate
        known = self._observed.setdefault("learning rate", {})  # of another optimizer in this step
        numbers = {f"parameter group {i}": float(group["lr"]) for i, group in enumerate(optimizer.param_groups, len(known))}
        trained = {name: parameter.grad for name, parameter in pl_module.named_parameters() if parameter.requires_grad}
        gradients = {name: gradient for name, gradient in trained.items() if gradient is not None}
        self.facts["unused"] |= len(gradients) < len(trained)
        known.update({name: torch.tensor(value, dtype=torch.float64) for name, value in numbers.items()})
        self._observed.setdefault("gradients", {}).update(copied(gradients) if trainer.is_global_zero else {})

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if isinstance(loss, Tensor):  # else the model has left the batch out, or optimizes by itself
            self._losses.append(loss.detach())
        if trainer.global_step == self._step:
            return  # the step's window has further batches
        self._in_step, self._step = False, trainer.global_step
        total = trainer.strategy.reduce(sum(self._losses, torch.zeros((), device=pl_module.device)), reduce_op="mean")
        self._observed["loss"] = copied({"": torch.as_tensor(total)})
        self._observed["samples"] = {"": _gathered(torch.cat(self._samples))}
        if has_batchnorm(pl_module):
            buffers = {name: buffer for name, buffer in pl_module.named_buffers() if buffer.is_floating_point()}
            self._observed["BatchNorm statistics"] = copied(buffers)
        self.ends(trainer, pl_module, self._observed)
        self._number += 1

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._known = dict(trainer.callback_metrics)
        self.begins(trainer, pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Lightning keeps training's metrics among these, and those of single batches beside those of an epoch."""
        metrics = trainer.callback_metrics
        batches = {name for name in metrics if name.endswith("_step") and f"{name.removesuffix('_step')}_epoch" in metrics}
        logged = {name: value for name, value in metrics.items() if value is not self._known.get(name) and name not in batches}
        if isinstance(pl_module, Task):  # it knows them in float64
            logged |= {name: torch.tensor(pl_module.results[name]).double() for name in logged.keys() & pl_module.results.keys()}
        self.ends(trainer, pl_module, {"validation metrics": copied(logged)})


class Leader(Recorder):
    """Trains, and tells its followers about each step."""

    _before: Tensors
    _rates: list[list[float]]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._rates = []

    def begins(self, trainer: Trainer, model: LightningModule) -> None:
        self._before = copied(model.state_dict()) if trainer.is_global_zero else {}

    def ends(self, trainer: Trainer, model: LightningModule, observed: Observed) -> None:
        if "learning rate" in observed:
            self._rates.append([float(rate) for rate in observed["learning rate"].values()])
        if not all(loss.isfinite() for loss in observed.get("loss", {}).values()):
            raise NonFiniteLoss(f"at step {trainer.global_step - 1} the loss is not finite: there is nothing to compare")
        if trainer.is_global_zero:
            self.exchange.send({"state": self._before, **observed})

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero:
            self.exchange.end({"weights": copied(dict(pl_module.named_parameters())), "rates": self._rates})


class Follower(Recorder):
    """Makes each of the leader's steps from the leader's state, and notes how far it comes to lie from it."""

    _leader: dict[str, Any] | None = None
    _is_lost = False  # the leader is in a step where this side validates, or the other way round

    def begins(self, trainer: Trainer, model: LightningModule) -> None:
        if self._is_lost:
            return
        self._leader = self.exchange.receive()
        if self._leader is not None:
            with torch.no_grad():
                for name, tensor in model.state_dict().items():
                    tensor.copy_(self._leader["state"][name])

    def rates(self) -> list[float] | None:
        return [float(rate) for rate in (self._leader or {}).get("learning rate", {}).values()]

    def ends(self, trainer: Trainer, model: LightningModule, observed: Observed) -> None:
        if self._is_lost:
            return
        if self._leader is None or self._leader.keys() - {"state"} != observed.keys():
            self._loses(trainer)
            return
        step = max(0, trainer.global_step - 1)
        if trainer.is_global_zero:
            for quantity, found in observed.items():
                self.differences += differences(step, quantity, self._leader[quantity], found)
        trainer.strategy.barrier()  # all have read
        if trainer.is_global_zero:
            self.exchange.acknowledge()
        self.exchange.number += 1

    def _loses(self, trainer: Trainer) -> None:
        self._is_lost = trainer.should_stop = True
        self.differences.append(Difference(max(0, trainer.global_step - 1), "steps per epoch", "", math.inf))
        self.exchange.leave()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self._is_lost and self.exchange.receive() is not None:  # the leader has more to do
            self._loses(trainer)
        self.exchange.leave()


class Finisher(Recorder):
    """Trains freely, and compares the weights it ends with."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._end = self.exchange.ended()

    def rates(self) -> list[float] | None:
        return self._end["rates"][self._number]

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        ours = copied(dict(pl_module.named_parameters()))
        self.differences += differences(trainer.global_step - 1, "weights", self._end["weights"], ours)


def copied(tensors: dict[str, Any]) -> Tensors:
    return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}


def differences(step: int, quantity: str, ours: Tensors, theirs: Tensors) -> list[Difference]:
    """Of each tensor of a quantity, by max|a-b| / max|a|; one that a side lacks counts as zero."""
    names = [*ours, *(name for name in theirs if name not in ours)]
    return [Difference(step, quantity, name, difference(ours.get(name), theirs.get(name))) for name in names]


def difference(a: Tensor | None, b: Tensor | None) -> float:
    """max|a-b| / max|a|; 0 where both are zero or empty, infinite where a alone is, or shapes or NaNs differ."""
    if a is None or b is None:
        a, b = (torch.zeros_like(b) if a is None else a), (torch.zeros_like(a) if b is None else b)  # pyright: ignore
    if a.shape != b.shape:
        return math.inf
    a, b = a.double(), b.double()
    if torch.allclose(a, b, rtol=0, atol=0, equal_nan=True):
        return 0.0
    distance, scale = (a - b).abs().max().item(), a.abs().max().item()
    return distance / scale if scale > 0 and math.isfinite(distance) else math.inf


def fingerprints(batch: Any) -> Tensor:
    """One number per sample, float64 (n,), made of every tensor in the batch that has the batch's length."""
    tensors = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.ndim]
    total = torch.zeros(len(tensors[0]) if tensors else 0, dtype=torch.float64)
    for number, tensor in enumerate(tensors):
        if len(tensor) == len(total):
            rows = tensor.detach().cpu().double()
            rows = rows.flatten(1) if rows.ndim > 1 else rows[:, None]
            total += rows @ torch.cos(torch.arange(rows.shape[1], dtype=torch.float64) + number)
    return total


def _gathered(values: Tensor) -> Tensor:
    """Of all ranks, in ascending order: which rank has a sample, and when in the step, does not matter."""
    parts: list[Any] = [values]
    if dist.is_initialized():
        parts = [None] * dist.get_world_size()
        dist.all_gather_object(parts, values)
    return torch.cat(parts).sort().values


def _generator_state(model: LightningModule) -> Tensor:
    """Of the generator that noise in the model would come from."""
    return torch.cuda.get_rng_state(model.device) if model.device.type == "cuda" else torch.get_rng_state()
