"""Has the sweeps of conf/sweep suit a model and data that know nothing of this package; see swept.py.

Hydra makes this callback for single runs too: what it does is imported where it does it.
"""

from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig


class SweepRate(Callback):
    """Has `hydra.sweeper.params` name the rate of a model that has no optimizer's: a LightningModule of one's own has it as an
    argument. Hydra makes the sweeper after that. Refuses a sweep over what the data has not."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        from lockstep.extras.plain_lightning.swept import check_data, rename_rate
        from lockstep.runs.validation import refusing

        with refusing():
            rename_rate(config)
            check_data(config)
