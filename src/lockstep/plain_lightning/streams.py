"""Loaders of streams: each process reads its part, and a resumed run reads again up to its batch.

Lightning gives each process the whole stream. Here a stream must declare how it is divided, or several processes are refused.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from lightning.fabric.utilities.data import sized_len
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from lockstep.datamodules.batches import samples_in
from lockstep.errors import config_error
from lockstep.plain_lightning.processes import all_ranks, gather_number

SHORTER = (
    "the streams of some processes have fewer batches: an epoch of training ends with the shortest, the others' rest is left out"
)
UNWEIGHTED = "a batch has unequal numbers of samples from the processes' streams, and its gradient is not weighted"
_END = object()


class Shard(IterableDataset[Any]):
    """A stream that is divided among processes and their data workers, so that each sample is used once.

    Sample i goes to process i % world_size, so that the batches of all processes together are those of one process whose loader
    takes batch_size * world_size samples. Every process reads the whole stream, which must be the same on each and in each epoch.

    Args:
        stream: an iterable of samples that can be iterated once per epoch.
        drop_last: drop the last samples if there is not one for each process, so that all processes make equally many steps.
            None: only in training. A validation step must then not communicate with other processes.
    """

    def __init__(self, stream: Iterable[Any], drop_last: bool | None = None) -> None:
        self.stream, self.drop_last = stream, drop_last
        self.share: tuple[int, int] = (0, 1)  # data-parallel rank and size; set before training, as is the batch size
        self.batch_size = 1

    def __iter__(self) -> Iterator[Any]:
        rank, ranks = self.share
        worker: Any = get_worker_info()
        samples = iter(self.stream)
        place = 0
        while together := list(islice(samples, ranks)):
            is_own = worker is None or place // self.batch_size % worker.num_workers == worker.id  # workers make whole batches
            if is_own and rank < len(together) and (len(together) == ranks or self.drop_last is False):
                yield together[rank]
            place += 1


def sharded(stream: Any) -> Any:
    """Mark a stream, or a loader such as torchdata.nodes.Loader, that yields only the samples of its own process."""
    stream.is_sharded = True
    return stream


def is_stream(loader: Any) -> bool:
    return not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset)


def is_stateful(part: Any) -> bool:
    return hasattr(part, "state_dict") and hasattr(part, "load_state_dict")


def share_stream(loader: Any, share: tuple[int, int], name: str) -> None:
    """Set a stream's share; raise ConfigError if several processes would each use all of it. `name` is the loader's hook."""
    dataset = getattr(loader, "dataset", loader)
    if isinstance(dataset, Shard):
        dataset.share, dataset.batch_size = share, getattr(loader, "batch_size", None) or 1
        if dataset.drop_last is None:
            dataset.drop_last = name == "train_dataloader"
        return
    by_node = getattr(dataset, "_distributed", None)  # set by datasets.distributed.split_dataset_by_node
    is_divided = by_node is not None and (by_node.rank, by_node.world_size) == share
    is_marked = any(getattr(part, "is_sharded", False) for part in (loader, dataset))
    if share[1] == 1 or is_divided or is_marked or loader == []:  # no loader
        return
    ways = f"datasets.distributed.split_dataset_by_node, {__name__}.Shard(STREAM)"
    why = f"each process would read the whole {type(dataset).__name__} of {name}; use {ways}, sharded(STREAM) if it is divided"
    raise config_error("trainer.devices", share[1], f"{why}, or 1")


def in_step(loader: Any, warn: Callable[[str], None]) -> Any:
    """Return a training loader that ends in all processes when one of them has no more batches. A collective."""
    if isinstance(dataset := getattr(loader, "dataset", loader), Shard) and dataset.drop_last:
        return loader
    lengths = all_ranks(sized_len(loader))
    return loader if len({*lengths}) == 1 and None not in lengths else InStep(loader, warn)


class InStep:
    """A training loader whose epochs end in all processes when one of them has no more batches; the others skip theirs. It
    exchanges this before each batch on CPUs, and calls `warn` with a line if processes have unequal numbers."""

    def __init__(self, loader: Any, warn: Callable[[str], None]) -> None:
        self.loader, self.warn = loader, warn

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self.loader)
        while True:
            batch = next(batches, _END)
            samples = gather_number(0 if batch is _END else samples_in(batch) or 1)
            if 0 in samples:
                break
            if len({*samples}) > 1:
                self.warn(UNWEIGHTED)
            yield batch
        if any(samples):
            self.warn(SHORTER)
        for _ in batches:  # the next epoch begins with the whole stream
            pass

    def __getattr__(self, name: str) -> Any:
        if name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)
