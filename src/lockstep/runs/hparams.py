"""What TensorBoard's hyperparameter table shows of a run."""

import os
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
    known = {key.rpartition(".")[2] for key in values} - {"lr"}
    return values | {name: facts[name] for name in _FACTS if name not in known and facts.get(name) is not None}


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
