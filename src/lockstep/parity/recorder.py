"""A callback that writes down what each step, validation and test of a training did."""

from collections.abc import Mapping
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils.data import BatchSampler, DataLoader

from lockstep.callbacks.equivalence import EquivalenceReport
from lockstep.errors import ConfigError
from lockstep.parity.sketches import Sketch, Sums, add_sums, sketch, sums_of
from lockstep.plain_lightning.callback import PlainLightning
from lockstep.plain_lightning.loaders import LOADERS, SharedSampler, change_loaders, draws_as, loading_arguments
from lockstep.plain_lightning.processes import all_ranks
from lockstep.plain_lightning.streams import is_stream
from lockstep.runs.shares import dp_rank_and_size


class Recorder(Callback):
    """Write a record, {"moments": [...], "facts": {...}}, from rank zero when training, and then testing, has ended.

    A moment is a step, a validation, a test or the end of an epoch: {"stage": ..., "done": optimizer steps before it}, the
    sketches of weights and buffers as it begins, and of what happens in it by quantity and name. Where loaders alone know the
    size of a batch, `larger_batches` of them are taken as one.
    """

    def __init__(self, file: str, larger_batches: int = 1) -> None:
        self.file, self.larger_batches = file, larger_batches
        self.moments: list[dict[str, Any]] = []
        self.known: dict[str, Any] = {"steps": 0, "epoch": 0}
        self._optimizer_steps = 0  # the trainer's own count, of each optimizer
        self._is_in_step = False
        self._batches: list[Sums] = []
        self._metrics: dict[str, Tensor] = {}  # metrics of before

    def setup(self, trainer: Any, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit" and self.larger_batches > 1:
            change_loaders(trainer.datamodule or pl_module, lambda name, all_: [self._larger(name, one) for one in all_])

    def _larger(self, name: str, loader: Any) -> Any:
        """Return a loader of larger batches. Raises ConfigError for a loader of training that draws batches in its own way."""
        batches = getattr(loader, "batch_sampler", None)
        is_torchs = draws_as(loader, DataLoader) and (batches is None or draws_as(batches, BatchSampler))
        if is_torchs and loader.batch_size:
            order = {} if is_stream(loader) else {"sampler": loader.sampler}
            sizes = {"batch_size": loader.batch_size * self.larger_batches, "drop_last": loader.drop_last}
            return DataLoader(loader.dataset, **order, **sizes, **loading_arguments(loader))
        if name == LOADERS[0]:
            why = f"draws batches in its own way, so that one process can't take those of {self.larger_batches}"
            raise ConfigError(f"{name} {why}; use a DataLoader with a batch_size")
        return loader

    def _begin(self, trainer: Trainer, model: LightningModule, stage: str) -> None:
        parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        state = dict(model.state_dict()) | dict(model.named_buffers())
        weights, buffers = ({n: v for n, v in state.items() if (n in parameters) == wanted} for wanted in (True, False))
        moment: dict[str, Any] = {"stage": stage, "done": self.known["steps"]}
        moment |= {"weights": _with_others(_sketches(weights), same=True), "buffers": _sketches(buffers)}
        self.moments.append(moment)
        self._batches = []

    def _add_samples(self, trainer: Any, quantity: str) -> None:
        everyone = dict(all_ranks((dp_rank_and_size(trainer)[0], self._batches)))  # several may have the same samples
        self.moments[-1][quantity] = add_sums([sums for share in everyone.values() for sums in share])

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note the end of the epoch before: the module's own last hook is over, which may log, or change buffers."""
        if self.known["steps"]:
            self._begin(trainer, pl_module, "epoch")
            self.moments[-1]["training metrics"] = self._logged(trainer)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if not self._is_in_step:
            self._begin(trainer, pl_module, "step")
        self._is_in_step = True
        sampler = getattr(trainer.train_dataloader, "sampler", None)
        if not isinstance(sampler, SharedSampler) or sampler.samples_in(batch_idx)[0]:  # else it is a dummy
            self._batches.append(sums_of(batch))

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        rates = self.moments[-1].setdefault("learning rate", {})  # another optimizer may have added some in this step
        for number, group in enumerate(optimizer.param_groups, len(rates)):
            rates[f"parameter group {number}"] = sketch(torch.tensor(float(group["lr"]), dtype=torch.float64))
        gradients = {name: parameter.grad for name, parameter in pl_module.named_parameters() if parameter.grad is not None}
        self.moments[-1].setdefault("gradients", {}).update(_sketches(gradients))

    def on_train_batch_end(self, trainer: Any, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._metrics = dict(trainer.callback_metrics)
        if trainer.global_step == self._optimizer_steps:
            return  # further batches are accumulated
        self._is_in_step, self._optimizer_steps = False, trainer.global_step
        self._add_samples(trainer, "samples")
        self.known |= {"steps": self.known["steps"] + 1, "epoch": trainer.current_epoch}

    def on_train_end(self, trainer: Any, pl_module: LightningModule) -> None:
        self.on_train_epoch_start(trainer, pl_module)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._metrics = dict(trainer.callback_metrics)
        self._begin(trainer, pl_module, "test" if trainer.testing else "validation")

    def on_validation_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, *_: Any, **__: Any) -> None:
        self._batches.append(sums_of(batch))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        stage = self.moments[-1]["stage"]
        self._add_samples(trainer, f"{stage} samples")
        self.moments[-1][f"{stage} metrics"] = self._logged(trainer)
        self._metrics = dict(trainer.callback_metrics)

    on_test_start, on_test_batch_start, on_test_end = on_validation_start, on_validation_batch_start, on_validation_end

    def _logged(self, trainer: Trainer) -> dict[str, Sketch]:
        """Return what any rank has logged since `_metrics`, less the values of single batches beside those of an epoch."""
        metrics = trainer.callback_metrics
        batches = {name for name in metrics if name.endswith("_step") and f"{name.removesuffix('_step')}_epoch" in metrics}
        known = {name: value.data_ptr() for name, value in self._metrics.items()}  # a new log is another tensor
        logged = {name: value for name, value in metrics.items() if name not in batches and value.data_ptr() != known.get(name)}
        return _with_others({name: sketch(value) for name, value in logged.items()})

    def teardown(self, trainer: Any, pl_module: LightningModule, stage: str) -> None:
        said = [line for one in trainer.callbacks if isinstance(one, PlainLightning | EquivalenceReport) for line in one.causes]
        if trainer.is_global_zero:
            torch.save({"moments": self.moments, "facts": self.known | {"said": said}}, self.file)


def _sketches(tensors: Mapping[str, Any]) -> dict[str, Sketch]:
    """Return the sketches of tensors by name; a collective for tensors that are sharded."""
    full = {name: value.full_tensor() if isinstance(value, DTensor) else value for name, value in tensors.items()}
    return {name: sketch(value) for name, value in full.items() if isinstance(value, Tensor)}


def _with_others(own: dict[str, Sketch], same: bool = False) -> dict[str, Sketch]:
    """Add the sketches that rank zero lacks and others have; or, if all are to have the `same`, those that differ."""
    first, *others = all_ranks(own)
    for rank, other in enumerate(others, 1):
        for name, value in other.items():
            if name not in first or (same and value["checksum"] != first[name]["checksum"]):
                first = first | {f"{name} of process {rank}": value}
    return first
