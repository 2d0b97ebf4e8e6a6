"""A LightningModule and a LightningDataModule, or loaders of the module's own, that know nothing of this package."""

import logging
import time
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor

from lockstep.callbacks.randomness import CounterBasedRandomness
from lockstep.callbacks.stepped_rate import SteppedRate
from lockstep.console import command_line, join_first
from lockstep.counter_rng import derive_seed
from lockstep.datamodules.base import DataModule
from lockstep.datamodules.seeded import Seeded
from lockstep.errors import config_error
from lockstep.extras.any_batch.any_batch import samples_in
from lockstep.extras.plain_lightning.agreements import agree_on_batches, agree_on_steps, combine_outputs, decide_alike
from lockstep.extras.plain_lightning.lightning_internals import (
    begin_batches_again,
    change_asked_loaders,
    counting_nothing,
    leaves_samplers,
    take_skipped_steps,
)
from lockstep.extras.plain_lightning.list_states import gather_lists_whole
from lockstep.extras.plain_lightning.loaders import (
    LOADERS,
    SharedSampler,
    begins_anew,
    drawing_from,
    samples_per_batch,
    shared_loader,
)
from lockstep.extras.plain_lightning.plain_values import is_plain, leave_out_objects
from lockstep.extras.plain_lightning.processes import (
    GATHERED,
    buffers_that_differ,
    gather_unequal_lengths,
    weights_that_differ,
)
from lockstep.extras.plain_lightning.rates_by_world import name_rates_by_world
from lockstep.extras.plain_lightning.reduced_logs import reduce_logs
from lockstep.extras.plain_lightning.reloads import Reloads
from lockstep.extras.plain_lightning.same_samples import check_processes
from lockstep.extras.plain_lightning.streams import (
    Positioned,
    in_step,
    is_stateful,
    is_stream,
    name_missing_end,
    share_stream,
)
from lockstep.extras.plain_lightning.weights import Weight, are_counted, weight_of
from lockstep.models.task import Task
from lockstep.runs.results import ended_by, logged_numbers
from lockstep.runs.shares import dp_rank_and_size
from lockstep.trainer.batchnorm import without_statistics
from lockstep.trainer.steps import batches_trained

log = logging.getLogger(__name__)

_SAME = "Each sample is taken once, gradients are those of the whole batch, and what is logged over an epoch is of all processes."
NOT_KNOWN = (
    "whether a loss or a metric is a mean over its batch (in-batch negatives and a maximum are not), whether state other than "
    "buffers is kept between batches, whether random numbers are drawn outside of a training or validation step"
)
_WITHIN = "If the run is resumed within an epoch, the metrics of that epoch are those of its remaining batches."
_OWN_GRADIENTS = "each steps by its own gradients, as after loss.backward() in the place of self.manual_backward(loss)"
_COMPARED = (2, 20)  # the batches before which processes compare what they hold: a step by hand may be that of several batches
_KEEPS_WORKERS = (
    "persistent_workers=True: what data workers draw at random goes on from epoch to epoch, and is another after a resumption"
)
_ANEW = "A train_dataloader draws batches by a {}, which begins as in the first epoch unless it has a set_epoch(epoch)"
_GOES_ON = "This run goes on after the {} batches of its epoch that it has trained on, whatever Lightning says of loaders."


