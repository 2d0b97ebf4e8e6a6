"""Where the processes of a run are, and that they run the same."""

import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch.distributed
from lightning import Callback, LightningModule, Trainer
from omegaconf import DictConfig, OmegaConf

from lockstep.atomic_files import read_json, write_json
from lockstep.config.overrides import flat
from lockstep.errors import ConfigError

# A node may load data in a way of its own.
_OF_HOSTS = (
    "events.",
    "fresh_processes",
    *(f"datamodule.{name}" for name in ("num_workers", "pin_memory", "persistent_workers")),
)


class Ranks(Callback):
    """Has status.json say on which host each rank is and which process it is, whoever has started them: to look into one that
    hangs, or to end what a lost parent has left. Raises ConfigError where ranks that compose for themselves, under torchrun say,
    have other configs: each would train by its own. Paths may be other ones.

    cfg: of the run; it is compared before it is resolved: ${now:} is another one in each."""

    def __init__(self, cfg: DictConfig) -> None:
        config: Any = OmegaConf.to_container(cfg, resolve=False)
        shared = {key: value for key, value in flat(config).items() if not key.startswith(_OF_HOSTS)}
        self._config = {key: str(value) for key, value in shared.items() if not (isinstance(value, str) and "/" in value)}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        ranks = [(platform.node(), os.getpid())] * trainer.world_size
        refusals: list[str | None] = [None] * trainer.world_size
        first = [self._config]
        if trainer.world_size > 1:
            torch.distributed.broadcast_object_list(first)
            torch.distributed.all_gather_object(ranks, ranks[0])
        if stage == "fit" and trainer.is_global_zero:  # before the others go on: one that fails writes the same file
            write_ranks(Path(trainer.default_root_dir), ranks)
        if trainer.world_size > 1:
            torch.distributed.all_gather_object(refusals, self._difference(trainer.global_rank, first[0]))
        if (line := next(filter(None, refusals), None)) is not None:
            raise ConfigError(line)

    def _difference(self, rank: int, first: dict[str, str]) -> str | None:
        """In one line, in which key this rank's config differs from that of rank 0."""
        keys = [key for key in first | self._config if first.get(key, "absent") != self._config.get(key, "absent")]
        if not keys:
            return None
        key, *others = keys
        which = f"{self._config.get(key, 'absent')} in rank {rank}" + (f", and {len(others)} more" if others else "")
        return f"{key}={first.get(key, 'absent')}: {which}; accepted is one config in all ranks"


def write_ranks(run_dir: Path, ranks: Sequence[tuple[str, int]]) -> None:
    """Adds the host and the process of each rank to status.json, for as long as it says that the run is running."""
    content = read_json(run_dir / "status.json") or {}
    if content.get("status") == "running":
        named = [{"rank": number, "host": host, "pid": pid} for number, (host, pid) in enumerate(ranks)]
        write_json(run_dir / "status.json", content | {"ranks": named})
