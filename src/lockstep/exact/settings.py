"""Settings of a run with trainer.exact=V, and checks of those that do not go together with it."""

import json
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lockstep.config.plan import BATCH, GLOBAL_BATCH
from lockstep.errors import config_error


def apply_exact(config: DictConfig, workers: Any) -> None:
    """Put the strategy of virtual workers in the place of DDP, and pin what another number of processes would change.

    Raises ConfigError for what does not go together with so many workers.
    """
    for key, value in _settings(config, workers).items():
        OmegaConf.update(config, key, value, merge=False)


def _settings(config: DictConfig, workers: Any) -> dict[str, Any]:
    _check(config, workers)
    unchanged = {name: config.trainer.strategy[name] for name in ("timeout", "process_group_backend")}
    strategy: dict[str, Any] = {"_target_": f"{__package__}.strategy.Exact", "workers": workers}
    return {
        "trainer.strategy": strategy | unchanged,
        "trainer.sync_batchnorm": False,  # each worker has its own statistics
        "trainer.deterministic": True,
        "trainer.benchmark": False,  # true chooses kernels by the time that they take
        "guards.exact": {"_target_": "lockstep.exact.metrics.WorkerMetrics", "workers": workers},
        "guards.plain_lightning._target_": f"{__package__}.plain.PlainWorkersGuard",
        "guards.equivalence": None,  # it looks for causes that keep DDP from giving the result of one process
        **({GLOBAL_BATCH: _global_batch_size(config, workers), BATCH: None} if _has_batch(config) else {}),
    }


def _has_batch(config: DictConfig) -> bool:
    return "standardize" in (config.datamodule or ())  # a key that every lockstep.datamodules.DataModule has


def _global_batch_size(config: DictConfig, workers: int) -> int:
    own = config.datamodule.batch_size
    return config.datamodule.global_batch_size if own is None else own * workers


def _check(config: DictConfig, workers: Any) -> None:
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1 or workers & (workers - 1):
        raise config_error("trainer.exact", workers, "use a power of two, which is the number of virtual workers; or null")
    devices, nodes = (OmegaConf.select(config, f"trainer.{name}") for name in ("devices", "num_nodes"))
    if isinstance(devices, int) and isinstance(nodes, int) and (workers % max(1, devices * nodes)):
        why = f"trainer.exact={workers} is not divided by {devices * nodes} process(es)"
        raise config_error("trainer.devices", devices, f"{why}; use a divisor of {workers}")
    accepted = {
        "trainer.strategy._target_": ("lockstep.strategies.ddp.DDP",),
        "trainer.accumulate_grad_batches": (1,),  # the virtual workers of a process are what it accumulates
        "model.compile": (False, None),  # a graph may depend on the shapes that the process has met before
    }
    for key, values in accepted.items():
        if (value := OmegaConf.select(config, key)) not in values:
            only = json.dumps(values[0]).strip('"')
            raise config_error(key, value, f"trainer.exact={workers} is given; use {only} with it")
    batch_size, total = (OmegaConf.select(config, key) for key in (BATCH, GLOBAL_BATCH))
    if batch_size is None and isinstance(total, int) and total % workers:
        raise config_error(GLOBAL_BATCH, total, f"use a multiple of trainer.exact={workers}")
