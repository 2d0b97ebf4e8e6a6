"""A sweep's directory as real jobs would have left it, without running any."""

import os
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from omegaconf import OmegaConf

from lockstep.atomic_files import write_json
from lockstep.runs import locks
from lockstep.sweeps.jobs import Job, SweepJobs, directory_name, read_state

CONFIG = {"optimized_metric": "val/acc", "optimized_mode": "max", "run_dir": "."}


def job(folder: Path, number: int, seed: int = 0, lr: float = 0.1) -> Job:
    """`number` stands for the hash of the config."""
    overrides, key = (f"model.optimizer.lr={lr}", f"seed={seed}"), f"{number:012x}"
    directory = folder / directory_name(overrides, key)
    return Job(directory, key, [*overrides], 1, "val/acc", "max")


def leave(
    one: Job, status: str, metric: float = 0.5, reason: str = "planted", record: dict[str, Any] | None = None, **config: Any
) -> None:
    """Write what a job leaves that ended so: its config with `config` in it, its metrics.json with `record`."""
    folder = one.directory
    values = {"others": dict(item.split("=") for item in one.overrides if item.startswith("model."))} | config
    (folder / ".hydra").mkdir(exist_ok=True)
    OmegaConf.save(OmegaConf.create(CONFIG | values), folder / ".hydra" / "config.yaml")
    if status in ("queued", "running"):
        one.save(status=status)
        return
    one.attempt = 1
    one.save(status=status, reason=None if status == "finished" else reason)
    for name in ("output.log", "checkpoints/last.ckpt", "tensorboard/events.out"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("of an attempt\n")
    metrics = {"metrics": {"val/acc": metric}}
    write_json(folder / "progress.json", {"epoch": 1, "epochs": 2, "seconds_per_epoch": 1.0} | metrics)
    if status == "finished":
        write_json(folder / "metrics.json", {"optimized_metric": "val/acc", "world_size": 1} | metrics | (record or {}))
    one.status, one.reason, one.metric = read_state(folder)


def update(sweep_jobs: SweepJobs, key: str, **changes: Any) -> None:
    """How a job stands is changed, in memory and in its status.json."""
    for name, value in changes.items():
        setattr(sweep_jobs.jobs[key], name, value)
    sweep_jobs.jobs[key].save_end()


def sweep(folder: Path, jobs: Sequence[tuple[Job, str]]) -> SweepJobs:
    """The jobs and how each stands."""
    sweep_jobs = SweepJobs(folder, is_running=True)
    sweep_jobs.register([one for one, _ in jobs])
    for one, status in jobs:
        leave(one, status)
    for name in ("lock", "multirun.yaml", "results.csv"):
        (folder / name).write_text("of an earlier call\n")
    return sweep_jobs


RECORD = {"parameters": 1_000_000, "precision": "32-true", "device_name": "NVIDIA H100", "host": "node1", "threads": 1}
RECORD |= {"cpu_count": 64, "accelerator": "gpu", "num_nodes": 1, "git_commit": "0123456789abcdef", "git_dirty": False}
RECORD |= {"versions": {"torch": "2.15.0", "lightning": "2.6.6"}, "python": "3.11.7", "wall_time": 36.0, "train_time": 30.0}


MEASURED = {"batch": 32, "global_batch": None, "step": 0.01, "metric": 0.9, "overrides": (), "reason": "", "rate": "optimizer.lr"}


def cell(devices: int, lr: float = 0.1, seed: int = 0, status: str = "finished", **more: Any) -> dict[str, Any]:
    """Describe a measured job: `batch` samples per device, or `global_batch` over all, take `step` seconds, and `rate` is the
    model's key of the rate. What MEASURED has not stands in the job's record.
    """
    return MEASURED | {"devices": devices, "lr": lr, "seed": seed, "status": status, **more}


def measured(folder: Path, cells: Iterable[dict[str, Any]]) -> Path:
    """Write the directory of a sweep of these jobs."""
    sweep_jobs = SweepJobs(folder, is_running=False)
    for one in cells:
        _measure(sweep_jobs, SimpleNamespace(**one), {name: value for name, value in one.items() if name not in MEASURED})
    return folder


def _measure(sweep_jobs: SweepJobs, one: Any, facts: dict[str, Any]) -> None:
    total = one.global_batch or one.batch * one.devices
    others = dict(override.split("=") for override in one.overrides)
    config: Any = OmegaConf.create({"seed": one.seed, "trainer": {"devices": one.devices}, "others": others})
    OmegaConf.update(config, "datamodule", {"batch_size": one.batch, "global_batch_size": total})
    OmegaConf.update(config, f"model.{one.rate}", one.lr)
    swept = (f"trainer.devices={one.devices}", f"model.{one.rate}={one.lr}", f"seed={one.seed}", *one.overrides)
    key = f"{len(sweep_jobs.jobs):012x}"
    job = Job(sweep_jobs.directory / directory_name(swept, key), key, [*swept], one.devices, "val/acc", "max")
    sweep_jobs.register([job])
    speed = {"world_size": one.devices, "global_batch_size": total, "samples_per_second": total / one.step}
    leave(job, one.status, one.metric, one.reason, RECORD | speed | facts, **config)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold the folder's lock in another process, as a running sweep does."""
    reader, writer = os.pipe()
    if (holder := os.fork()) == 0:
        locks.Lock(folder, "hydra.sweep.dir")
        os.write(writer, b"1")
        time.sleep(60)
        os._exit(0)
    assert os.read(reader, 1)
    try:
        yield
    finally:
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)
