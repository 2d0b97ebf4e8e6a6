"""Rates of a module that depend on the number of processes."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch.distributed as dist
from lightning import LightningModule
from torch.optim import Optimizer

from lockstep.datamodules.seeded import Restored

log = logging.getLogger(__name__)

_NUMBERS = ("world_size", "num_devices", "num_nodes")  # of a trainer
_NOT_THE_USER_S = ("torch", "lightning", "lockstep")


def name_rates_by_world(trainer: Any, module: LightningModule, warn: Callable[[str], None]) -> None:
    """Make `configure_optimizers` call `warn` if it reads the number of processes, and would make other rates on one."""
    configure = module.configure_optimizers

    @wraps(configure)
    def configured() -> Any:
        with _read(trainer, int) as names:
            made = configure()
        if names:
            own, one = [*_rates(made)], _rates_on_one(trainer, module, configure)
            reads = f"configure_optimizers reads {' and '.join(sorted(names))}"
            if one is None or own == one:
                log.warning(f"Not known whether it is as on one process: {reads}, on which a schedule may depend")
            else:
                rates, others = (", ".join(dict.fromkeys(f"{rate:g}" for rate in each)) for each in (own, one))
                warn(f"{reads}: the rate is {rates}, and {others} on one process")
        return made

    module.configure_optimizers = configured


def _rates_on_one(trainer: Any, module: LightningModule, configure: Callable[[], Any]) -> list[float] | None:
    """Return the rates of optimizers made on one process, which are thrown away; None if they can't be made again."""
    before = dict(vars(module))
    try:
        with _read(trainer, lambda _: 1), Restored():
            return [*_rates(configure())]
    except Exception:
        return None
    finally:
        vars(module).clear()
        vars(module).update(before)


def _rates(made: Any) -> Iterator[float]:
    """Yield the rates, before any schedule, of what `configure_optimizers` has returned."""
    if isinstance(made, Optimizer):
        yield from (float(group.get("initial_lr", group["lr"])) for group in made.param_groups)
    elif isinstance(made, dict | list | tuple):
        for part in made.values() if isinstance(made, dict) else made:
            yield from _rates(part)


@contextmanager
def _read(trainer: Any, changed: Callable[[int], int]) -> Iterator[set[str]]:
    """Give the user's own code `changed` numbers of processes; yield the names of those that it has read."""
    kind, of_group, names = type(trainer), dist.get_world_size, set[str]()

    def seen(name: str, number: int) -> int:
        caller = sys._getframe(2).f_globals.get("__name__", "").partition(".")[0]
        if caller in _NOT_THE_USER_S:
            return number
        names.add(name)
        return changed(number)

    def watched(name: str) -> property:
        return property(lambda self: seen(name, getattr(kind, name).fget(self)))

    trainer.__class__ = type(kind.__name__, (kind,), {name: watched(name) for name in _NUMBERS})
    dist.get_world_size = lambda *arguments, **named: seen("world_size", of_group(*arguments, **named))
    try:
        yield names
    finally:
        trainer.__class__, dist.get_world_size = kind, of_group
