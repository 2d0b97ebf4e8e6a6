"""A callback that records what each step, validation and test of a training did."""

from collections.abc import Mapping
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.fabric.utilities.data import sized_len
from torch import Tensor

from lockstep.extras.parity.differences import (
    Differences,
    Fingerprints,
    Tensors,
    all_ranks,
    copy_tensors,
    difference,
    fingerprints,
    gather,
)
from lockstep.extras.parity.interventions import add_rounding, count_tokens
from lockstep.extras.parity.records import Records
from lockstep.extras.plain_lightning.processes import generator_states
from lockstep.models.task import Task
from lockstep.runs.shares import dp_rank_and_size

Observed = dict[str, Any]  # by quantity: tensors by name, or the fingerprints of samples


class Recorder(Callback):
    """Collects what happens from the beginning of an optimizer step, a validation or a test to its end.

    `facts` are what is known of the model then.
    """

    def __init__(self, interventions: Mapping[Any, Any], records: Records) -> None:
        self.interventions, self.records = interventions, records
        self.differences = Differences()
        self.facts: dict[str, Any] = {"draws": set(), "unused": False, "steps": 0, "logged per step": set(), "not tensors": set()}
        self.facts |= {"ran": set(), "trained": set(), "no loss": False, "losses": 0, "tokens": False, "epoch": 0}
        self.facts |= {"changes with each batch": False, "rates": [], "repeated": set(), "samples left out": set(), "length": {}}
        self.end: Tensors = {}  # the model's state at the end of training
        self.number = 0  # of the step; the trainer's own counts each optimizer's
        self._in_step = False
        self._observed: Observed = {}
        self._losses: list[Tensor] = []
        self._samples: list[Fingerprints] = []
        self._logged_names: set[str] = set()
        self._known: dict[str, Tensor] = {}  # metrics from before a validation, or the end of an epoch

    def begins(self, trainer: Trainer, model: LightningModule, what: str) -> None:
        """Called before a step, a validation or a test."""

    def ends(self, trainer: Trainer, model: LightningModule, what: str, observed: Observed) -> None:
        """Called after it; `observed` is complete on rank zero."""

    def close(self, trainer: Trainer) -> None:
        """Called when all is over."""

    def reference_rates(self) -> list[float]:
        """Returns the reference's learning rates in this step; empty if they are not known."""
        return []

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._end_epoch(trainer, pl_module)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if not self._in_step:
            self._in_step, self._observed, self._losses, self._samples = True, {}, [], []
            self.begins(trainer, pl_module, "step")
        self._samples += [fingerprints(part) for part in _parts(trainer, batch)]
        self.facts["tokens"] |= any(ignored for _, ignored in count_tokens(batch).values())
        self._generators = generator_states(pl_module.device)

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._note_draws(pl_module)

    def _note_draws(self, model: LightningModule) -> None:
        now = generator_states(model.device)
        self.facts["draws"] |= {library for library, state in self._generators.items() if state != now[library]}

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        if "rates" in self.interventions:
            for group, rate in zip(optimizer.param_groups, self.reference_rates(), strict=False):
                group["lr"] = rate
        if "noise" in self.interventions:
            add_rounding(optimizer, self.interventions["noise"], self.number)
        known = self._observed.setdefault("learning rate", {})  # of another optimizer in this step
        rates = [torch.tensor(float(group["lr"]), dtype=torch.float64) for group in optimizer.param_groups]
        known.update({f"parameter group {number}": rate for number, rate in enumerate(rates, len(known))})
        trained = {name: parameter.grad for name, parameter in pl_module.named_parameters() if parameter.requires_grad}
        gradients = {name: gradient for name, gradient in trained.items() if gradient is not None}
        self.facts["unused"] |= len(gradients) < len(trained)
        self.facts["trained"] |= gradients.keys()
        self._observed.setdefault("gradients", {}).update(copy_tensors(gradients, keep=trainer.is_global_zero))

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if isinstance(loss, Tensor):
            self._losses.append(loss.detach())
            self.facts["losses"] += 1
        else:
            self.facts["no loss"] = True  # the model has left the batch out, or optimizes by itself
        self._known = dict(trainer.callback_metrics)
        self._note_draws(pl_module)  # those of the optimizer, too
        if trainer.global_step == self.facts["steps"]:
            return  # the step has further batches
        self.facts["epoch"] = trainer.current_epoch
        self._in_step, self.facts["steps"] = False, trainer.global_step
        total = trainer.strategy.reduce(sum(self._losses, torch.zeros((), device=pl_module.device)), reduce_op="mean")
        self._observed["loss"] = copy_tensors({"": torch.as_tensor(total)})
        self._observed["samples"] = gather(self._samples, dp_rank_and_size(trainer)[0])
        self.ends(trainer, pl_module, "step", self._observed)
        self.number += 1

    def _end_epoch(self, trainer: Trainer, model: LightningModule) -> None:
        """What training has logged of an epoch is known once its last hook is over."""
        if self.number == 0:
            return
        self.begins(trainer, model, "epoch")
        metrics = self._logged(trainer, model)
        self.facts["logged per step"] |= self._known.keys() - self._logged_names
        self.ends(trainer, model, "epoch", {"training metrics": metrics})

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._end_epoch(trainer, pl_module)
        self.end = copy_tensors(state(pl_module))
        self.facts["batches per epoch"] = sized_len(trainer.train_dataloader)
        self.begins(trainer, pl_module, "end of training")
        self.ends(trainer, pl_module, "end of training", {})

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._known, self._samples = dict(trainer.callback_metrics), []
        self.begins(trainer, pl_module, _stage(trainer))

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._samples += [fingerprints(part, f"loader {dataloader_idx}") for part in _parts(trainer, batch)]

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        stage, metrics = _stage(trainer), self._logged(trainer, pl_module)
        self.facts["ran"].add(stage)
        samples = gather(self._samples, dp_rank_and_size(trainer)[0])
        self.ends(trainer, pl_module, stage, {f"{stage} samples": samples, f"{stage} metrics": metrics})
        self._known = dict(trainer.callback_metrics)

    on_test_start, on_test_batch_start, on_test_end = on_validation_start, on_validation_batch_start, on_validation_end

    def _logged(self, trainer: Trainer, model: LightningModule) -> Tensors:
        """Returns what has been logged since `_known` was, by all ranks: Lightning keeps earlier metrics among these, and those
        of single batches beside those of an epoch. A rank's own are those that rank zero has not."""
        metrics = trainer.callback_metrics
        batches = {name for name in metrics if name.endswith("_step") and f"{name.removesuffix('_step')}_epoch" in metrics}
        known = {name: value.data_ptr() for name, value in self._known.items()}  # what is logged anew is another tensor
        logged = {name: value for name, value in metrics.items() if name not in batches and value.data_ptr() != known.get(name)}
        self._logged_names |= logged.keys() | batches
        if isinstance(model, Task):  # it knows them in float64
            logged |= {name: torch.tensor(model.results[name]).double() for name in logged.keys() & model.results.keys()}
        everyone = all_ranks(copy_tensors(logged))
        alone = [(rank, name) for rank, other in enumerate(everyone) for name in other if name not in everyone[0]]
        return everyone[0] | {f"{name} of process {rank}": everyone[rank][name] for rank, name in alone}


class BatchRecorder(Recorder):
    """Notes whether the model's state changes from the first to the second of the batches that are accumulated."""

    def begins(self, trainer: Trainer, model: LightningModule, what: str) -> None:
        if what == "step":
            self._first = copy_tensors(state(model))

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)
        now = copy_tensors(state(pl_module))
        same = now.keys() == self._first.keys() and all(difference(value, now[name]) == 0 for name, value in self._first.items())
        self.facts["changes with each batch"] |= not same


def state(model: LightningModule) -> dict[str, Any]:
    """Returns what a checkpoint would hold of the model, and the buffers that it would not."""
    return dict(model.state_dict()) | dict(model.named_buffers())


def divide(model: LightningModule, state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the parameters of such a state, and everything else."""
    names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    parameters = {name: value for name, value in state.items() if name in names}
    return parameters, {name: value for name, value in state.items() if name not in names}


def _parts(trainer: Any, batch: Any) -> list[Any]:
    """Returns what a process has of a batch: a strategy of virtual workers may hold it in `shares`."""
    shares = getattr(trainer.strategy, "shares", None)
    return [batch] if shares is None else [share.batch for share in shares if share.samples]


def _stage(trainer: Trainer) -> str:
    return "test" if trainer.testing else "validation"
