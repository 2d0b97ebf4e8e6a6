"""Sweep directories with made-up measurements, as jobs would have left them."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from lockstep.sweeps.jobs import Job, SweepJobs, directory_name

RECORD = {"parameters": 1_000_000, "precision": "32-true", "device_name": "NVIDIA H100", "host": "node1", "threads": 1}
RECORD |= {"cpu_count": 64, "accelerator": "gpu", "num_nodes": 1, "git_commit": "0123456789abcdef", "git_dirty": False}
RECORD |= {"versions": {"torch": "2.15.0", "lightning": "2.6.6"}, "python": "3.11.7", "optimized_metric": "val/acc"}


def cell(devices: int, lr: float = 0.1, seed: int = 0, status: str = "finished", **more: Any) -> dict[str, Any]:
    """Describe one job by arguments of `_add`; all others stand in its record."""
    return {"devices": devices, "lr": lr, "seed": seed, "status": status, **more}


def sweep(folder: Path, cells: Iterable[dict[str, Any]]) -> Path:
    """Write the directory of a sweep of these jobs."""
    sweep_jobs = SweepJobs(folder, is_running=False)
    for one in cells:
        _add(sweep_jobs, **one)
    return folder


def _add(
    sweep_jobs: SweepJobs,
    devices: int,
    lr: float,
    seed: int,
    status: str,
    batch: int = 32,
    global_batch: int | None = None,
    step: float = 0.01,
    metric: float = 0.9,
    overrides: tuple[str, ...] = (),
    reason: str | None = None,
    rate: str = "optimizer.lr",
    **more: Any,
) -> None:
    """`batch` samples per device, or `global_batch` over all, take `step` seconds; `rate` is the model's key of the rate."""
    number = len(sweep_jobs.jobs)
    key = f"{number:012x}"
    swept = (f"trainer.devices={devices}", f"model.{rate}={lr}", f"seed={seed}", *overrides)
    directory = sweep_jobs.directory / directory_name(swept, key)
    data = {"batch_size": batch, "global_batch_size": global_batch or batch * devices}
    config = {"seed": seed, "trainer": {"devices": devices}, "datamodule": data}
    config["model"] = {"optimizer": {"lr": lr}} if rate == "optimizer.lr" else {rate: lr}
    config |= {"others": dict(item.split("=") for item in overrides)}
    view = Job(directory, key, [*swept], devices, "val/acc", "max")
    sweep_jobs.register([view])
    (directory / ".hydra").mkdir()
    OmegaConf.save(OmegaConf.create(config | {"run_dir": "."}), directory / ".hydra" / "config.yaml")
    if status in ("queued", "running"):
        view.save(status=status)
        return
    view.attempt = 1
    view.save(status=status, reason=reason)
    if status != "finished":
        return
    total = global_batch or batch * devices
    facts = {"world_size": devices, "devices": devices, "global_batch_size": total, "lr": lr, "seed": seed, "wall_time": 36.0}
    facts |= {"samples_per_second": total / step, "train_time": 30.0, "metrics": {"val/acc": metric}}
    (directory / "metrics.json").write_text(json.dumps(RECORD | facts | more))
    progress = {"epoch": 1, "epochs": 1, "metrics": {"val/acc": metric}}
    (directory / "progress.json").write_text(json.dumps(progress))
