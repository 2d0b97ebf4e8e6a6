"""The callback that gives any LightningModule and its data, on several processes, the result of one, and its guard."""

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial, wraps
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities.model_helpers import is_overridden
from omegaconf import DictConfig
from torch import Tensor

from lockstep.console import join_first
from lockstep.datamodules.base import DataModule
from lockstep.datamodules.batches import samples_in
from lockstep.models.supervised import Supervised
from lockstep.plain_lightning.processes import (
    GATHERED,
    any_process,
    gather_lists_whole,
    gather_number,
    gather_unequal_lengths,
    names_that_differ,
)
from lockstep.plain_lightning.reduced_logs import ReducedLogs, own_classes, source_of
from lockstep.plain_lightning.shared_loading import SharedLoading, Weight, are_counted, weight_of
from lockstep.runs.results import ended_by, logged_numbers
from lockstep.trainer.lightning_internals import (
    SKIPPED,
    change_asked_loaders,
    log_batch_as,
    remember_logs,
    take_skipped_steps,
)
from lockstep.trainer.steps import begins_step

log = logging.getLogger(__name__)

_NOT_KNOWN = "most of what makes N processes differ from one has a warning (docs/your-code.md); lockstep parity checks the rest"
_OWN_GRADIENTS = "each steps by its own gradients, as after loss.backward() in the place of self.manual_backward(loss)"
_SIZES = ("num_devices", "num_nodes", "world_size", "WORLD_SIZE", "device_count")
_COMPARED = {True: 2, False: 20}  # the batch before which processes compare weights; optimizers by hand may step less often


