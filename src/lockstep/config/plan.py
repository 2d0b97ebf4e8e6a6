"""Plan of a run: its processes, their devices, and the batch and learning rate that follow."""

import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lockstep.errors import config_error
from lockstep.imports import CUDA_DRIVERS

_OF_OWN_OPTIONS = {"datamodule": "standardize", "model": "param_groups"}  # a key of what the options of this package extend
BATCH, GLOBAL_BATCH = "datamodule.batch_size", "datamodule.global_batch_size"  # of each process, and of all
AUTO = "auto"  # trainer.devices and num_nodes: what there is
_SAME_SAMPLES = ("tensor_parallel_size", "stages")  # by a strategy: processes that have the same samples


def rate_key(model: Mapping[str, Any]) -> str | None:
    """Returns where a model group has its learning rate: in its optimizer, or in an argument of a LightningModule's own."""
    optimizer = model.get("optimizer")
    if isinstance(optimizer, Mapping) and isinstance(optimizer.get("lr"), int | float):
        return "optimizer.lr"
    return next((name for name in ("lr", "learning_rate") if isinstance(model.get(name), int | float)), None)


def is_plain(cfg: DictConfig, group: str) -> bool:
    """True if the group's keys are those of a class that knows nothing of this package."""
    return _OF_OWN_OPTIONS[group] not in (OmegaConf.select(cfg, group) or ())


def visible_gpus() -> int:
    """Returns how many GPUs CUDA_VISIBLE_DEVICES leaves, without creating a CUDA context."""
    if not any(Path(file).exists() for file in CUDA_DRIVERS):
        return 0
    import torch

    return torch.cuda.device_count()


