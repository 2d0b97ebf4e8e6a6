"""Data without a number for each sample, an IterableDataset say: how it tells that processes divide it among them."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

_MARK = "is_sharded"


class Shard(IterableDataset[Any]):
    """A stream of which each process, and each of its data workers, takes its share, each sample once.

    Sample i goes to process i % world_size, so that the batches of all processes together are those of one process whose loader
    takes batch_size * world_size samples. Every process reads the whole stream: it has to be the same on each, and each time.

    Args:
        stream: the samples, an iterable that can be iterated anew in each epoch.
        batch_size: of the loader, where it has several data workers: each then prepares whole batches.
        drop_last: leave out the last samples where there is not one for each process, so that all processes take as many steps.
            Without it a step of validation must not communicate with other processes.
    """

    def __init__(self, stream: Iterable[Any], batch_size: int = 1, drop_last: bool = True) -> None:
        self.stream, self.batch_size, self.drop_last = stream, batch_size, drop_last
        self.share: tuple[int, int] = (0, 1)  # (number, of how many) processes; set before training

    def __iter__(self) -> Iterator[Any]:
        rank, ranks = self.share
        worker = get_worker_info()
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        samples = iter(self.stream)
        place = 0
        while together := list(islice(samples, ranks)):
            is_whole = len(together) == ranks or not self.drop_last
            if is_whole and rank < len(together) and place // self.batch_size % workers == number:
                yield together[rank]
            place += 1


def sharded(stream: Any) -> Any:
    """Says of a stream, or of a loader such as torchdata.nodes.Loader, that it yields the samples of its own process alone."""
    setattr(stream, _MARK, True)
    return stream


def is_sharded(stream: Any) -> bool:
    """Returns whether `sharded` was said of it."""
    return getattr(stream, _MARK, False)
