"""Callbacks that switch off, equally on both sides, what may keep several processes from giving the result of one."""

import functools
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy
import torch
from lightning import Callback, LightningModule, Trainer
from torch.utils._pytree import tree_flatten, tree_unflatten

from lockstep import noise
from lockstep.noise import derive_seed
from lockstep.plain_lightning.processes import all_ranks
from lockstep.trainer.batchnorm import Synchronised


class OneRate(Callback):
    """Take one learning rate in all steps."""

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        for group in optimizer.param_groups:
            group["lr"] = 1e-3


class WholeBatch(Callback):
    """Give each process the batch of all processes, in the order of one; with `draws`, the random numbers of one, too. BatchNorm
    then normalises by these samples, which all processes have."""

    def __init__(self, draws: bool = False) -> None:
        self.draws = draws

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        for name in {"fit": ("training_step", "validation_step"), "test": ("test_step",)}.get(stage, ()):
            step = getattr(pl_module, name)
            setattr(pl_module, name, functools.wraps(step)(functools.partial(self._step, trainer, step)))

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for layer in (layer for layer in pl_module.modules() if isinstance(layer, Synchronised)):
            vars(layer)["forward"] = super(Synchronised, layer).forward  # pyright: ignore[reportAttributeAccessIssue]

    def _step(self, trainer: Any, step: Callable[..., Any], batch: Any, *rest: Any) -> Any:
        whole, index = _join(all_ranks(batch), trainer.global_rank), trainer.fit_loop.batch_idx
        if (own := noise.step()) is not None:
            noise.begin(replace(own, rank=0, ranks=1))
        for seed in (torch.manual_seed, random.seed, numpy.random.seed) if self.draws else ():
            seed(derive_seed(trainer.current_epoch, index) % 2**32)
        return step(whole, *rest)


def _join(batches: list[Any], own: int) -> Any:
    """Return one batch, on the device of this process's, of whose samples each process has every n-th."""

    def joined(parts: tuple[Any, ...]) -> Any:
        if not getattr(parts[own], "ndim", 0):
            return parts[own]
        shape = [max(sizes) for sizes in zip(*(part.shape for part in parts), strict=True)]  # the longest of padded samples
        pad = -100 if any((part == -100).any() for part in parts) else 0  # torch's ignore_index
        whole = parts[own].new_full((len(parts) * shape[0], *shape[1:]), pad)
        for rank, part in enumerate(parts):
            whole[(slice(rank, len(part) * len(parts), len(parts)), *(slice(size) for size in part.shape[1:]))] = part
        return whole[: sum(map(len, parts))]

    flat, structures = zip(*map(tree_flatten, batches), strict=True)
    return tree_unflatten([*map(joined, zip(*flat, strict=True))], structures[own])
