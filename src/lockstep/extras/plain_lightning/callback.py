"""A LightningModule and a LightningDataModule, or loaders of the module's own, that know nothing of this package."""

import logging
import sys
import time
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor

from lockstep.callbacks.randomness import CounterBasedRandomness
from lockstep.callbacks.stepped_rate import SteppedRate
from lockstep.console import join_first
from lockstep.counter_rng import derive_seed
from lockstep.datamodules.base import DataModule
from lockstep.datamodules.seeded import Seeded
from lockstep.errors import config_error
from lockstep.extras.any_batch.any_batch import samples_in
from lockstep.extras.plain_lightning.lightning_internals import (
    begin_batches_again,
    counting_nothing,
    leaves_samplers,
    reduce_logs,
)
from lockstep.extras.plain_lightning.loaders import (
    LOADERS,
    SharedSampler,
    change_loaders,
    drawing_from,
    samples_per_batch,
    shared_loader,
)
from lockstep.extras.plain_lightning.plain_values import is_plain, leave_out_objects
from lockstep.extras.plain_lightning.processes import (
    GATHERED,
    buffers_that_differ,
    decide_alike,
    gather_unequal_lengths,
    weights_that_differ,
)
from lockstep.extras.plain_lightning.streams import (
    Positioned,
    in_step,
    is_stateful,
    is_stream,
    name_missing_end,
    share_stream,
)
from lockstep.models.task import Task
from lockstep.runs.results import ended_by, logged_numbers
from lockstep.runs.shares import dp_rank_and_size
from lockstep.trainer.batchnorm import without_statistics
from lockstep.trainer.steps import batches_trained

log = logging.getLogger(__name__)

