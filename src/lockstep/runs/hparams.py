"""What loggers show of a run that has finished: its hyperparameters, in TensorBoard's table say, and its final metrics."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import TensorBoardLogger
from omegaconf import DictConfig, OmegaConf

from lockstep.config.overrides import override_key
from lockstep.launchers.environment import SWEPT_KEYS
from lockstep.runs.results import best_checkpoint
from lockstep.runs.saved import read_choices, read_overrides
from lockstep.trainer.loggers import OPTIMIZED

_FACTS = ("world_size", "global_batch_size", "lr")  # TensorBoard has room for three, and the metric, in 1280 pixels


def log_result(cfg: DictConfig, trainer: Any, facts: Mapping[str, Any], metrics: Mapping[str, float]) -> None:
    """Log one record per run: the overridden keys and what follows from them, with the final metrics. In TensorBoard the last
    point of Optimized/NAME is the optimized metric of the best checkpoint, where there is one.

    A logger with a method `log_result` gets both by it, and the last step; the run ends with that.
    """
    run_dir = Path(cfg.run_dir)
    values = hyperparameters(cfg, read_choices(run_dir), swept(read_overrides(run_dir)), facts)
    for logger in trainer.loggers:
        if (log_by_itself := getattr(logger, "log_result", None)) is not None:
            log_by_itself(values, metrics, trainer.global_step)
            continue
        if isinstance(logger, TensorBoardLogger):
            if best_checkpoint(trainer) is not None and (name := cfg.optimized_metric) in metrics:
                logger.log_metrics({OPTIMIZED + name: metrics[name]}, step=trainer.global_step)
            write_session(Path(logger.log_dir), values)
        else:
            logger.log_hyperparams(values)
        logger.finalize("success")


def hyperparameters(
    cfg: DictConfig, choices: Mapping[str, Any], overrides: Sequence[str], facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the overridden keys, of groups the option (`choices`), and those of the `facts` that do not follow from them: in a
    job of a sweep none but the rate that was stepped with, if it was scaled."""
    chosen = {key: choices[key] if key in choices else OmegaConf.select(cfg, key) for key in map(override_key, overrides)}
    values = {
        key: value if isinstance(value, str | int | float) else str(value) for key, value in chosen.items() if value is not None
    }
    is_scaled = cfg.lr_scaling != "none"
    doubles = {key.rpartition(".")[2] for key in values} - ({"lr"} if is_scaled else set())
    doubles |= {"world_size"} if chosen.get("trainer.devices") == facts.get("world_size") else set()
    names = _FACTS if SWEPT_KEYS not in os.environ else ("lr",) if is_scaled else ()
    return values | {name: facts[name] for name in names if name not in doubles and facts.get(name) is not None}


def swept(overrides: Sequence[str]) -> list[str]:
    """Returns the overrides; in a job of a sweep without those that all its jobs have."""
    keys = os.environ.get(SWEPT_KEYS)
    return [override for override in overrides if keys is None or override_key(override) in keys.split()]


def write_session(folder: Path, values: Mapping[str, str | float]) -> None:
    """Writes the values, into an event file of its own beside a logger's, as those of a session that has ended. torch writes True
    as 1, so here it is text. No experiment is described: of several TensorBoard takes the first it finds for all runs, and leaves
    out the columns that this one does not name. Without any it makes the columns from the sessions."""
    from torch.utils.tensorboard import SummaryWriter
    from torch.utils.tensorboard.summary import hparams

    _, *session = hparams({name: str(v).lower() if isinstance(v, bool) else v for name, v in values.items()}, {})
    with SummaryWriter(str(folder)) as writer:
        for summary in session:
            writer.file_writer.add_summary(summary)  # pyright: ignore[reportOptionalMemberAccess]
