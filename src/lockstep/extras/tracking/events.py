"""Gives loggers what a run comes to, when it has finished."""

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig

from lockstep.config.targets import buildable
from lockstep.launchers.command_line import CommandLine
from lockstep.runs.events import RunEvents


@buildable
class LogHyperparameters(RunEvents):
    """`events.hyperparameters=null` leaves loggers with what is logged in training."""

    def finished(
        self, cfg: DictConfig, command: CommandLine, trainer: Any, facts: Mapping[str, Any], metrics: Mapping[str, float]
    ) -> None:
        from lockstep.extras.tracking.hparams import log_hparams  # torch

        log_hparams(trainer, cfg, command, facts, metrics)
