"""A callback that records what each step, validation and test of a training did."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.fabric.utilities.data import sized_len
from torch import Tensor

from lockstep.extras.parity.differences import Differences, Prints, Tensors, copied, fingerprints, gathered, of_all_ranks
from lockstep.extras.parity.draws import drawn_between, states
from lockstep.extras.parity.exchange import Exchange
from lockstep.extras.parity.interventions import counted_tokens, round_anew
from lockstep.models.task import Task
from lockstep.runs.shares import dp_rank_and_size

Observed = dict[str, Any]  # by quantity: tensors by name, or the fingerprints of samples


class Recorder(Callback):
    """Collects what happens from the beginning of an optimizer step, a validation or a test to its end."""

    def __init__(self, exchange: Exchange, interventions: Mapping[Any, Any], report: Callable[[str], None]) -> None:
        self.exchange, self.interventions, self.report = exchange, interventions, report
        self.differences = Differences()
        self.facts: dict[str, Any] = {"draws": set(), "unused": False, "steps": 0, "logged per step": set(), "not tensors": set()}
        self.facts |= {"ran": set(), "trained": set(), "no loss": False, "tokens": False, "epoch": 0}
        self.end: Tensors = {}  # the model's state at the end of training
        self._in_step = False
        self._observed: Observed = {}
        self._losses: list[Tensor] = []
        self._samples: list[Prints] = []
        self._logged_names: set[str] = set()
        self._known: dict[str, Tensor] = {}  # metrics from before a validation, or the end of an epoch
        self._number = 0  # of the step; the trainer's own counts each optimizer's

    def begins(self, trainer: Trainer, model: LightningModule, what: str) -> None:
        """Before a step, validation or test."""

    def ends(self, trainer: Trainer, model: LightningModule, what: str, observed: Observed) -> None:
        """After it; `observed` is whole on rank zero."""

    def rates(self) -> list[float]:
        """The other side's learning rates in this step, where they are known."""
        return []

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._ends_epoch(trainer, pl_module)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self.report(f"in step {self._number}")
        if not self._in_step:
            self._in_step, self._observed, self._losses, self._samples = True, {}, [], []
            self.begins(trainer, pl_module, "step")
        self._samples.append(fingerprints(batch))
        self.facts["tokens"] |= any(ignored for _, ignored in counted_tokens(batch).values())
        self._generators = states(pl_module.device)

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._notes_draws(pl_module)

    def _notes_draws(self, model: LightningModule) -> None:
        self.facts["draws"] |= drawn_between(self._generators, states(model.device))

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        if "rates" in self.interventions:
            for group, rate in zip(optimizer.param_groups, self.rates(), strict=False):
                group["lr"] = rate
        known = self._observed.setdefault("learning rate", {})  # of another optimizer in this step
        rates = [torch.tensor(float(group["lr"]), dtype=torch.float64) for group in optimizer.param_groups]
        if "noise" in self.interventions:
            round_anew(optimizer, self.interventions["noise"], self._number)
        trained = {name: parameter.grad for name, parameter in pl_module.named_parameters() if parameter.requires_grad}
        gradients = {name: gradient for name, gradient in trained.items() if gradient is not None}
        self.facts["unused"] |= len(gradients) < len(trained)
        self.facts["trained"] |= gradients.keys()
        known.update({f"parameter group {number}": rate for number, rate in enumerate(rates, len(known))})
        self._observed.setdefault("gradients", {}).update(copied(gradients, keep=trainer.is_global_zero))

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if isinstance(loss, Tensor):
            self._losses.append(loss.detach())
        else:
            self.facts["no loss"] = True  # the model has left the batch out, or optimizes by itself
        self._known = dict(trainer.callback_metrics)
        self._notes_draws(pl_module)  # those of the optimizer, too
        if trainer.global_step == self.facts["steps"]:
            return  # the step's window has further batches
        self.facts["epoch"] = trainer.current_epoch
        self._in_step, self.facts["steps"] = False, trainer.global_step
        total = trainer.strategy.reduce(sum(self._losses, torch.zeros((), device=pl_module.device)), reduce_op="mean")
        self._observed["loss"] = copied({"": torch.as_tensor(total)})
        self._observed["samples"] = gathered(self._samples, dp_rank_and_size(trainer)[0])
        self.ends(trainer, pl_module, "step", self._observed)
        self._number += 1

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
        self.end = copied(state_of(pl_module))
        self.facts["batches per epoch"] = sized_len(trainer.train_dataloader)
        self.begins(trainer, pl_module, "end of training")
        self.ends(trainer, pl_module, "end of training", {})

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._known, self._samples = dict(trainer.callback_metrics), []
        self.begins(trainer, pl_module, _evaluation(trainer))

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self.report(f"in {_evaluation(trainer)} batch {batch_idx}")
        self._samples.append(fingerprints(batch, f"loader {dataloader_idx}"))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        what, metrics = _evaluation(trainer), self._logged(trainer, pl_module)
        self.facts["ran"].add(what)
        samples = gathered(self._samples, dp_rank_and_size(trainer)[0])
        self.ends(trainer, pl_module, what, {f"{what} samples": samples, f"{what} metrics": metrics})
        self._known = dict(trainer.callback_metrics)

    on_test_start, on_test_batch_start, on_test_end = on_validation_start, on_validation_batch_start, on_validation_end

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
        everyone = of_all_ranks(copied(logged))
        alone = [(rank, name) for rank, other in enumerate(everyone) for name in other if name not in everyone[0]]
        return everyone[0] | {f"{name} of process {rank}": everyone[rank][name] for rank, name in alone}


def state_of(model: LightningModule) -> dict[str, Any]:
    """What a checkpoint would hold of it, and the buffers that it would not."""
    return dict(model.state_dict()) | dict(model.named_buffers())


def divided(model: LightningModule, state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of such a state the parameters, and everything else."""
    names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    parameters = {name: value for name, value in state.items() if name in names}
    return parameters, {name: value for name, value in state.items() if name not in names}


def _evaluation(trainer: Trainer) -> str:
    return "test" if trainer.testing else "validation"


def _is_same(value: Tensor, known: Tensor | None) -> bool:
    """Lightning hands out the same number as a new tensor each time."""
    return known is not None and value.data_ptr() == known.data_ptr()
