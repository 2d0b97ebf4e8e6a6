"""What a DataModule can be given under a key of its own, datamodule.NAME, beside the arguments that it names."""

from typing import Any, Protocol

from torch import Tensor


class Order(Protocol):
    """Changes in which order samples are taken. The identity is a number that another order does not have."""

    identity: int

    def __call__(self, order: Tensor, epoch: int) -> Tensor:
        """Returns sample ids, (length,) as the shuffled ids of the epoch are."""
        ...


class DataOption:
    """Change how a DataModule serves its data. A subclass overrides what it changes."""

    def reorder(self, train: Any) -> Order | None:
        """Returns the order in which samples of the training split are taken; None leaves it as it is."""
        return None


def checked_options(owner: str, options: dict[str, Any]) -> dict[str, DataOption]:
    """Returns those that are not null. Raises TypeError, as for any argument that a class does not take."""
    for name, option in options.items():
        if not isinstance(option, DataOption | None):
            raise TypeError(f"{owner}.__init__() got an unexpected keyword argument '{name}'")
    return {name: option for name, option in options.items() if option is not None}
