"""Options of a DataModule: arguments under a key of their own, datamodule.NAME, beside those that it names."""

from typing import Any, Protocol

from torch import Tensor


class Order(Protocol):
    """Change the order in which samples are taken. The identity is a number that another order does not have."""

    identity: int

    def __call__(self, order: Tensor, epoch: int) -> Tensor:
        """Return sample ids, (length,), from the epoch's shuffled ids."""
        ...


class DataOption:
    """Change how a DataModule serves its data. A subclass overrides what it changes."""

    def reorder(self, train: Any) -> Order | None:
        """Return the order in which samples of the training split are taken; None leaves it as it is."""
        return None


def checked_options(owner: str, options: dict[str, Any]) -> dict[str, DataOption]:
    """Return the DataOptions that are not null. Raises TypeError for others, as for any argument that a class does not take."""
    for name, option in options.items():
        if not isinstance(option, DataOption | None):
            raise TypeError(f"{owner}.__init__() got an unexpected keyword argument '{name}'")
    return {name: option for name, option in options.items() if option is not None}
