"""A callback that records what each step, validation and test of a training did."""

import contextlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from lightning import Callback, LightningModule, Trainer
from torch import Tensor

from lockstep.models.task import Task
from lockstep.parity.draws import drawn_between, states
from lockstep.parity.exchange import Exchange
from lockstep.parity.interventions import counted_tokens, round_anew
from lockstep.parity.samples import Prints, fingerprints, gathered
from lockstep.parity.tensors import Differences, Tensors, copied

Observed = dict[str, Any]  # by quantity: tensors by name, or the fingerprints of samples
_PATIENCE = 10  # epochs without an optimizer step, until there will be none


class Recorder(Callback):
    """Collects what happens from the beginning of an optimizer step, a validation or a test to its end."""

    rounds: int | None = None  # a number: each gradient's rounding is then another, that of the number

    def __init__(self, exchange: Exchange, takes_over_rates: bool, report: Callable[[str], None]) -> None:
        self.exchange, self.takes_over_rates, self.report = exchange, takes_over_rates, report
        self.differences = Differences()
        self.facts: dict[str, Any] = {"draws": set(), "unused": False, "steps": 0, "logged per step": set(), "not tensors": set()}
        self.facts |= {"ran": set(), "trained": set(), "no loss": False, "tokens": False, "logged alone": False}
        self.end: Tensors = {}  # the weights at the end of training
        self._in_step = False
        self._observed: Observed = {}
        self._losses: list[Tensor] = []
        self._samples: list[Prints] = []
        self._logged_names: set[str] = set()
        self._known: dict[str, Tensor] = {}  # metrics from before a validation, or the end of an epoch
        self._step = 0  # the trainer's, of which an optimizer each counts where there are several
        self._number = 0  # of the step
        self._epoch_began_at, self._epochs_without_step = -1, 0

    def begins(self, trainer: Trainer, model: LightningModule, what: str) -> None:
        """Before a step, validation or test."""

    def ends(self, trainer: Trainer, model: LightningModule, what: str, observed: Observed) -> None:
        """After it; `observed` is whole on rank zero."""

    def rates(self) -> list[float] | None:
        """The other side's learning rates in this step, where it is known."""
        return None

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._epochs_without_step = self._epochs_without_step + 1 if self._epoch_began_at == trainer.global_step else 0
        if self._epochs_without_step == _PATIENCE:
            trainer.should_stop = True
        self._epoch_began_at = trainer.global_step
        self._ends_epoch(trainer, pl_module)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self.report(f"in step {self._number}")
        if not self._in_step:
            self._in_step, self._observed, self._losses, self._samples = True, {}, [], []
            self.begins(trainer, pl_module, "step")
        self._samples.append(fingerprints(batch))
        self.facts["tokens"] |= any(ignored for _, ignored in counted_tokens(batch).values())
        self._generator, self._generators = _generator_state(pl_module), states()

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not torch.equal(self._generator, _generator_state(pl_module)):
            self.facts["draws"].add("torch")
        self.facts["draws"] |= drawn_between(self._generators, states())

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        rates = self.rates() if self.takes_over_rates else None
        for group, rate in zip(optimizer.param_groups, rates or [], strict=False):
            group["lr"] = rate
        known = self._observed.setdefault("learning rate", {})  # of another optimizer in this step
        numbers = {f"parameter group {i}": float(group["lr"]) for i, group in enumerate(optimizer.param_groups, len(known))}
        if self.rounds is not None:
            round_anew(optimizer, self.rounds, self._number)
        trained = {name: parameter.grad for name, parameter in pl_module.named_parameters() if parameter.requires_grad}
        gradients = {name: gradient for name, gradient in trained.items() if gradient is not None}
        self.facts["unused"] |= len(gradients) < len(trained)
        self.facts["trained"] |= gradients.keys()
        known.update({name: torch.tensor(value, dtype=torch.float64) for name, value in numbers.items()})
        self._observed.setdefault("gradients", {}).update(copied(gradients) if trainer.is_global_zero else {})

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if isinstance(loss, Tensor):
            self._losses.append(loss.detach())
        else:
            self.facts["no loss"] = True  # the model has left the batch out, or optimizes by itself
        self._known = dict(trainer.callback_metrics)
        if trainer.global_step == self._step:
            return  # the step's window has further batches
        self._in_step, self._step = False, trainer.global_step
        total = trainer.strategy.reduce(sum(self._losses, torch.zeros((), device=pl_module.device)), reduce_op="mean")
        self._observed["loss"] = copied({"": torch.as_tensor(total)})
        self._observed["samples"] = gathered(self._samples)
        self._observed["buffers"] = copied(dict(pl_module.named_buffers()))
        self.ends(trainer, pl_module, "step", self._observed)
        self._number += 1
        self.facts["steps"] = trainer.global_step

    def _ends_epoch(self, trainer: Trainer, model: LightningModule) -> None:
        """What training has logged of an epoch is known once its last hook is over."""
        if self._number == 0:
            return
        self.begins(trainer, model, "epoch")
        metrics = self._logged(trainer, model)
        self.facts["logged per step"] |= self._known.keys() - self._logged_names
        self.ends(trainer, model, "epoch", {"training metrics": metrics})

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._ends_epoch(trainer, pl_module)
        self.end = copied(dict(pl_module.named_parameters()))
        self.facts["batches per epoch"] = _length(trainer.train_dataloader)
        self.begins(trainer, pl_module, "end of training")
        self.ends(trainer, pl_module, "end of training", {})

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._evaluation_starts(trainer, pl_module, "validation")

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._evaluation_starts(trainer, pl_module, "test")

    def _evaluation_starts(self, trainer: Trainer, model: LightningModule, what: str) -> None:
        self._known, self._samples = dict(trainer.callback_metrics), []
        self.begins(trainer, model, what)

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self.report(f"in validation batch {batch_idx}")
        self._samples.append(fingerprints(batch, f"loader {dataloader_idx}"))

    def on_test_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self.report(f"in test batch {batch_idx}")
        self._samples.append(fingerprints(batch, f"loader {dataloader_idx}"))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._evaluation_ends(trainer, pl_module, "validation")

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._evaluation_ends(trainer, pl_module, "test")

    def _evaluation_ends(self, trainer: Trainer, model: LightningModule, what: str) -> None:
        metrics = self._logged(trainer, model)
        self.facts["ran"].add(what)
        self.ends(trainer, model, what, {f"{what} samples": gathered(self._samples), f"{what} metrics": metrics})
        self._known = dict(trainer.callback_metrics)

    def _logged(self, trainer: Trainer, model: LightningModule) -> Tensors:
        """What has been logged since `_known` was, of all ranks: Lightning keeps earlier metrics among these, and those of
        single batches beside those of an epoch. A rank's own are those that rank zero has not."""
        metrics = trainer.callback_metrics
        batches = {name for name in metrics if name.endswith("_step") and f"{name.removesuffix('_step')}_epoch" in metrics}
        logged = {name: value for name, value in metrics.items() if name not in batches}
        logged = {name: value for name, value in logged.items() if not _is_same(value, self._known.get(name))}
        self._logged_names |= logged.keys() | batches
        if isinstance(model, Task):  # it knows them in float64
            logged |= {name: torch.tensor(model.results[name]).double() for name in logged.keys() & model.results.keys()}
        everyone = _of_all_ranks(copied(logged))
        self.facts["logged alone"] |= any(other.keys() != everyone[0].keys() for other in everyone)
        alone = [(rank, name) for rank, other in enumerate(everyone) for name in other if name not in everyone[0]]
        return everyone[0] | {f"{name} of process {rank}": everyone[rank][name] for rank, name in alone}


def _of_all_ranks(metrics: Tensors) -> list[Tensors]:
    ranks: list[Any] = [metrics]
    if dist.is_initialized():
        ranks = [None] * dist.get_world_size()
        dist.all_gather_object(ranks, metrics)
    return ranks


def _is_same(value: Tensor, known: Tensor | None) -> bool:
    """Lightning hands out the same number as a new tensor each time."""
    return known is not None and value.data_ptr() == known.data_ptr()


def _length(loader: Any) -> int | None:
    """Of the training loader; None where that is not known."""
    with contextlib.suppress(TypeError, NotImplementedError):
        return len(loader)
    return None


def _generator_state(model: LightningModule) -> Tensor:
    """Of the generator that noise in the model would come from."""
    return torch.cuda.get_rng_state(model.device) if model.device.type == "cuda" else torch.get_rng_state()
