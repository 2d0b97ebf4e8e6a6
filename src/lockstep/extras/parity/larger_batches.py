"""One process takes the batches of several, whose size the loaders of a LightningModule or a LightningDataModule alone know."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from lightning.pytorch.utilities.combined_loader import CombinedLoader
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.utils.data import BatchSampler, DataLoader

from lockstep.errors import config_error
from lockstep.extras.plain_lightning.callback import LOADERS
from lockstep.extras.plain_lightning.loaders import loading_arguments
from lockstep.extras.plain_lightning.streams import is_stream


def take_larger_batches(source: Any, times: int) -> None:
    """Lets the loaders that `source` makes take batches that are so many times as large. Raises ConfigError when one for training
    is made that can't."""
    for name in LOADERS:
        if is_overridden(name, source):
            setattr(source, name, _with_larger_batches(getattr(source, name), name, times))


def _with_larger_batches(make: Callable[..., Any], name: str, times: int) -> Callable[..., Any]:
    @wraps(make)
    def larger(*arguments: Any) -> Any:
        made = make(*arguments)
        loaders = made if isinstance(made, CombinedLoader) else CombinedLoader(made)
        loaders.flattened = [_larger(loader, name, times) for loader in loaders.flattened]
        return made if isinstance(made, CombinedLoader) else loaders.iterables

    return larger


def _larger(loader: Any, name: str, times: int) -> Any:
    if type(loader) is DataLoader and loader.batch_size is not None and type(loader.batch_sampler) in (BatchSampler, type(None)):
        order = {} if is_stream(loader) else {"sampler": loader.sampler}
        sizes = {"batch_size": loader.batch_size * times, "drop_last": loader.drop_last}
        return DataLoader(loader.dataset, **order, **sizes, **loading_arguments(loader))
    if name == LOADERS[0]:
        why = f"{name} draws batches in its own way, so that one process can't take those of {times}"
        raise config_error("parity.against", "one", f"{why}; accepted is ddp")
    return loader
