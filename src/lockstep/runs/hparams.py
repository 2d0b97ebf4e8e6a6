"""What TensorBoard's hyperparameter table shows of a run."""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lockstep.config.overrides import override_key
from lockstep.launchers.environment import SWEPT_KEYS

_FACTS = ("world_size", "global_batch_size", "lr", "precision", "seed")


def hyperparameters(
    cfg: DictConfig, choices: Mapping[str, Any], overrides: Sequence[str], facts: Mapping[str, Any]
) -> dict[str, Any]:
    """The overridden keys, of groups the option (`choices`), and what follows from them: of the `facts` those that are not
    overridden themselves. The learning rate, which may be scaled, is the one that was stepped with."""
    chosen = {key: choices[key] if key in choices else OmegaConf.select(cfg, key) for key in map(override_key, overrides)}
    values = {
        key: value if isinstance(value, str | int | float) else str(value) for key, value in chosen.items() if value is not None
    }
    said = {key.rpartition(".")[2] for key in values} - {"lr"}
    return values | {name: facts[name] for name in _FACTS if name not in said and facts.get(name) is not None}


def swept(overrides: Sequence[str]) -> list[str]:
    """In a job of a sweep without those that all its jobs have."""
    keys = os.environ.get(SWEPT_KEYS)
    return [override for override in overrides if keys is None or override_key(override) in keys.split()]


def write_session(folder: Path, values: Mapping[str, str | float]) -> None:
    """Into an event file of its own, beside a logger's: a session's start, with its values, and its end.

    No experiment is described: of several TensorBoard takes the first it finds for all runs, and leaves out the columns
    that this one does not name. Without any it makes the columns from the sessions.
    """
    from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]  made at import
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(folder))
    for summary in session(values):
        writer.add_event(Event(wall_time=time.time(), summary=summary))
    writer.close()


def session(values: Mapping[str, str | float]) -> list[Any]:
    """Two protocol buffers. torch writes True as 1, so here it is text."""
    from torch.utils.tensorboard.summary import hparams

    _, start, end = hparams({name: str(v).lower() if isinstance(v, bool) else v for name, v in values.items()}, {})
    return [start, end]