class PlainLightning(Callback):
    """Act from outside as a Task and a DataModule do by themselves, and say once what it can't.

    Training and evaluation take the batches of one process, shared out (see lockstep.extras.plain_lightning.loaders). Where ranks
    hold unequal numbers of a batch's samples, each rank's gradient is weighted by its number: the step is that of the whole
    batch, for a loss that is a mean over its batch. Logs over an epoch are reduced over ranks: see
    lockstep.extras.plain_lightning.logs. A resumed run loads anew the batches that it has trained on in its epoch, and passes
    over them. Samples and times are counted for the record of the run. Hyperparameters with which a checkpoint could not be read
    are left out of it.

    Attributes:
        causes: what keeps several processes from giving the result of one, for the record of the run.
        results, samples_trained, train_time, train_cpu_time: as of a Task.
        ended_by: why training has ended.
    """

    same, not_known = _SAME, NOT_KNOWN

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.causes: list[str] = []
        self.samples_trained, self.train_time, self.train_cpu_time = 0, 0.0, 0.0
        self.results: dict[str, float] = {}
        self.ended_by: str | None = None
        self._begins_again = False  # in the first epoch after a resumption
        self._has_said: set[str] = set()
        self._samplers: list[Any] = []  # the training loaders'
        self._keeps_workers = False  # from epoch to epoch
        self._positioned: list[Positioned] = []
        self._positions: dict[str, Any] = {}  # the checkpoint's, from which a run goes on
        self._reloads, self._made_in = Reloads(), 0  # epoch of the loaders that are asked for
        self._samples: list[int | None] = []  # in a batch of each training loader, over all processes
        self._samples_before: list[int | None] | None = None  # the same, of the checkpoint
        self._accumulated = 1
        self._weight = Weight()
        self._batches = 0  # that were begun
        self._has_uneven_data = False
        self._is_even: bool | None = None  # True if ranks have as many samples in this training batch; None outside of one
        self._is_dummy = False  # True if this rank has another's sample, since the batch has none for it
        self._around_batch = ExitStack()

    def setup(self, trainer: Any, pl_module: LightningModule, stage: str) -> None:
        if not isinstance(trainer.datamodule, DataModule):
            change_asked_loaders(trainer, partial(self._share_all, trainer), partial(self._drawing_alike, trainer))
        if not isinstance(pl_module, Task):
            self._combine_processes(trainer, pl_module)
            if "configure_optimizers" not in vars(pl_module):
                name_missing_end(trainer, pl_module)
                if trainer.world_size > 1:
                    name_rates_by_world(trainer, pl_module, self.warn)

    def on_validation_start(self, trainer: Any, pl_module: LightningModule) -> None:
        if trainer.world_size > 1:
            gather_lists_whole(pl_module)

    on_test_start = on_validation_start

    def _drawing_alike(self, trainer: Any, name: str) -> AbstractContextManager[None]:
        """Draw, while loaders are made, the numbers of one process and of the epoch of their making: a part of the data, say."""
        self._made_in = self._reloads.epoch_of(trainer, name)
        return drawing_from(derive_seed(self.seed, self._made_in, len(LOADERS)))

    def _combine_processes(self, trainer: Any, model: LightningModule) -> None:
        if trainer.world_size > 1:
            reduce_logs(trainer, self.warn)
            if "training_step" not in vars(model):
                take_skipped_steps(trainer)
                agree_on_steps(model, partial(self._agree, trainer, model))
            if "on_train_batch_start" not in vars(model) and is_overridden("on_train_batch_start", model, LightningModule):
                agree_on_batches(model, self.warn, self._around_batch.close)
            if "all_gather" not in vars(model):
                gather_unequal_lengths(model, self._gathers_unequally, self.warn)

    def _agree(self, trainer: Any, model: LightningModule, output: Any) -> Any:
        """Return a step's output, and weight it by the samples of those processes that have one."""
        trainer._logger_connector.exchange_step()
        if not model.automatic_optimization or not isinstance(trainer.strategy, DDPStrategy):
            return output
        wrapper: Any = trainer.strategy.model
        samples = 0 if output is None else self._weight.samples
        output, number = combine_outputs(output, samples, model, wrapper.find_unused_parameters)
        if number:
            self._weight = self._weight._replace(samples=samples, in_batch=samples * trainer.world_size / number)
        return output

    def _gathers_unequally(self) -> bool:
        if self._is_even is False:
            self.warn(GATHERED)
        return self._has_uneven_data and not self._is_even

    def _share_all(self, trainer: Any, name: str, loaders: list[Any], are_together: bool) -> list[Any]:
        """Return loaders with this rank's share of what each of these draws."""
        training = name == LOADERS[0]
        shared = [self._share(trainer, loader, name, training) for loader in loaders]
        divided = [
            pair for pair in zip(loaders, shared, strict=True) if isinstance(getattr(pair[1], "sampler", None), SharedSampler)
        ]
        samplers = [one.sampler for _, one in divided]
        for one in samplers:
            one.begin_with(self._made_in)
        if dp_rank_and_size(trainer)[1] > 1:
            check_processes(name, [(loader.dataset, one.sampler) for loader, one in divided])
        alike = len({(one.samples_per_epoch, one.global_batch_size) for one in samplers}) == 1 and len(samplers) == len(shared)
        if are_together and not training and not alike and any(one.samples_per_epoch % one.num_replicas for one in samplers):
            self.warn(
                f"{name} combines loaders that divide a batch unequally, and what is logged of it is weighted by one of them"
            )
        if training:
            self._samplers = [getattr(loader, "sampler", None) for loader in shared]
            self._positioned = [loader for loader in shared if isinstance(loader, Positioned)]
            left = [loader for loader in shared if not isinstance(getattr(loader, "dataset", None), Seeded)]
            self._keeps_workers = any(getattr(loader, "persistent_workers", False) for loader in left)
            self._samples = [samples_per_batch(loader, dp_rank_and_size(trainer)[1]) for loader in shared]
            self._count(trainer, -1)  # Lightning begins to load at once, and does so once
        return shared

    def _share(self, trainer: Any, loader: Any, name: str, training: bool) -> Any:
        share = dp_rank_and_size(trainer)
        if is_stream(loader):
            share_stream(loader, share, name)
            loader = in_step(loader, self.warn) if training and share[1] > 1 else loader
        elif share[1] > 1 and leaves_samplers(trainer):
            self.warn(f"trainer.use_distributed_sampler=false: which samples a process takes is left to {name}")
            loader = in_step(loader, self.warn) if training else loader
        elif (shared := shared_loader(loader, share, self.seed, training)) is not None:
            sampler: Any = shared.sampler
            if trainer.state.fn == "fit" and getattr(trainer, "overfit_batches", 0):  # Lightning switches shuffling off
                sampler.sampler = range(sampler.length)
            self._has_uneven_data |= sampler.samples_per_epoch % share[1] > 0
            return shared
        elif share[1] > 1:
            self.warn(f"{name} draws batches or shares them out in its own way, which is left to Lightning")
        return Positioned(loader) if training and is_stateful(loader) else loader

    def warn(self, line: str) -> None:
        """Warn, once, of what is not as on one process, and record it."""
        if line not in self.causes:
            self.causes.append(line)
            log.warning(f"Not as on one process: {line}")

    def _introduce(self, trainer: Any, pl_module: LightningModule) -> None:
        """Say what holds, once loaders are made: not what a cause that was named contradicts."""
        parts = [part for part in (pl_module, trainer.datamodule) if part is not None and not isinstance(part, Task | DataModule)]
        names = " and ".join(type(part).__name__ for part in parts)
        same = "" if any(getattr(callback, "causes", ()) for callback in trainer.callbacks) else f" {self.same}"
        known = f"{same} Not known: {self.not_known}; {command_line('scripts/parity.py')} finds them."
        log.info(f"{names}: plain Lightning.{known if trainer.world_size > 1 else ''} {_WITHIN}")

    def on_train_start(self, trainer: Any, pl_module: LightningModule) -> None:
        self._introduce(trainer, pl_module)
        self.on_validation_start(trainer, pl_module)
        self._accumulated = trainer.accumulate_grad_batches
        self._started = time.perf_counter(), time.process_time()
        self._begins_again = trainer.ckpt_path is not None
        self._reloads.go_on(trainer)
        self._say_other_batch(trainer)
        if self._keeps_workers:
            log.info(_KEEPS_WORKERS)
        if self._samples_before not in (None, self._samples):
            self._check_batches(trainer)
        if trainer.ckpt_path and trainer.current_epoch:
            for loader in filter(begins_anew, CombinedLoader(trainer.train_dataloader).flattened):
                log.warning(_ANEW.format(type(loader.batch_sampler).__name__))
        if batches := batches_trained(trainer):
            log.info(_GOES_ON.format(batches))
            self._begin_again(trainer)
        if trainer.world_size > 1 and not isinstance(pl_module, Task):
            decide_alike(trainer, pl_module, partial(self._mean_over_processes, trainer))

    def _say_other_batch(self, trainer: Any) -> None:
        """Log the size of a step if loaders do not have the batch_size of the config: they may divide it by themselves."""
        planned = next((one.trained_with["global_batch_size"] for one in trainer.callbacks if isinstance(one, SteppedRate)), None)
        sizes = self.facts()
        if planned is not None and sizes.get("global_batch_size", planned) != planned:
            step = f"A step takes {sizes['global_batch_size']} samples over all processes, not {planned}"
            advice = "If they divide datamodule.batch_size by themselves, leave datamodule.global_batch_size out"
            log.warning(f"{step}: the loaders have batches of {sizes['batch_size']}. {advice}.")

    def _mean_over_processes(self, trainer: Any, value: Any) -> Tensor:
        """Return the mean of a step's value, weighted as its gradient is."""
        own = torch.as_tensor(value, device=trainer.strategy.root_device).detach()
        return trainer.strategy.reduce(own * self._weight.in_batch, reduce_op="mean")

    def _check_batches(self, trainer: Any) -> None:
        """Raise ConfigError if a run would go on within an epoch in batches of another size: some samples would be trained on
        twice, or not at all."""
        before, now = (", ".join(map(str, sizes or ())) for sizes in (self._samples_before, self._samples))
        if batches_trained(trainer):
            words = f"is within an epoch whose batches have {before} samples over all processes; here they have {now}"
            raise config_error("checkpoint", trainer.ckpt_path, f"{words}; use a batch size with which they have as many")
        log.warning(f"From here on batches have {now} samples over all processes; before they had {before}")

    def on_train_epoch_start(self, trainer: Any, pl_module: LightningModule) -> None:
        if self._begins_again:
            self._begin_again(trainer)

    def _begin_again(self, trainer: Any) -> None:
        """Load again what Lightning began to load before it knew the epoch."""
        self._begins_again = False
        if not isinstance(trainer.datamodule, DataModule):
            begin_batches_again(trainer, partial(self._count, trainer), self._go_to_position(trainer))

    def _count(self, trainer: Any, batch: int) -> None:
        for one in trainer.callbacks:
            if isinstance(one, CounterBasedRandomness):
                one.count(trainer, batch)

    def _go_to_position(self, trainer: Any) -> bool:
        """Return whether the training loaders have gone by themselves to where the checkpoint was written."""
        (number, shares), positions = dp_rank_and_size(trainer), self._positions
        self._positions = {}
        if len(positions.get("ranks", ())) != shares or positions["batches"] != batches_trained(trainer):
            for loader in self._positioned:
                loader.begin_again()
            return False
        for loader, state in zip(self._positioned, positions["ranks"][number], strict=True):
            loader.resume(batches_trained(trainer), state)
        return True

    def on_train_batch_start(self, trainer: Any, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._batches += 1
        if self._batches in _COMPARED and isinstance(trainer.strategy, DDPStrategy):
            self._compare(pl_module)
        self._divide(trainer)
        if self._is_dummy:
            self._around_batch.enter_context(counting_nothing(trainer, pl_module))
            self._around_batch.enter_context(without_statistics())

    def _compare(self, model: LightningModule) -> None:
        if names := buffers_that_differ(model):
            self.warn(f"buffers differ between processes after a step, and process 0's are kept ({join_first(names)})")
        if names := weights_that_differ(model):
            self.warn(f"weights differ between processes after a step ({join_first(names)}): {_OWN_GRADIENTS}")

    def _divide(self, trainer: Any) -> None:
        """Set the weights of the batch."""
        loop = trainer.fit_loop.epoch_loop  # the argument is the batch before for a step that takes a dataloader_iter
        weight = weight_of(loop.batch_idx, self._samplers, trainer.accumulate_grad_batches, trainer.num_training_batches)
        if not weight.is_known:
            self.warn("training loaders divide a batch unequally, whose gradient is not weighted; drop_last=True leaves it out")
        self._weight, self._is_dummy, self._is_even = weight, weight.samples == 0, weight.is_even

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        weight = self._weight.in_batch * self._weight.in_step
        if weight != 1.0 and loss.requires_grad:
            loss.register_hook(lambda gradient: gradient * weight)

    def on_before_optimizer_step(self, trainer: Any, pl_module: LightningModule, optimizer: Any) -> None:
        """Divide by the batches that were accumulated where their number was not known, as at the end of a stream."""
        accumulated = trainer.accumulate_grad_batches
        left = (trainer.fit_loop.epoch_loop.batch_idx + 1) % accumulated
        if left and self._samplers and not are_counted(self._samplers):
            gradients = [parameter.grad for group in optimizer.param_groups for parameter in group["params"]]
            for gradient in (gradient for gradient in gradients if gradient is not None):
                gradient.mul_(accumulated / left)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._around_batch.close()
        self._is_even = None
        is_skipped = self._weight.samples == 0 or (pl_module.automatic_optimization and not outputs)
        self.samples_trained += 0 if is_skipped else samples_in(batch) or 0

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.train_time, self.train_cpu_time = time.perf_counter() - self._started[0], time.process_time() - self._started[1]
        self.results = logged_numbers(trainer)  # a test forgets them
        self.ended_by = ended_by(trainer)  # a test has the model's `configure_callbacks` make others

    @property
    def counted_weight(self) -> float | None:
        """Weight of this rank's mean in that of the batch; None if it is not known how many samples ranks have."""
        return self._weight.in_batch if are_counted(self._samplers) and self._weight.is_known else None

    @property
    def _shared_samplers(self) -> list[SharedSampler]:
        return [sampler for sampler in self._samplers if isinstance(sampler, SharedSampler)]

    def facts(self) -> dict[str, int]:
        """Return the sizes of training batches, which a config need not have."""
        if len(samplers := self._shared_samplers) != 1:
            return {}
        return {"batch_size": samplers[0].batch_size, "global_batch_size": samplers[0].global_batch_size * self._accumulated}

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if self._positioned and trainer.state.fn == "fit":
            self._save_positions(trainer, checkpoint)
        if trainer.state.fn == "fit":
            checkpoint["samples_per_batch"] = self._samples
            self._reloads.save(trainer, checkpoint)
        self._say_left_out(leave_out_objects(checkpoint))

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self._reloads.load(checkpoint)
        self._positions = checkpoint.get("loader_positions", {})
        self._samples_before = checkpoint.get("samples_per_batch") or None  # empty in those of Lightning's finders

    def _save_positions(self, trainer: Any, checkpoint: dict[str, Any]) -> None:
        """Save the positions of every rank; a collective. Save nothing if some loader can't say its own in plain values: batches
        are then passed over."""
        batches = batches_trained(trainer)
        own = [loader.states.get(batches) for loader in self._positioned]
        ranks: list[Any] = [own]
        if trainer.world_size > 1:
            ranks = [None] * trainer.world_size
            dist.all_gather_object(ranks, own)
        shares = ranks[:: len(ranks) // dp_rank_and_size(trainer)[1]]
        if len(self._positioned) == len(self._samplers) and all(s is not None and is_plain(s) for rank in shares for s in rank):
            checkpoint["loader_positions"] = {"batches": batches, "ranks": shares}

    def _say_left_out(self, names: set[str]) -> None:
        if names - self._has_said:
            log.info(f"hyperparameters that are no plain values are not kept in checkpoints: {join_first(sorted(names))}")
            self._has_said |= names
