"""What `fork` means for the command line, the record and the training of a run."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lockstep.config.checks import check_types
from lockstep.config.overrides import quote
from lockstep.config.plan import Plan
from lockstep.errors import config_error
from lockstep.launchers.command_line import CommandLine
from lockstep.runs.events import Origin, RunEvents
from lockstep.runs.identity import Identity

log = logging.getLogger(__name__)
_KEY = "fork"
_NOT_ITS_OWN = "a run is resumed from its own checkpoint; accepted is a new run, without resume"


class Fork(RunEvents):
    """`fork=RUN_DIR[@STEP]` begins a new run with the settings of another one, from its checkpoint."""

    settings = ("begin_from",)
    start_keys = (_KEY,)

    def arguments(self, arguments: list[str], values: Mapping[str, str], saved: Identity | None) -> list[str]:
        """A fork that is resumed before its first checkpoint begins once more where it has begun."""
        if values.get("ckpt_path", "null") != "null":
            words = f"a run begins from a checkpoint by fork=; accepted is fork={values['ckpt_path']}"
            raise config_error("ckpt_path", values["ckpt_path"], words)
        if saved is None:
            return self._spelled_out(arguments, values.get(_KEY, "null"))
        checkpoint = (saved.forked_from or {}).get("checkpoint")
        if values.get(_KEY, "null") not in ("null", checkpoint):
            raise config_error(_KEY, values[_KEY], _NOT_ITS_OWN)
        known = [item.replace("ckpt_path=", f"{_KEY}=", 1) for item in arguments]  # as it was called before
        return known if checkpoint is None else [*known, f"{_KEY}={quote(checkpoint)}"]

    def _spelled_out(self, arguments: list[str], wanted: str) -> list[str]:
        if wanted == "null":
            return arguments
        from lockstep.extras.fork.command import command_to_fork

        return command_to_fork(arguments, wanted)

    def check(self, cfg: DictConfig, plan: Plan) -> None:
        check_types(cfg, {_KEY: str | None})
        if cfg.begin_from not in (None, cfg.fork):
            raise config_error("begin_from", cfg.begin_from, f"is set by {_KEY}; accepted is {_KEY}=RUN_DIR")

    def origin(self, cfg: DictConfig) -> Origin | None:
        if (wanted := OmegaConf.select(cfg, "begin_from")) is None:
            return None
        from lockstep.extras.fork.command import find_checkpoint

        return find_checkpoint(wanted)

    def describe_origin(self, cfg: DictConfig, command: CommandLine) -> dict[str, Any] | None:
        if cfg.begin_from is None:
            return None
        from lockstep.extras.fork.command import describe_origin

        return describe_origin(cfg.begin_from, command)

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
