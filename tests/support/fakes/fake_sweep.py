"""A sweep's directory as real jobs would have left it, without running any."""

import json
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from lockstep.runs import locks
from lockstep.sweeps.jobs import Job, SweepJobs, directory_name, read_state

CONFIG = {"optimized_metric": "val/acc", "optimized_mode": "max", "run_dir": "."}


def job(folder: Path, number: int, seed: int = 0, lr: float = 0.1) -> Job:
    """`number` stands for the hash of the config."""
    overrides, key = (f"model.optimizer.lr={lr}", f"seed={seed}"), f"{number:012x}"
    directory = folder / directory_name(overrides, key)
    return Job(directory, key, [*overrides], 1, "val/acc", "max")


def leave(one: Job, status: str, metric: float = 0.5, **config: Any) -> None:
    """What a job leaves that ended so; one that is queued has left nothing. `config` is of its model, say."""
    if status == "queued":
        return
    folder = one.directory
    reason = None if status == "finished" else "planted"
    one.attempt = 1
    one.save(status=status, reason=reason)
    files: dict[str, Any] = {
        "progress.json": {"epoch": 1, "epochs": 2, "seconds_per_epoch": 1.0, "metrics": {"val/acc": metric}},
    }
    if status == "finished":
        files["metrics.json"] = {"metrics": {"val/acc": metric}, "optimized_metric": "val/acc", "world_size": 1}
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2))
    values = dict(item.split("=") for item in one.overrides if item.startswith("model."))
    texts = dict.fromkeys(("output.log", "checkpoints/last.ckpt", "tensorboard/events.out"), "of an attempt\n")
    texts[".hydra/config.yaml"] = OmegaConf.to_yaml(OmegaConf.create({"others": values | config} | CONFIG))
    for name, text in texts.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
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


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """By another process, as by a sweep that runs."""
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
