"""Epochs of which loaders are, with trainer.reload_dataloaders_every_n_epochs."""

import math
from typing import Any

from lockstep.extras.plain_lightning.lightning_internals import TRAINING, reload_epochs, set_reload_epochs

_KEY = "loaders_of_epochs"


class Reloads:
    """Make the loaders that a resumed run begins with those of the epoch in which it had asked for them last: Lightning takes
    them for those of the epoch that it goes on with, and asks in other epochs from there on."""

    def __init__(self) -> None:
        self._before: dict[str, float] = {}  # of the checkpoint

    def epoch_of(self, trainer: Any, name: str) -> int:
        """Return the epoch of the loader that Lightning asks for now."""
        epoch, every = trainer.current_epoch, trainer.reload_dataloaders_every_n_epochs
        before = self._before.get(name, -math.inf)
        if epoch - before >= every:
            self._before.pop(name, None)
            return epoch if every else 0
        if name != TRAINING:
            self.go_on(trainer, name)
        return int(before)

    def go_on(self, trainer: Any, name: str = TRAINING) -> None:
        """Let Lightning count from there; for training, after it has asked."""
        if name in self._before:
            set_reload_epochs(trainer, {name: self._before.pop(name)})

    def save(self, trainer: Any, checkpoint: dict[str, Any]) -> None:
        if trainer.reload_dataloaders_every_n_epochs:
            checkpoint[_KEY] = reload_epochs(trainer)

    def load(self, checkpoint: dict[str, Any]) -> None:
        self._before = dict(checkpoint.get(_KEY, {}))
