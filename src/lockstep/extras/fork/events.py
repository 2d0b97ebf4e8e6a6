"""What `fork` means for the command line, the record and the training of a run."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lockstep.config.checks import check_types
from lockstep.config.plan import Plan
from lockstep.runs.events import Origin, RunEvents

log = logging.getLogger(__name__)
_KEY = "fork"


class Fork(RunEvents):
    """`fork=RUN_DIR[@STEP]` begins a new run with the settings of another one, from its checkpoint."""

    def arguments(self, arguments: list[str], values: Mapping[str, str]) -> list[str]:
        if values.get(_KEY, "null") == "null":
            return arguments
        from lockstep.extras.fork.command import command_to_fork

        return command_to_fork(arguments, values[_KEY])

    def check(self, cfg: DictConfig, plan: Plan) -> None:
        check_types(cfg, {_KEY: str | None})

    def origin(self, cfg: DictConfig) -> Origin | None:
        if (wanted := OmegaConf.select(cfg, _KEY)) is None:
            return None
        from lockstep.extras.fork.command import find_checkpoint

        return find_checkpoint(wanted)

    def describe_origin(self, cfg: DictConfig) -> dict[str, Any] | None:
        if cfg.fork is None:
            return None
        from lockstep.extras.fork.command import describe_origin

        return describe_origin(cfg.fork, cfg)

    def built(self, cfg: DictConfig, model: Any, trainer: Any, checkpoint: Path | None) -> None:
        """Raises ConfigError for a checkpoint of another model, or of a later epoch than the last one."""
        if checkpoint is None:
            return
        from lockstep.extras.fork.callback import Forked  # torch
        from lockstep.models.from_checkpoint import read_for
        from lockstep.runs.continuation import check_length, is_own

        if is_own(cfg, checkpoint):
            return
        content = read_for(model, _KEY, checkpoint)
        check_length(cfg, content.get("epoch", 0), checkpoint)
        log.info(f"Forked from {checkpoint}, at step {content.get('global_step', 0)}")
        trainer.callbacks.append(Forked())
