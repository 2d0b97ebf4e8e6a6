"""Hydra's seam for what comes before a sweep's first batch and after its last."""

import traceback
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from lockstep import console
from lockstep.errors import ConfigError
from lockstep.runs.run import discard_made, will_make


class EndSweep(Callback):
    """The table and the exit code when the last job is over; `Sweep.launch` is called once per batch."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        HydraConfig.instance().set_config(config)
        directory = Path(str(config.hydra.sweep.dir)).absolute()
        if not directory.exists():
            will_make(directory)

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        from lockstep.sweeps.sweep import Sweep  # Hydra makes this callback for single runs too

        try:
            Sweep.end()
        except ConfigError as error:  # Hydra would only warn, and end with code 0
            console.say(str(error))
            discard_made()
            raise SystemExit(2) from None
        except Exception:
            traceback.print_exc()
            raise SystemExit(1) from None
