"""What processes must have in common to compute the same bits."""

import platform
from pathlib import Path

import torch
import torch.distributed as dist


def kinds(device: torch.device) -> list[str]:
    """Returns what the processes of a run compute on, each kind once; a collective."""
    ranks = [_kind(device)]
    if dist.is_initialized():
        ranks *= dist.get_world_size()
        dist.all_gather_object(ranks, ranks[0])
    return sorted(set(ranks))


def _kind(device: torch.device) -> str:
    """Returns what decides which kernels are run."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    return f"{_processor()} with {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())
