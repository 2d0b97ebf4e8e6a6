"""Divide the loaders of a module or its data among processes, and resume at a position in them."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from lightning import LightningModule, Trainer
from lightning.pytorch.utilities.seed import isolate_rng

from lockstep.callbacks.randomness import CounterBasedRandomness
from lockstep.console import join_first
from lockstep.datamodules.base import DataModule
from lockstep.datamodules.seeded import seed_generators
from lockstep.errors import config_error
from lockstep.noise import derive_seed
from lockstep.plain_lightning.loaders import LOADERS, SharedSampler, shared_loader
from lockstep.plain_lightning.streams import in_step, is_stream, share_stream
from lockstep.runs.results import Records
from lockstep.runs.shares import dp_rank_and_size
from lockstep.strategies.ddp import has_same_bits
from lockstep.trainer.lightning_internals import (
    begin_batches_again,
    count_reloads_from,
    leaves_samplers,
    without_loader_states,
)
from lockstep.trainer.steps import batches_trained

log = logging.getLogger(__name__)

_OTHER_NUMBER = (
    "Resumed on {} process(es), begun on {}: the global batches are the same, but sums are in another order, so that weights are "
    "equal up to rounding alone"
)
_OTHER_PLACE = (
    "is within an epoch of other batches, or in another order: some samples would be trained on twice, or not at all; use the "
    "same seed, data, shuffling and number of samples in a batch over all processes, {}"
)
_GOES_ON = "Resuming within an epoch, after its first {} batches."


class SharedLoading(Records):
    """Give each process its part of the batches of one process, and resume a run at the position of its checkpoint.

    Attributes:
        causes: why several processes can't give the result of one, for the record of the run.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.causes: list[str] = []
        self._begins_again = False  # True in the first epoch after a resumption
        self._samplers: list[Any] = []  # samplers of the training loaders
        self._made_in = 0  # the epoch in which the current loaders were made
        self._sizes: list[int | None] = []  # samples per batch of each training loader, over all processes
        self._before: dict[str, Any] = {}  # what the checkpoint says of the data
        self._accumulated = 1

    def warn(self, line: str) -> None:
        """Warn once about a difference from one process, and record it."""
        if line not in self.causes:
            self.causes.append(line)
            log.warning(f"Differs from one process: {line}")

    @contextmanager
    def _drawing_alike(self, trainer: Any) -> Iterator[None]:
        """Seed the generators by the epoch while loaders are made, which may draw a part of the data."""
        self._made_in = _epoch_of_loaders(trainer)
        count_reloads_from(trainer, self._made_in)
        with isolate_rng(include_cuda=False):
            seed_generators(derive_seed(self.seed, self._made_in, len(LOADERS)))
            yield

    def _share_all(self, trainer: Any, name: str, loaders: list[Any]) -> list[Any]:
        """Return loaders with this rank's part of each loader's batches."""
        training, ranks = name == LOADERS[0], dp_rank_and_size(trainer)[1]
        shared = [self._share(trainer, loader, name, training) for loader in loaders]
        samplers = [getattr(loader, "sampler", None) for loader in shared]
        divided = [(loader.dataset, one) for loader, one in zip(loaders, samplers, strict=True) if isinstance(one, SharedSampler)]
        for _, sampler in divided:
            sampler.begin_with(self._made_in)
        if ranks > 1 and not isinstance(trainer.datamodule, DataModule):
            from lockstep.plain_lightning.module_checks import check_processes

            check_processes(name, divided)
        if training:
            self._samplers, self._sizes = samplers, [_batch_size(loader, ranks) for loader in shared]
            self._count(trainer, -1)  # Lightning starts loading right after this
        return shared

    def _share(self, trainer: Any, loader: Any, name: str, training: bool) -> Any:
        share = dp_rank_and_size(trainer)
        if is_stream(loader):
            share_stream(loader, share, name)
            return in_step(loader, self.warn) if training and share[1] > 1 else loader
        if share[1] > 1 and leaves_samplers(trainer):
            self.warn(f"trainer.use_distributed_sampler=false: which samples a process takes is left to {name}")
            return in_step(loader, self.warn) if training else loader
        shared = shared_loader(loader, share, self.seed, training)
        if shared is None:
            if share[1] > 1:
                self.warn(f"{name} draws batches or shares them out in its own way, which is left to Lightning")
            return loader
        sampler: Any = shared.sampler
        if trainer.state.fn == "fit" and getattr(trainer, "overfit_batches", 0):  # Lightning switches shuffling off
            sampler.sampler = range(sampler.length)
        return shared

    def on_train_start(self, trainer: Any, pl_module: LightningModule) -> None:
        self._accumulated = trainer.accumulate_grad_batches
        self._begins_again = trainer.ckpt_path is not None
        count_reloads_from(trainer, _epoch_of_loaders(trainer))
        batches = batches_trained(trainer)
        self._compare_position(trainer, is_within=batches > 0)
        if batches:
            log.info(_GOES_ON.format(batches))
            self._begin_again(trainer)

    def _compare_position(self, trainer: Any, is_within: bool) -> None:
        """Log how batches differ from the checkpoint's. Raise ConfigError if its epoch can't go on with them."""
        for sampler in self._shared_samplers:
            sampler.set_epoch(trainer.current_epoch)
        before, now = self._before, self._position(trainer)
        changed = {name for name, value in before.items() if value and value != now[name]}  # Lightning's finders have no batches
        if is_within and changed & {"samples_per_batch", "order"}:
            raise config_error("checkpoint", trainer.ckpt_path, _OTHER_PLACE.format(join_first(before["samples_per_batch"])))
        if (key := "samples_per_batch") in changed:
            log.warning(f"From here on batches have {now[key]} samples; before they had {before[key]}")
        elif "shares" in changed and now["shares"]:
            log.info(_OTHER_NUMBER.format(now["shares"], before["shares"]))

    def on_train_epoch_start(self, trainer: Any, pl_module: LightningModule) -> None:
        if self._begins_again:
            self._begin_again(trainer)

    def _begin_again(self, trainer: Any) -> None:
        """Reload the batches that Lightning started to load before it knew the epoch, from the checkpoint's position on."""
        self._begins_again = False
        is_alone = len(self._samplers) == len(self._shared_samplers) == 1
        if is_alone:
            self._samplers[0].passed = (trainer.current_epoch, batches_trained(trainer))
        begin_batches_again(trainer, partial(self._count, trainer), is_alone)

    def _count(self, trainer: Any, batch: int) -> None:
        for one in trainer.callbacks:
            if isinstance(one, CounterBasedRandomness):
                one.count(trainer, batch)

    @property
    def _shared_samplers(self) -> list[SharedSampler]:
        return [sampler for sampler in self._samplers if isinstance(sampler, SharedSampler)]

    def facts(self) -> dict[str, int]:
        """Return the sizes of training batches, which a config need not contain."""
        if len(samplers := self._shared_samplers) != 1:
            return {}
        return {"batch_size": samplers[0].batch_size, "global_batch_size": samplers[0].global_batch_size * self._accumulated}

    def _position(self, trainer: Any) -> dict[str, Any]:
        """Return what a resumed run must have in common with the checkpoint to go on within its epoch."""
        orders = [sampler.order_checksum() for sampler in self._shared_samplers]
        shares = None if has_same_bits(trainer) else dp_rank_and_size(trainer)[1]
        return {"samples_per_batch": self._sizes, "order": orders, "shares": shares}

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn == "fit":
            without_loader_states(checkpoint)
            checkpoint |= self._position(trainer)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self._before = {key: checkpoint.get(key) for key in ("samples_per_batch", "order", "shares")}


