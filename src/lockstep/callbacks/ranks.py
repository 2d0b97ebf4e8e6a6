"""Record the hosts and processes of a run's ranks in status.json, and check that all ranks have the same config."""

import os
import platform
from pathlib import Path

import torch.distributed
from lightning import Callback, LightningModule, Trainer
from omegaconf import DictConfig, OmegaConf

from lockstep.atomic_files import read_json, write_json
from lockstep.config.overrides import flat
from lockstep.errors import ConfigError
from lockstep.plain_lightning.processes import all_ranks

_MAY_DIFFER = ("fresh_processes", "datamodule.num_workers", "datamodule.pin_memory")


class Ranks(Callback):
    """Record host and process of each rank in status.json, and compare the configs that the ranks have composed.

    Args:
        cfg: Config of the run. It is compared without paths and before it is resolved, because ${now:} differs between ranks.

    Raises:
        ConfigError: A rank has another config than rank zero, which is possible under torchrun for example.
    """

    def __init__(self, cfg: DictConfig) -> None:
        shared = flat(OmegaConf.to_container(cfg, resolve=False)).items()  # pyright: ignore[reportArgumentType]
        self._config = {key: str(value) for key, value in shared if not (key.startswith(_MAY_DIFFER) or "/" in str(value))}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        ranks = all_ranks((platform.node(), os.getpid(), self._config))
        path = Path(trainer.default_root_dir) / "status.json"
        status = read_json(path) if stage == "fit" and trainer.is_global_zero else None
        if status is not None and status.get("status") == "running":
            named = [{"rank": rank, "host": host, "pid": pid} for rank, (host, pid, _) in enumerate(ranks)]
            write_json(path, status | {"ranks": named})
        if trainer.world_size > 1:
            torch.distributed.barrier()  # a rank that fails writes the same file
        for rank, (_, _, config) in enumerate(ranks):
            for key in self._config | config:
                first, other = (one.get(key, "absent") for one in (ranks[0][2], config))
                if first != other:
                    raise ConfigError(f"{key}={first}: is {other} in rank {rank}; start all ranks with the same config")
