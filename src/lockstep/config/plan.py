"""Plan of a run: its processes, their devices, and the batch and learning rate that follow."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lockstep.errors import config_error

BATCH, GLOBAL_BATCH = "datamodule.batch_size", "datamodule.global_batch_size"  # of each process, and of all
AUTO = "auto"  # trainer.devices and num_nodes: what there is
# Files of drivers: NVIDIA's, WSL's and AMD's, one of which is there where torch.cuda finds a GPU.
_CUDA_DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
_SAME_SAMPLES = ("tensor_parallel_size", "stages")  # by a strategy: processes that have the same samples


def rate_key(model: Mapping[str, Any]) -> str | None:
    """Return where a model group has its learning rate: in its optimizer, or in an argument of a LightningModule's own."""
    optimizer = model.get("optimizer")
    if isinstance(optimizer, Mapping) and isinstance(optimizer.get("lr"), int | float):
        return "optimizer.lr"
    return next((name for name in ("lr", "learning_rate") if isinstance(model.get(name), int | float)), None)


def visible_gpus() -> int:
    """Return how many GPUs CUDA_VISIBLE_DEVICES leaves, without creating a CUDA context."""
    if not any(Path(file).exists() for file in _CUDA_DRIVERS):
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
    batch_size: int | None  # the largest of a process or virtual worker; None where only the loaders know it
    global_batch_size: int | None
    accumulate_grad_batches: int
    lr: float | None
    strategy: str  # of several processes: the name of its class
    tensor_parallel_size: int  # processes that have the same samples

    @classmethod
    def from_config(cls, cfg: DictConfig, started: tuple[int, int] | None = None, node_gpus: int | None = None) -> "Plan":
        """`started` are the processes of each node, and the nodes, where torchrun or srun has started them: what is auto takes
        these. `node_gpus` are those of each node that the run is planned for, None for this machine. Raises ConfigError where the
        config asks for devices that are not there or batches that do not divide."""
        accelerator, devices, device_ids = _devices(cfg.trainer, started, node_gpus)
        num_nodes = (started[1] if started else 1) if cfg.trainer.num_nodes == AUTO else cfg.trainer.num_nodes
        world_size, accumulate = devices * num_nodes, cfg.trainer.accumulate_grad_batches
        same = _tensor_parallel_size(cfg, world_size)
        workers = OmegaConf.select(cfg, "trainer.strategy.workers")  # of trainer.exact, whose batches these are then
        sizes = _batch_sizes(cfg, workers or world_size // same * accumulate)
        mode = OmegaConf.select(cfg, "model.compile_mode")
        if accelerator == "gpu" and accumulate > 1 and cfg.model.get("compile") and mode in ("reduce-overhead", "max-autotune"):
            why = f"overwrites the gradients to which trainer.accumulate_grad_batches={accumulate} adds (pytorch issue 169545)"
            raise config_error("model.compile_mode", mode, f"{why}; use max-autotune-no-cudagraphs")
        lr, name = _learning_rate(cfg, sizes[1]), str(OmegaConf.select(cfg, "trainer.strategy._target_")).rpartition(".")[2]
        return cls(accelerator, devices, device_ids, num_nodes, world_size, *sizes, accumulate, lr, name, same)

    @property
    def data_parallel_size(self) -> int:
        """Number of processes, or groups of them, that have samples of their own."""
        return self.world_size // self.tensor_parallel_size

    def facts(self) -> dict[str, Any]:
        """Return the plan for the record of the run."""
        return {key: value for key, value in asdict(self).items() if key != "device_ids"}

    def __str__(self) -> str:
        kind = self.accelerator.upper()
        where = f"one process on {'the' if kind == 'CPU' else 'one'} {kind}"
        if self.world_size > 1:
            nodes = f" on {self.num_nodes} nodes" if self.num_nodes > 1 else ""
            same = f", {self.tensor_parallel_size} with the same samples" if self.tensor_parallel_size > 1 else ""
            backend = "NCCL" if self.accelerator == "gpu" else "gloo"
            where = f"{self.world_size} {kind} processes{nodes}{same}, {self.strategy} over {backend}"
        rate = "" if self.lr is None else f", learning rate {self.lr:g}"
        if self.batch_size is None:
            return f"{where}; batches as the loaders have them{rate}"
        if self.global_batch_size is None:
            return f"{where}; batches of {self.batch_size}"
        is_even = self.batch_size * self.data_parallel_size * self.accumulate_grad_batches <= self.global_batch_size
        accumulated = f", {self.accumulate_grad_batches} accumulated" if self.accumulate_grad_batches > 1 else ""
        owner = "virtual worker" if self.strategy == "Exact" else "process"
        batches = f"{'' if is_even else 'up to '}{self.batch_size} per {owner}{accumulated}"
        return f"{where}; global batch {self.global_batch_size} ({batches}){rate}"


def _devices(
    trainer: DictConfig, started: tuple[int, int] | None, node_gpus: int | None
) -> tuple[str, int, tuple[int, ...] | None]:
    """Return the accelerator, the number of its devices on a node, and their ids where the config lists them."""
    gpus = 0
    if trainer.accelerator in ("auto", "gpu", "cuda"):
        gpus = visible_gpus() if node_gpus is None else node_gpus
    where = "this machine shows" if node_gpus is None else "a node has"
    if trainer.accelerator in ("gpu", "cuda") and gpus == 0:
        raise config_error("trainer.accelerator", trainer.accelerator, f"{where} no GPU; use cpu or auto")
    accelerator = trainer.accelerator if trainer.accelerator in ("cpu", "mps") else ("gpu" if gpus else "cpu")
    wanted = trainer.devices
    if OmegaConf.is_list(wanted):
        if not wanted or max(wanted) >= gpus:
            raise config_error("trainer.devices", wanted, f"{where} {gpus} GPU(s), numbered from 0")
        return accelerator, len(wanted), tuple(wanted)
    count = wanted if wanted not in (AUTO, -1) else (started[0] if started else max(gpus, 1))
    if count < 1:
        raise config_error("trainer.devices", count, "is less than 1; use at least 1, auto, or a list of GPU ids")
    most = {"gpu": gpus, "mps": 1}.get(accelerator, count)
    if count > most:
        raise config_error("trainer.devices", count, f"{where} {most} {accelerator.upper()}(s); use 1 to {most}, or trainer=cpu")
    return accelerator, count, None


def _tensor_parallel_size(cfg: DictConfig, world_size: int) -> int:
    """Return the number of processes that have the same samples; 1 on one process, on which nothing is divided."""
    sizes = {key: OmegaConf.select(cfg, f"trainer.strategy.{key}") for key in _SAME_SAMPLES} if world_size > 1 else {}
    key, size = next(((key, size) for key, size in sizes.items() if size), ("", 1))
    if world_size % size:
        accepted = f"does not divide the {world_size} processes; use a divisor of their number"
        raise config_error(f"trainer.strategy.{key}", size, accepted)
    return size


def _batch_sizes(cfg: DictConfig, parts: int) -> tuple[int | None, int | None]:
    """Return the largest batch of a process, and the global one. A batch_size of each process precedes the global default. Where
    the number of processes is `auto`, such as of the nodes that torchrun has left, some have a sample less than others."""
    wanted, own = (OmegaConf.select(cfg, key) for key in (GLOBAL_BATCH, BATCH))
    if own is not None or wanted is None:
        return own, None if own is None else own * parts
    is_found = any(count in (AUTO, -1) for count in (cfg.trainer.devices, cfg.trainer.num_nodes))
    if wanted % (cfg.trainer.accumulate_grad_batches if is_found and wanted >= parts else parts):
        why = f"is not divisible by {parts}, the number of processes * trainer.accumulate_grad_batches"
        raise config_error(GLOBAL_BATCH, wanted, f"{why}; use a multiple of {parts}, or {BATCH} for each process")
    return math.ceil(wanted / parts), wanted


def _learning_rate(cfg: DictConfig, global_batch_size: int | None) -> float | None:
    """Return the rate, scaled for the batch: linear by Goyal et al. 2017 (arXiv:1706.02677), sqrt by Krizhevsky 2014."""
    key = rate_key(cfg.model)
    lr = None if key is None else OmegaConf.select(cfg.model, key)
    if lr is None or cfg.lr_scaling == "none":
        return lr
    if global_batch_size is None:
        raise config_error("lr_scaling", cfg.lr_scaling, "needs datamodule.batch_size, the samples per process; use none")
    ratio = global_batch_size / cfg.base_batch_size
    return lr * (ratio if cfg.lr_scaling == "linear" else ratio**0.5)
