"""The largest batch that fits on one device. Lightning's BatchSizeFinder may return a size that it has not tried."""

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.utilities.memory import garbage_collection_cuda, is_oom_error
from omegaconf import DictConfig, OmegaConf

from lockstep.build import build
from lockstep.config.plan import Plan
from lockstep.errors import ConfigError, EpochTooShort, config_error

FIRST = 16  # samples that are tried first
STEPS = 3  # optimizer steps of a training: from the second on, the optimizer has its state
CLOSE = 16  # the result is the largest size to one part in so many
SPARE = 0.1  # part of a GPU's memory: later steps may take more


def largest_that_fits(try_size: Callable[[int], int]) -> int:
    """Double the size until it does not fit or an epoch is one batch, then halve the distance. Return 0 if no sample fits.

    Args:
        try_size: returns how many batches of a size an epoch has, up to STEPS; 0 if one does not fit.
    """
    size, fitting, failing = FIRST, 0, 0
    while not failing or failing - fitting > max(1, fitting // CLOSE):
        batches = try_size(size)
        print(f"datamodule.batch_size={size}: {'fits' if batches else 'does not fit'}", flush=True)
        fitting, failing = (size, failing) if batches else (fitting, size)
        if batches == 1:
            break
        size = (fitting + failing) // 2 if failing else 2 * fitting
    return fitting


def find_batch_size(cfg: DictConfig, plan: Plan, memory: float | None) -> int:
    """Train on one device of the plan with growing batches. `memory` is the limit in GiB; None leaves SPARE of a GPU."""
    if "batch_size" not in (cfg.datamodule or ()):
        raise config_error("datamodule.batch_size", "null", "the data has no such key; add one that sets the samples of a batch")
    limit_memory(plan, memory)

    def try_size(size: int) -> int:
        try:
            return _batches(_shortened(cfg, size, [*plan.device_ids][:1] if plan.device_ids else 1))
        except (EpochTooShort, MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not is_oom_error(error):
                raise
            return 0
        finally:
            garbage_collection_cuda()

    if not (size := largest_that_fits(try_size)):
        raise config_error("datamodule.batch_size", 1, "not even one sample fits; use a smaller model, or more memory")
    return size


def limit_memory(plan: Plan, memory: float | None) -> None:
    if plan.accelerator == "gpu":
        device = plan.device_ids[0] if plan.device_ids else 0
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(1 - SPARE if memory is None else min(1.0, memory * 2**30 / total), device)
    elif memory is None or not (status := Path("/proc/self/status")).is_file():
        raise ConfigError("--memory: a CPU has no limit of its own; give one in GiB, under Linux")
    else:
        now = next(line for line in status.read_text().splitlines() if line.startswith("VmData:"))
        resource.setrlimit(resource.RLIMIT_DATA, (int(now.split()[1]) * 1024 + int(memory * 2**30), -1))


def _shortened(cfg: DictConfig, size: int, devices: int | list[int]) -> DictConfig:
    """Return the config of a few steps and a validation batch, which write nothing outside `cfg.run_dir`."""
    short: Any = cfg.copy()
    short.datamodule.batch_size, short.mirror, short.logger, short.init_from = size, None, {}, None
    short.trainer.devices = devices
    if "global_batch_size" in short.datamodule:
        short.datamodule.global_batch_size = None
    steps = {"max_steps": STEPS, "max_epochs": -1, "limit_train_batches": STEPS * short.trainer.accumulate_grad_batches}
    validation = {"limit_val_batches": int(short.trainer.get("limit_val_batches") != 0)}
    short.trainer.update(steps | validation | {"val_check_interval": 1.0, "check_val_every_n_epoch": 1})
    for key in ("guards", "callbacks.best_checkpoint", "callbacks.early_stopping"):  # they take no memory on the device
        OmegaConf.update(short, key, None, force_add=True)
    return short


def _batches(cfg: DictConfig) -> int:
    datamodule, model, trainer = build(cfg, Plan.from_config(cfg))
    trainer.fit(model, datamodule)
    return int(trainer.num_training_batches)