def _epoch_of_loaders(trainer: Any) -> int:
    """Return the epoch in which the current loaders were made, by trainer.reload_dataloaders_every_n_epochs."""
    every = trainer.reload_dataloaders_every_n_epochs
    return trainer.current_epoch // every * every if every else 0


def _batch_size(loader: Any, ranks: int) -> int | None:
    """Return the number of samples of a batch over all processes, or None if it is unknown."""
    if isinstance(sampler := getattr(loader, "sampler", None), SharedSampler):
        return sampler.global_batch_size
    return None if (size := getattr(loader, "batch_size", None)) is None else size * ranks


class Weight(NamedTuple):
    """Weights of a batch.

    Attributes:
        in_batch: weight of this rank's mean in the batch.
        in_step: weight of the batch in the step; Lightning divides by accumulate_grad_batches even if a step has fewer.
        samples: number of samples of this rank, 0 for a dummy.
        is_even: True if all ranks have equally many.
        is_known: False if loaders divide the batch differently; it is then not weighted among ranks.
    """

    in_batch: float = 1.0
    in_step: float = 1.0
    samples: int = 1
    is_even: bool = False
    is_known: bool = True


def weight_of(batch: int, samplers: list[Any], accumulated: int, batches: float) -> Weight:
    """Return the weight of a batch in an epoch of `batches` batches. `samplers` are those of the training loaders."""
    shared = [sampler for sampler in samplers if isinstance(sampler, SharedSampler)]
    if not shared:
        return Weight()
    (own, whole), ranks, in_step = shared[0].samples_in(batch), shared[0].num_replicas, 1.0
    if accumulated > 1 and are_counted(samplers):
        first = batch - batch % accumulated
        others = range(first, max(batch + 1, int(min(first + accumulated, batches))))
        in_step = accumulated * whole / sum(shared[0].samples_in(other)[1] for other in others)
    sizes = [sampler.samples_in(batch)[1] for sampler in shared]
    is_even = not any(size % ranks for size in sizes)
    if not is_even and (len({*sizes}) > 1 or len(shared) < len(samplers)):
        return Weight(in_step=in_step, is_known=False)
    return Weight(own * ranks / whole, in_step, own, is_even)


def are_counted(samplers: list[Any]) -> bool:
    """Return whether the number of samples of each batch is known."""
    return bool(samplers) and all(isinstance(sampler, SharedSampler) for sampler in samplers)
