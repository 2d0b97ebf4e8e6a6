"""Make the sweeps of conf/sweep suit a model and data that know nothing of this package; see swept.py.

Hydra makes this callback for single runs too, so it imports in its hook.
"""

from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig


class SweepRate(Callback):
    """Make `hydra.sweeper.params` name the rate of a model without an optimizer's: a LightningModule of the user's own has it as
    an argument. Hydra makes the sweeper after that. Refuse a sweep over keys that the data does not have."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        from lockstep.extras.plain_lightning.swept import check_data, rename_rate
        from lockstep.runs.validation import refusing

        with refusing():
            rename_rate(config)
            check_data(config)
