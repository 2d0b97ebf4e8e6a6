"""One process takes the batches of several, whose size the loaders of a LightningModule or a LightningDataModule alone know."""

from typing import Any

from torch.utils.data import BatchSampler, DataLoader

from lockstep.errors import config_error
from lockstep.extras.plain_lightning.loaders import LOADERS, change_loaders, loading_arguments
from lockstep.extras.plain_lightning.streams import is_stream


def take_larger_batches(source: Any, times: int) -> None:
    """Lets the loaders that `source` makes take batches that are so many times as large. Raises ConfigError when one for training
    is made that can't."""
    change_loaders(source, lambda name, loaders, _: [_larger(loader, name, times) for loader in loaders])


def _larger(loader: Any, name: str, times: int) -> Any:
    if type(loader) is DataLoader and loader.batch_size is not None and type(loader.batch_sampler) in (BatchSampler, type(None)):
        order = {} if is_stream(loader) else {"sampler": loader.sampler}
        sizes = {"batch_size": loader.batch_size * times, "drop_last": loader.drop_last}
        return DataLoader(loader.dataset, **order, **sizes, **loading_arguments(loader))
    if name == LOADERS[0]:
        why = f"{name} draws batches in its own way, so that one process can't take those of {times}"
        raise config_error("parity.against", "one", f"{why}; accepted is ddp")
    return loader