@dataclass(frozen=True)
class Plan:
    """Processes, devices, batch and rate of a composed config. Batch sizes are in samples, the rate is the effective one."""

    accelerator: str
    devices: int
    device_ids: tuple[int, ...] | None
    num_nodes: int
    world_size: int
    batch_size: int | None  # the largest of a process; None where only the loaders of a plain Lightning module know it
    global_batch_size: int | None
    accumulate_grad_batches: int
    lr: float | None
    strategy: str = "DDP"  # of several processes: the name of its class
    tensor_parallel_size: int = 1  # processes that have the same samples

    @classmethod
    def from_config(cls, cfg: DictConfig, started: tuple[int, int] | None = None, node_gpus: int | None = None) -> "Plan":
        """`started` are the processes of each node, and the nodes, where torchrun or srun has started them: what is auto takes
        these. `node_gpus` are those of each node that the run is planned for, None for this machine. Raises ConfigError where the
        config asks for devices that are not there or batches that do not divide."""
        accelerator, devices, device_ids = _devices(cfg.trainer, started, node_gpus)
        num_nodes = (started[1] if started else 1) if cfg.trainer.num_nodes == AUTO else cfg.trainer.num_nodes
        world_size = devices * num_nodes
        if node_gpus is None:
            check_cores(cfg, devices if accelerator == "cpu" else 0, visible_cores(), "this machine")
        tensor_parallel_size = _tensor_parallel_size(cfg, world_size)
        accumulate = cfg.trainer.accumulate_grad_batches
        batch_size, global_batch_size = _batch_sizes(cfg, world_size // tensor_parallel_size, accumulate)
        _check_together(cfg, accelerator, world_size)
        return cls(
            accelerator=accelerator,
            devices=devices,
            device_ids=device_ids,
            num_nodes=num_nodes,
            world_size=world_size,
            batch_size=batch_size,
            global_batch_size=global_batch_size,
            accumulate_grad_batches=accumulate,
            lr=_learning_rate(cfg, global_batch_size),
            strategy=str(OmegaConf.select(cfg, "trainer.strategy._target_")).rpartition(".")[2],
            tensor_parallel_size=tensor_parallel_size,
        )

    @property
    def data_parallel_size(self) -> int:
        """Returns how many processes, or groups of them, have samples of their own."""
        return self.world_size // self.tensor_parallel_size

    def for_evaluation(self) -> "Plan":
        """Return the plan without what only a training has."""
        return replace(self, global_batch_size=None, lr=None)

    def facts(self) -> dict[str, Any]:
        """Returns the plan for the record of the run."""
        return {key: value for key, value in asdict(self).items() if key != "device_ids"}

    def __str__(self) -> str:
        kind = {"cpu": "CPU", "gpu": "GPU", "mps": "MPS"}[self.accelerator]
        if self.world_size == 1:
            where = f"one process on {'the ' if kind != 'GPU' else 'one '}{kind}"
        else:
            backend = "NCCL" if self.accelerator == "gpu" else "gloo"
            nodes = f" on {self.num_nodes} nodes" if self.num_nodes > 1 else ""
            same = f", {self.tensor_parallel_size} with the same samples" if self.tensor_parallel_size > 1 else ""
            where = f"{self.world_size} {kind} processes{nodes}{same}, {self.strategy} over {backend}"
        rate = "" if self.lr is None else f", learning rate {self.lr:g}"
        if self.batch_size is None:
            return f"{where}; batches as the loaders have them{rate}"
        if self.global_batch_size is None:
            return f"{where}; batches of {self.batch_size}"
        is_even = self.batch_size * self.data_parallel_size * self.accumulate_grad_batches == self.global_batch_size
        parts = f"{'' if is_even else 'up to '}{self.batch_size} per process"
        if self.accumulate_grad_batches > 1:
            parts += f", {self.accumulate_grad_batches} accumulated"
        return f"{where}; global batch {self.global_batch_size} ({parts}){rate}"


def cores() -> set[int]:
    """Returns the cores that this process may use."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def visible_cores() -> int:
    return len(cores())


def check_cores(cfg: DictConfig, devices: int, number: int, whose: str) -> None:
    """Raises ConfigError for more devices that are CPUs, or more data workers, than so many cores are taken to be for."""
    most = cfg.max_processes_per_core * number
    workers = OmegaConf.select(cfg, "datamodule.num_workers") or 0
    for key, processes in (("datamodule.num_workers", workers), ("trainer.devices", devices)):
        if processes > most:
            accepted = f"{whose} has {number} core(s); use up to {most}, or more with max_processes_per_core"
            raise config_error(key, processes, accepted)


def _devices(
    trainer: DictConfig, started: tuple[int, int] | None, node_gpus: int | None
) -> tuple[str, int, tuple[int, ...] | None]:
    gpus = 0
    if trainer.accelerator in ("auto", "gpu", "cuda"):
        gpus = visible_gpus() if node_gpus is None else node_gpus
    where = "this machine shows" if node_gpus is None else "a node has"
    if trainer.accelerator in ("gpu", "cuda") and gpus == 0:
        raise config_error("trainer.accelerator", trainer.accelerator, f"{where} no GPU; use cpu or auto")
    accelerator = trainer.accelerator if trainer.accelerator in ("cpu", "mps") else ("gpu" if gpus else "cpu")
    wanted: Any = trainer.devices
    ids: Any = wanted if OmegaConf.is_list(wanted) else None
    is_wrong = wanted != -1 and wanted < 1 if isinstance(wanted, int) else ids is not None and not (ids and min(ids) >= 0)
    if is_wrong or (ids and len(set(ids)) < len(ids)):
        raise config_error("trainer.devices", wanted, "is not a number of devices; use at least 1, auto, or a list of GPU ids")
    if ids is not None:
        if accelerator != "gpu":
            raise config_error("trainer.devices", wanted, "a list names GPUs, and this run has none; use a number")
        if max(ids) >= gpus:
            raise config_error("trainer.devices", wanted, f"{where} {gpus} GPU(s), numbered from 0")
        return accelerator, len(ids), tuple(ids)
    count = wanted if wanted not in (AUTO, -1) else (started[0] if started else max(gpus, 1))
    if accelerator == "gpu" and count > gpus:
        raise config_error("trainer.devices", count, f"{where} {gpus} GPU(s); use 1 to {gpus}, or trainer=cpu")
    if accelerator == "mps" and count > 1:
        raise config_error("trainer.devices", count, "MPS is one device; use 1, or trainer=cpu")
    return accelerator, count, None


def _check_together(cfg: DictConfig, accelerator: str, world_size: int) -> None:
    """Raise ConfigError for what torch would compute otherwise than it was asked to."""
    accumulated = f"trainer.accumulate_grad_batches={cfg.trainer.accumulate_grad_batches}"
    accumulates = cfg.trainer.accumulate_grad_batches > 1
    strategy, model = cfg.trainer.strategy, cfg.model
    if world_size > 1 and accumulates and strategy.get("static_graph"):
        why = f"DDP then exchanges gradients in every backward pass, and {accumulated} leaves some out; use false"
        raise config_error("trainer.strategy.static_graph", "true", why)
    if world_size > 1 and (search := OmegaConf.select(model, "optimizer.line_search_fn")) is not None:
        why = "each process would ask for the loss a number of times of its own; use trainer.devices=1, or null"
        raise config_error("model.optimizer.line_search_fn", search, why)
    mode = model.get("compile_mode")
    if accelerator == "gpu" and accumulates and model.get("compile") and mode in ("reduce-overhead", "max-autotune"):
        why = f"writes over the gradients to which {accumulated} adds (pytorch issue 169545); use max-autotune-no-cudagraphs"
        raise config_error("model.compile_mode", mode, why)


def _tensor_parallel_size(cfg: DictConfig, world_size: int) -> int:
    """Returns 1 for one process, on which nothing is divided."""
    sizes = [(key, OmegaConf.select(cfg, f"trainer.strategy.{key}")) for key in _SAME_SAMPLES]
    key, size = next((pair for pair in sizes if pair[1]), ("", 1))
    if world_size == 1:
        return 1
    if world_size % size:
        accepted = f"does not divide the {world_size} processes; use a divisor of their number"
        raise config_error(f"trainer.strategy.{key}", size, accepted)
    return size


def _batch_sizes(cfg: DictConfig, shares: int, accumulate: int) -> tuple[int | None, int | None]:
    """Returns the largest batch of a process, and the global one. A batch_size of each process, where it is given, comes before
    the global one that data has by default.

    Shares are equal where a number of processes is asked for. With `auto` their number is what there is, as the nodes that
    torchrun has left: some processes then have a sample less than others."""
    wanted, own = (OmegaConf.select(cfg, key) for key in (GLOBAL_BATCH, BATCH))
    parts = shares * accumulate
    if own is not None or wanted is None:
        return own, None if own is None else own * parts
    is_found = any(count in (AUTO, -1) for count in (cfg.trainer.devices, cfg.trainer.num_nodes))
    if wanted % (accumulate if is_found and wanted >= parts else parts):
        why = f"does not divide by world size * trainer.accumulate_grad_batches = {parts}"
        raise config_error(GLOBAL_BATCH, wanted, f"{why}; use a multiple of {parts}, or {BATCH} for each process")
    return math.ceil(wanted / parts), wanted


def _learning_rate(cfg: DictConfig, global_batch_size: int | None) -> float | None:
    """Returns the rate, scaled for the batch.

    Linear: Goyal et al. 2017, arXiv:1706.02677. Square root: Krizhevsky 2014, arXiv:1404.5997."""
    key = rate_key(cfg.model)
    if key is None:
        return None
    lr = OmegaConf.select(cfg.model, key)
    if cfg.lr_scaling == "none":
        return lr
    if global_batch_size is None:
        raise config_error("lr_scaling", cfg.lr_scaling, "needs datamodule.batch_size, the samples per process; use none")
    ratio = global_batch_size / cfg.base_batch_size
    return lr * {"linear": ratio, "sqrt": ratio**0.5}[cfg.lr_scaling]
