"""What Lightning says about a run that this package does on purpose, and what it says wrongly of a DataModule and a Task."""

import logging
import warnings

_ON_PURPOSE = (
    "Checkpoint directory .* exists and is not empty",  # that is how a run is continued
    "The `srun` command is available on your system but is not used",  # a job of one task is a plain machine to us
    r"`isinstance\(treespec, LeafSpec\)`",  # between Lightning and torch
)
_WRONG_OF_TASKS = (
    "Total length of `list` across ranks is zero",  # a split that is not there is an empty list of loaders
    "The '.*_dataloader' does not have many workers",  # data in memory needs none
    r"It is recommended to use `self\.log",  # a SampleMean is summed over the ranks before it is logged
    "The number of training batches",  # logging less often than once an epoch is a choice
)


def ignore_expected_warnings() -> None:
    """Keeps Lightning's warnings, but for those that are expected, and drops its commentary; importing it has set the level."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    _ignore(_ON_PURPOSE)


def ignore_warnings_about_tasks() -> None:
    """For a Task on a DataModule; other models and data get them all."""
    _ignore(_WRONG_OF_TASKS)


def _ignore(messages: tuple[str, ...]) -> None:
    for message in messages:
        warnings.filterwarnings("ignore", message=message)