_NOT_KNOWN = "what several processes can't know of them is in docs/your-lightning-code.md#what-holds-on-n-processes"
_OWN_GRADIENTS = "each steps by its own gradients, as after loss.backward() in the place of self.manual_backward(loss)"
_COMPARED = (2, 20)  # the batches before which processes compare what they hold: a step by hand may be that of several batches
_KEEPS_WORKERS = (
    "persistent_workers=True: what data workers draw at random goes on from epoch to epoch, and is another after a resumption"
)
_GOES_ON = (
    "This run goes on after the {} batches of its epoch that it has trained on, whatever Lightning says of loaders. Metrics of "
    "the epoch are those of its remaining batches."
)


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

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.causes: list[str] = []
        self.samples_trained, self.train_time, self.train_cpu_time = 0, 0.0, 0.0
        self.results: dict[str, float] = {}
        self.ended_by: str | None = None
        self._is_first_epoch = True
        self._has_said: set[str] = set()
        self._shared: list[Any] = []  # sources whose loaders are shared out already
        self._samplers: list[Any] = []  # the training loaders'
        self._keeps_workers = False  # from epoch to epoch
        self._positioned: list[Positioned] = []
        self._positions: dict[str, Any] = {}  # the checkpoint's, from which a run goes on
        self._samples: list[int | None] = []  # in a batch of each training loader, over all processes
        self._samples_before: list[int | None] | None = None  # the same, of the checkpoint
        self._accumulated = 1
        self._weight = 1.0  # weight of this rank's gradient in the step
        self._batches = 0  # that were begun
        self._has_uneven_data = False
        self._is_even: bool | None = None  # True if ranks have as many samples in this training batch; None outside of one
        self._is_dummy = False  # True if this rank has another's sample, since the batch has none for it
        self._around_batch = ExitStack()

    def setup(self, trainer: Any, pl_module: LightningModule, stage: str) -> None:
        source = trainer.datamodule or pl_module
        if not isinstance(source, DataModule) and source not in self._shared:
            self._shared.append(source)
            change_loaders(source, partial(self._share_all, trainer), partial(self._drawing_alike, trainer))
        if not isinstance(pl_module, Task):
            self._combine_processes(trainer, pl_module)
            if "configure_optimizers" not in vars(pl_module):
                name_missing_end(trainer, pl_module)

    def _drawing_alike(self, trainer: Any) -> AbstractContextManager[None]:
        """Draw, while loaders are made, the numbers of one process and of the epoch of their making: a part of the data, say."""
        epoch = trainer.current_epoch - trainer.current_epoch % (trainer.reload_dataloaders_every_n_epochs or sys.maxsize)
        return drawing_from(derive_seed(self.seed, epoch, len(LOADERS)))

    def _combine_processes(self, trainer: Any, model: LightningModule) -> None:
        if trainer.world_size > 1:
            reduce_logs(trainer, self.warn)
            if "all_gather" not in vars(model):
                gather_unequal_lengths(model, self._gathers_unequally, self.warn)

    def _gathers_unequally(self) -> bool:
        if self._is_even is False:
            self.warn(GATHERED)
        return self._has_uneven_data and not self._is_even

    def _share_all(self, trainer: Any, name: str, loaders: list[Any], are_together: bool) -> list[Any]:
        """Return loaders with this rank's share of what each of these draws."""
        training = name == LOADERS[0]
        shared = [self._share(trainer, loader, name, training) for loader in loaders]
        samplers = [one.sampler for one in shared if isinstance(getattr(one, "sampler", None), SharedSampler)]
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

    def on_fit_start(self, trainer: Any, pl_module: LightningModule) -> None:
        parts = [part for part in (pl_module, trainer.datamodule) if part is not None and not isinstance(part, Task | DataModule)]
        names = " and ".join(type(part).__name__ for part in parts)
        if trainer.world_size > 1:
            log.info(f"{names}: plain Lightning; {_NOT_KNOWN}")

    def on_train_start(self, trainer: Any, pl_module: LightningModule) -> None:
        self._accumulated = trainer.accumulate_grad_batches
        self._started = time.perf_counter(), time.process_time()
        self._is_first_epoch = True
        self._say_other_batch(trainer)
        if self._keeps_workers:
            log.info(_KEEPS_WORKERS)
        if self._samples_before not in (None, self._samples):
            self._check_batches(trainer)
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
        return trainer.strategy.reduce(own * self._weight, reduce_op="mean")

    def _check_batches(self, trainer: Any) -> None:
        """Raise ConfigError if a run would go on within an epoch in batches of another size: some samples would be trained on
        twice, or not at all."""
        before, now = (", ".join(map(str, sizes or ())) for sizes in (self._samples_before, self._samples))
        if batches_trained(trainer):
            words = f"is within an epoch whose batches have {before} samples over all processes; here they have {now}"
            raise config_error("checkpoint", trainer.ckpt_path, f"{words}; use a batch size with which they have as many")
        log.warning(f"From here on batches have {now} samples over all processes; before they had {before}")

    def on_train_epoch_start(self, trainer: Any, pl_module: LightningModule) -> None:
        if self._is_first_epoch:
            self._begin_again(trainer)

    def _begin_again(self, trainer: Any) -> None:
        """Load again what Lightning began to load before it knew the epoch, in whatever state the generators were."""
        self._is_first_epoch = False
        if not isinstance(trainer.datamodule, DataModule):
            counter = next((one for one in trainer.callbacks if isinstance(one, CounterBasedRandomness)), None)
            before = (lambda _: None) if counter is None else lambda batch: counter.count(trainer, batch)
            begin_batches_again(trainer, before, self._go_to_position(trainer))

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
        # the argument is the batch before for a step that takes a dataloader_iter
        self._divide(trainer.fit_loop.epoch_loop.batch_idx)
        if self._is_dummy:
            self._around_batch.enter_context(counting_nothing(trainer, pl_module))
            self._around_batch.enter_context(without_statistics())

    def _compare(self, model: LightningModule) -> None:
        if names := buffers_that_differ(model):
            self.warn(f"buffers differ between processes after a step, and process 0's are kept ({join_first(names)})")
        if names := weights_that_differ(model):
            self.warn(f"weights differ between processes after a step ({join_first(names)}): {_OWN_GRADIENTS}")

    def _divide(self, batch_idx: int) -> None:
        """Set this rank's weight in the batch, and whether its samples are a dummy's."""
        samplers = self._shared_samplers
        shared = [(sampler.num_replicas, *sampler.samples_in(batch_idx)) for sampler in samplers]
        uneven = {whole if whole % ranks else 0 for ranks, _, whole in shared}
        if len(samplers) < len(self._samplers):
            uneven.add(0)
        if len(uneven) > 1:
            self.warn("training loaders divide a batch unequally, whose gradient is not weighted; drop_last=True leaves it out")
        ranks, own, whole = shared[0] if shared and len(uneven) == 1 else (1, 1, 1)
        self._weight, self._is_dummy, self._is_even = own * ranks / whole, own == 0, uneven == {0}

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        if self._weight != 1.0 and loss.requires_grad:
            weight = self._weight
            loss.register_hook(lambda gradient: gradient * weight)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._around_batch.close()
        self._is_even = None
        self.samples_trained += 0 if self._is_dummy else samples_in(batch) or 0

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.train_time, self.train_cpu_time = time.perf_counter() - self._started[0], time.process_time() - self._started[1]
        self.results = logged_numbers(trainer)  # a test forgets them
        self.ended_by = ended_by(trainer)  # a test has the model's `configure_callbacks` make others

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
        self._say_left_out(leave_out_objects(checkpoint))

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
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
