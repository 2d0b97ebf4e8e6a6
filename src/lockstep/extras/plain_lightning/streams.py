"""Loaders of streams: each process takes its share, and goes on from where a checkpoint was written.

Lightning gives each process the whole of a stream. Here a stream says how it is divided, or is refused on several processes.
"""

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from lockstep.datamodules.streams import Shard, is_sharded
from lockstep.errors import config_error

_LOADED = "_starting_state_dict"  # Hugging Face's datasets begin each later iteration, too, where they were told to begin
_AHEAD = 2  # batches, by which loading is ahead of training at most
_KEPT = _AHEAD + 2  # states: a checkpoint may be one batch behind


def is_stream(loader: Any) -> bool:
    return not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset)


def share_stream(loader: Any, share: tuple[int, int], name: str) -> None:
    """Raises ConfigError for a stream that several processes would each read whole. `name` is the hook that made the loader."""
    dataset = getattr(loader, "dataset", loader)
    if isinstance(dataset, Shard):
        dataset.share = share
        return
    by_node = getattr(dataset, "_distributed", None)  # what datasets.distributed.split_dataset_by_node leaves on its result
    is_divided = by_node is not None and (by_node.rank, by_node.world_size) == share
    if share[1] == 1 or is_divided or is_sharded(loader) or is_sharded(dataset):
        return
    kind, ways = type(dataset).__name__, "datasets.distributed.split_dataset_by_node, lockstep.datamodules.Shard(STREAM)"
    why = f"each process would read the whole {kind} of {name}; accepted is {ways}, sharded(STREAM) if it is divided, or 1"
    raise config_error("trainer.devices", share[1], why)


class Positioned:
    """A training loader with `state_dict` and `load_state_dict`, torchdata's StatefulDataLoader say, and where it was after each
    of its last batches. Loading is ahead of training, so that a resumption from the loader's present state would skip batches.

    It hides these two methods: Lightning would save rank zero's state for all ranks.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.states: dict[int, Any] = {}  # by the number of batches of the epoch that have been loaded; 0: after the last epoch
        self._next_states: dict[int, Any] = {}
        self._beginning: Any = None  # the state before the first batch

    def resume(self, batches: int, state: Any) -> None:
        """Goes on after so many batches of the epoch, the next time that it is iterated; after 0 the state is of the end of the
        epoch before, which a stream may count."""
        if batches or is_stream(self.loader):
            self._next_states = {batches: state}
            self.loader.load_state_dict(state)

    def begin_again(self) -> None:
        """Goes back to the first batch: a stream may go on from where an iteration has left it."""
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
        if batches > _AHEAD:  # else the epoch that begins may have been loaded whole when the one before is saved
            self.states[0] = self.loader.state_dict()
        if is_resumed and hasattr(getattr(self.loader, "dataset", None), _LOADED):
            self.begin_again()
        if is_resumed and not batches:  # it was at the end of an epoch, and some loaders then begin the next one by themselves
            yield from self

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name in ("loader", "state_dict", "load_state_dict"):
            raise AttributeError(name)
        return getattr(self.loader, name)


def is_stateful(loader: Any) -> bool:
    return hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")
