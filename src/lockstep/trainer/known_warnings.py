"""What Lightning says about a run that this package does on purpose, or wrongly of a Task and a DataModule."""

import logging
import warnings
from collections.abc import Iterable

_OF_NOBODY = (  # whatever model and data are
    "Checkpoint directory .* exists and is not empty",  # that is how a run is continued
    "The `srun` command is available on your system but is not used",  # a job of one task is a plain machine to us
    r"`isinstance\(treespec, LeafSpec\)`",  # between Lightning and torch
)
_OF_TASKS = (
    "Total length of `list` across ranks is zero",  # a split that is not there is an empty list of loaders
    "The '.*_dataloader' does not have many workers",  # data in memory needs none
    r"It is recommended to use `self\.log",  # a SampleMean is summed over the ranks before it is logged
    "The number of training batches",  # logging less often than once an epoch is a choice
    "You're resuming from a checkpoint that ended before the epoch ended",  # Lightning asks the loader; here the sampler goes on
)


def drop_commentary() -> None:
    """Keeps what Lightning's loggers warn of, and drops the rest; importing it has set their level. Drops warnings that are about
    nothing that a user has written."""
    _ignore(_OF_NOBODY)
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)


def ignore_warnings_about_tasks() -> None:
    """Is for a Task on a DataModule; whoever brings another model or other data gets all of Lightning's warnings."""
    _ignore(_OF_TASKS)


def _ignore(messages: Iterable[str]) -> None:
    for message in messages:
        warnings.filterwarnings("ignore", message=message)
