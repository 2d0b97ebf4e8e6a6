"""The Hydra callback that writes a sweep's report after its last job."""

import logging
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig


class WriteReport(Callback):
    """Write the report of a sweep when it ends. If that fails, warn: the sweep ends as it would have."""

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        from lockstep.report.page import write_report  # Hydra makes this callback in every job too

        if config.hydra.launcher.get("dry_run"):
            return
        try:
            answer, page = write_report(Path(config.hydra.sweep.dir).absolute())
            print(f"\n{answer}\n{page}\n", flush=True)
        except Exception as error:
            logging.getLogger(__name__).warning(f"There is no report: {type(error).__name__}: {error}", exc_info=True)
