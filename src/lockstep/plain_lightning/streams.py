"""Loaders of streams: each process reads its part, and resumes at the position of a checkpoint.

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

_MARK = "is_sharded"
_LOADED = "_starting_state_dict"  # with it, Hugging Face's datasets start every later iteration at the loaded position too
_AHEAD = 2  # batches by which loading is ahead of training at most
_KEPT = _AHEAD + 2  # stored states; a checkpoint may be one batch behind

SHORTER = (
    "the streams of some processes have fewer batches: an epoch of training ends with the shortest, the others' rest is left out"
)
UNWEIGHTED = "a batch has unequal numbers of samples from the processes' streams, and its gradient is not weighted"


class Shard(IterableDataset[Any]):
    """A stream that is divided among processes and their data workers, so that each sample is used once.

    Sample i goes to process i % world_size, so that the batches of all processes together are those of one process whose loader
    takes batch_size * world_size samples. Every process reads the whole stream, which must be the same on each and in each epoch.

    Args:
        stream: an iterable of samples that can be iterated once per epoch.
        batch_size: the loader's batch size, so that each data worker prepares whole batches. None: the DataLoader's own.
        drop_last: drop the last samples if there is not one for each process, so that all processes make equally many steps.
            None: only in training. A validation step must then not communicate with other processes.
    """

    def __init__(self, stream: Iterable[Any], batch_size: int | None = None, drop_last: bool | None = None) -> None:
        self.stream, self.batch_size, self.drop_last = stream, batch_size, drop_last
        self.share: tuple[int, int] = (0, 1)  # data-parallel rank and size; set before training

    def __iter__(self) -> Iterator[Any]:
        rank, ranks = self.share
        worker = get_worker_info()
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        samples = iter(self.stream)
        place = 0
        while together := list(islice(samples, ranks)):
            is_whole = len(together) == ranks or self.drop_last is False
            if is_whole and rank < len(together) and place // (self.batch_size or 1) % workers == number:
                yield together[rank]
            place += 1


def sharded(stream: Any) -> Any:
    """Mark a stream, or a loader such as torchdata.nodes.Loader, that yields only the samples of its own process."""
    setattr(stream, _MARK, True)
    return stream


def is_sharded(stream: Any) -> bool:
    """Return whether `sharded` has marked the stream."""
    return getattr(stream, _MARK, False)


def is_stream(loader: Any) -> bool:
    return not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset)


def share_stream(loader: Any, share: tuple[int, int], name: str) -> None:
    """Set a stream's share; raise ConfigError if several processes would each use all of it. `name` is the loader's hook."""
    dataset = getattr(loader, "dataset", loader)
    if isinstance(dataset, Shard):
        dataset.share = share
        if dataset.batch_size is None:
            dataset.batch_size = getattr(loader, "batch_size", None)
        if dataset.drop_last is None:
            dataset.drop_last = name == "train_dataloader"
        return
    by_node = getattr(dataset, "_distributed", None)  # set by datasets.distributed.split_dataset_by_node
    is_divided = by_node is not None and (by_node.rank, by_node.world_size) == share
    if share[1] == 1 or is_divided or is_sharded(loader) or is_sharded(dataset) or loader == []:  # no loader
        return
    kind = type(dataset).__name__
    ways = f"datasets.distributed.split_dataset_by_node, {__name__}.Shard(STREAM)"
    why = f"each process would read the whole {kind} of {name}; use {ways}, sharded(STREAM) if it is divided, or 1"
    raise config_error("trainer.devices", share[1], why)


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
        for batch in batches:
            samples = gather_number(samples_in(batch) or 1)
            if 0 in samples:
                self.warn(SHORTER)
                break
            if len({*samples}) > 1:
                self.warn(UNWEIGHTED)
            yield batch
        else:
            if any(gather_number(0)):
                self.warn(SHORTER)
            return
        for _ in batches:
            pass

    def __getattr__(self, name: str) -> Any:
        if name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)


class Positioned:
    """A training loader with `state_dict` and `load_state_dict`, such as torchdata's StatefulDataLoader, and its states after its
    last batches. Loading is ahead of training, so resuming from the loader's current state would skip batches.

    It hides these two methods, because Lightning would save rank zero's state for all ranks.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.states: dict[int, Any] = {}  # by number of batches loaded in the epoch; 0: after the last epoch
        self._next_states: dict[int, Any] = {}
        self._beginning: Any = None  # the state before the first batch

    def resume(self, batches: int, state: Any) -> None:
        """Start the next iteration after `batches` of the epoch. With 0 the state is that of the previous epoch's end, because a
        stream may count epochs."""
        if batches or is_stream(self.loader):
            self._next_states = {batches: state}
            self.loader.load_state_dict(state)

    def begin_again(self) -> None:
        """Go back to the first batch, since a stream may continue where an iteration has ended."""
        if self._beginning is not None:
            self.loader.load_state_dict(self._beginning)

    def __iter__(self) -> Iterator[Any]:
        is_resumed, passed = bool(self._next_states), max(self._next_states, default=0)
        before = {0: self.states[0]} if 0 in self.states else {}
        self.states, self._next_states = self._next_states or before, {}
        if self._beginning is None and not is_resumed and is_stream(self.loader):
            self._beginning = self.loader.state_dict()
        batches = passed
        for batches, batch in enumerate(self.loader, start=1 + passed):
            self.states[batches] = self.loader.state_dict()
            self.states.pop(batches - _KEPT, None)
            yield batch
        self.states.pop(0, None)
        if batches > _AHEAD:  # otherwise the next epoch may have been loaded completely when this one is saved
            self.states[0] = self.loader.state_dict()
        if is_resumed and hasattr(getattr(self.loader, "dataset", None), _LOADED):
            self.begin_again()
        if is_resumed and not batches:  # saved at the end of an epoch, after which some loaders start the next one by themselves
            yield from self

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name in ("loader", "state_dict", "load_state_dict"):
            raise AttributeError(name)
        return getattr(self.loader, name)


def is_stateful(loader: Any) -> bool:
    return hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")