class PlainLightning(SharedLoading):
    """Make a LightningModule on several processes give the result of one, without changing its code; warn once if it can't.

    Training and evaluation use the batches of one process, divided among ranks (see lockstep.plain_lightning.loaders). If ranks
    have unequal numbers of a batch's samples, each rank's gradient is weighted by its number, so that the step equals that of the
    whole batch for a loss that is a mean over samples. Epoch logs are reduced over ranks by reduced_logs.py. A resumed
    run skips the batches of its epoch that it has trained on. Samples and times are counted for the run's record.

    Attributes:
        train_time, train_cpu_time: wall and CPU seconds of training, validation and checkpoints included.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.samples_trained, self.train_time, self.train_cpu_time = 0, 0.0, 0.0
        self._datamodule: Any = None
        self._weight = Weight()
        self._batches = 0  # number of batches started
        self._around_batch = ExitStack()

    def setup(self, trainer: Any, pl_module: LightningModule, stage: str) -> None:
        self._datamodule = trainer.datamodule
        change_asked_loaders(trainer, partial(self._share_all, trainer), partial(self._drawing_alike, trainer))
        self._combine_processes(trainer, pl_module)

    def _combine_processes(self, trainer: Any, model: LightningModule) -> None:
        self._logs = ReducedLogs.replace_in(trainer, self.warn)
        self._logs.defer_sync(model)
        if trainer.world_size == 1 or _is_shipped(model) or "all_gather" in vars(model):
            return
        gather_unequal_lengths(model, partial(self._gathers_unequally, trainer), self.warn)
        take_skipped_steps(trainer)
        _change_result(model, "training_step", partial(self._combine_outputs, trainer, model))
        if is_overridden("on_train_batch_start", model, LightningModule):
            _change_result(model, "on_train_batch_start", self._agree_to_skip)

    def on_validation_start(self, trainer: Any, pl_module: LightningModule) -> None:
        if trainer.world_size > 1:
            gather_lists_whole(pl_module)

    on_test_start = on_validation_start

    def _agree_to_skip(self, answer: int | None) -> int | None:
        """Return -1, with which an epoch ends, in all processes if one of them does."""
        if not any_process(answer == -1, "on_train_batch_start returns -1", self.warn):
            return answer
        self._around_batch.close()
        return -1

    def _combine_outputs(self, trainer: Any, model: LightningModule, output: Any) -> Any:
        """Return a step's output, weighted by the samples of the processes that have one.

        A process whose step returned None takes part in the backward pass with zero gradients. If all have returned None, the
        batch is skipped, unless earlier batches of the optimizer step have accumulated gradients, which are still to be reduced.
        """
        self._logs.exchange_step()
        if not model.automatic_optimization or not isinstance(trainer.strategy, DDPStrategy):
            return output
        samples = 0 if output is None else self._weight.samples
        if number := sum(gather_number(samples)):
            self._weight = self._weight._replace(samples=samples, in_batch=samples * trainer.world_size / number)
        elif begins_step(trainer, trainer.fit_loop.epoch_loop.batch_idx) or all(one.grad is None for one in model.parameters()):
            return SKIPPED
        if output is not None:
            return output
        return sum(parameter.reshape(-1)[:0].sum() for parameter in model.parameters() if parameter.requires_grad)

    def _gathers_unequally(self, trainer: Any) -> bool:
        """Return whether processes may have unequal numbers of samples now."""
        if trainer.training and self._weight.is_even:
            return False
        if trainer.training and self._weight.in_batch != 1.0:
            self.warn(GATHERED)
        return True

    def on_fit_start(self, trainer: Any, pl_module: LightningModule) -> None:
        parts = [part for part in (pl_module, trainer.datamodule) if part is not None]
        own = [type(part).__name__ for part in parts if not _is_shipped(part)]
        if not own or trainer.world_size == 1:
            return
        log.info(f"Your own code, {' and '.join(own)}: {_NOT_KNOWN}")
        if names := _sizes_in_source(pl_module):
            self.warn(f"{own[0]} reads {' and '.join(names)}: a rate that depends on it is another one than on one process")

    def on_train_start(self, trainer: Any, pl_module: LightningModule) -> None:
        self.on_validation_start(trainer, pl_module)
        super().on_train_start(trainer, pl_module)
        self._started = time.perf_counter(), time.process_time()
        # a plateau may monitor what was logged before the checkpoint
        known = {name: torch.tensor(value, dtype=torch.float64) for name, value in self.results.items()}
        trainer.callback_metrics.update(known)

    def on_train_batch_start(self, trainer: Any, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._batches += 1
        if self._batches == _COMPARED[pl_module.automatic_optimization] and isinstance(trainer.strategy, DDPStrategy):
            self._compare(pl_module)
        loop = trainer.fit_loop.epoch_loop  # a step with a dataloader_iter gets the previous batch's index as argument
        self._weight = weight_of(loop.batch_idx, self._samplers, trainer.accumulate_grad_batches, trainer.num_training_batches)
        if not self._weight.is_known:
            self.warn("training loaders divide a batch unequally, whose gradient is not weighted; drop_last=True leaves it out")
        if self._weight.samples == 0:  # the batch has no sample for this rank, which has a dummy: nothing of it is counted
            from lockstep.trainer.batchnorm import without_statistics

            log_batch_as(trainer, 0)  # also applies in the module's hook at the batch's end
            self._around_batch.callback(remember_logs(trainer, pl_module))
            self._around_batch.enter_context(without_statistics())

    def _compare(self, model: LightningModule) -> None:
        if names := names_that_differ(model.named_buffers()):
            self.warn(f"buffers differ between processes after a step, and process 0's are kept ({join_first(names)})")
        if names := names_that_differ(model.named_parameters()):
            self.warn(f"weights differ between processes after a step ({join_first(names)}): {_OWN_GRADIENTS}")

    @property
    def weight(self) -> float:
        """Weight of this rank's gradient in the step's."""
        return self._weight.in_batch * self._weight.in_step

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        weight = self.weight
        if weight != 1.0 and loss.requires_grad:
            loss.register_hook(lambda gradient: gradient * weight)

    def on_before_optimizer_step(self, trainer: Any, pl_module: LightningModule, optimizer: Any) -> None:
        """Divide by the number of accumulated batches if it was not known before, as at the end of a stream."""
        accumulated = trainer.accumulate_grad_batches
        left = (trainer.fit_loop.epoch_loop.batch_idx + 1) % accumulated
        if left and self._samplers and not are_counted(self._samplers):
            gradients = [parameter.grad for group in optimizer.param_groups for parameter in group["params"]]
            for gradient in (gradient for gradient in gradients if gradient is not None):
                gradient.mul_(accumulated / left)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._around_batch.close()
        self._logs.add_before()
        is_skipped = self._weight.samples == 0 or (pl_module.automatic_optimization and not outputs)
        self.samples_trained += 0 if is_skipped else samples_in(batch) or 0

    def facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"train_time": self.train_time, "train_cpu_time": self.train_cpu_time}
        if isinstance(data := self._datamodule, DataModule):
            facts |= {"samples_per_epoch": data.samples_per_epoch, "samples": data.describe()}
        return {**super().facts(), **facts}

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.train_time, self.train_cpu_time = time.perf_counter() - self._started[0], time.process_time() - self._started[1]
        self.results = logged_numbers(trainer)  # a test resets them
        self.ended_by = ended_by(trainer)  # for a test, the model's `configure_callbacks` makes new callbacks

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(trainer, pl_module, checkpoint)
        if trainer.state.fn == "fit":
            checkpoint.setdefault("metrics", logged_numbers(trainer))
            checkpoint["epoch_logs"] = self._logs.collected()

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(trainer, pl_module, checkpoint)
        if trainer.state.fn == "fit":
            self.results, self._logs.before = dict(checkpoint.get("metrics", {})), checkpoint.get("epoch_logs", {})


def _is_shipped(part: Any) -> bool:
    return type(part).__module__.startswith("lockstep.")


def _change_result(model: LightningModule, name: str, change: Callable[[Any], Any]) -> None:
    """Make a method of the model return `change(result)`."""
    method = getattr(model, name)
    if name not in vars(model):  # otherwise it is changed already
        setattr(model, name, wraps(method)(lambda *arguments, **named: change(method(*arguments, **named))))


def _sizes_in_source(model: LightningModule) -> list[str]:
    """Return which numbers of processes are named in the source of the model's methods and properties, except for its steps."""
    members = [member for kind in own_classes(model) for name, member in vars(kind).items() if not name.endswith("_step")]
    source = "".join(source_of(getattr(member, "fget", member)) for member in members)
    return [name for name in _SIZES if name in source]


class PlainLightningGuard(Callback):
    """Add a PlainLightning callback to the trainer, and the checks of a user's code.

    A shipped model's config declares the metrics that it logs; for another module a sanity check of one batch shows them.
    """

    kind: type[PlainLightning] = PlainLightning

    def __init__(self, seed: int, cfg: DictConfig) -> None:
        self.seed, self.cfg = seed, cfg

    def setup(self, trainer: Any, pl_module: LightningModule, stage: str) -> None:
        is_shipped = isinstance(pl_module, Supervised)
        if stage == "fit" and not is_shipped and self.cfg.trainer.num_sanity_val_steps is None:
            trainer.num_sanity_val_steps = 1
        if any(isinstance(callback, PlainLightning) for callback in trainer.callbacks):
            return
        trainer.callbacks.append(self.kind(self.seed))
        if is_shipped and isinstance(trainer.datamodule, DataModule):
            return
        # imported by the runs that need them
        from lockstep.plain_lightning.module_checks import MonitoredMetrics, SameSamples, UnsavedState

        trainer.callbacks += [SameSamples(self.cfg), UnsavedState()]
        if not is_shipped:
            trainer.callbacks.append(MonitoredMetrics(self.cfg))
