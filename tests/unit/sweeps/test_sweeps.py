"""Jobs and slots, with small stand-in processes."""

import errno
import os
import random
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_sweep
import pytest
from omegaconf import OmegaConf

from lockstep.errors import ConfigError
from lockstep.sweeps import local
from lockstep.sweeps.jobs import FINISHED, PREEMPTED, RUNNING, Job, JobLaunch, SweepJobs, read_state
from lockstep.sweeps.local import LocalExecutor, Pool, Slots
from lockstep.sweeps.sweep import Runner

RECORD = 'open(sys.argv[1] + "/metrics.json", "w").write(\'{"metrics": {"val/acc": 0.5}, "optimized_metric": "val/acc"}\')'


def job(folder: Path, name: str, code: str) -> Job:
    """A job that runs the code with its directory as its argument."""
    (folder / f"{name}.py").write_text(f"import sys\n{code}\n")
    directory = folder / f"job_{name}"
    launch = JobLaunch((sys.executable, str(folder / f"{name}.py"), str(directory)), (Slots("gpu", 1),))
    return Job(directory, name, [f"number={name}"], 1, "val/acc", "max", launch=launch)


def test_jobs_of_all_widths_are_packed_without_overlap_or_starvation() -> None:
    """The clock is made up: a job begins when another one ends."""
    slots, now = 8, 0.0
    dice, pool = random.Random(slots), Pool(tuple(map(str, range(slots))))
    widths = dice.sample([1] * 8 + [2] * 6 + [4] * 4, 18)
    waiting = [(width, dice.uniform(0.5, 1.0)) for width in widths]
    work, longest = (fold([width * seconds for width, seconds in waiting]) for fold in (sum, max))
    running: list[tuple[float, tuple[str, ...]]] = []
    while waiting or running:
        while (index := pool.choose([width for width, _ in waiting])) is not None:
            width, seconds = waiting.pop(index)
            running.append((now + seconds, pool.take(width)))
            taken = [slot for _, names in running for slot in names]
            assert len(taken) == len({*taken}) <= slots
        now, names = min(running)
        running.remove((now, names))
        pool.give_back(names)
    assert now <= 1.5 * max(work / slots, longest)


def test_a_job_that_can_not_be_started_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For example on a full disk."""
    start = local.start

    def fail(function: Any, arguments: list[str], *more: Any, **named: Any) -> Any:
        if "broken" in arguments[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return start(function, arguments, *more, **named)

    monkeypatch.setattr(local, "start", fail)
    executor, sweep_jobs = LocalExecutor(retries=1), SweepJobs(tmp_path)
    executor.pools["gpu"] = Pool(("0",))
    Runner(sweep_jobs, executor).run(sweep_jobs.register([job(tmp_path, "broken", ""), job(tmp_path, "good", RECORD)]))
    found = SweepJobs(tmp_path).jobs["broken"]
    assert (found.status, found.reason, found.attempt) == ("failed", "could not be started (No space left on device)", 2)
    assert SweepJobs(tmp_path).jobs["good"].status == FINISHED


def test_jobs_of_a_killed_sweep_have_the_states_of_their_directories(tmp_path: Path) -> None:
    jobs = [fake_sweep.job(tmp_path, number) for number in range(3)]
    fake_sweep.sweep(tmp_path, [*zip(jobs, ("finished", "preempted", "preempted"), strict=True)])
    for one in jobs:
        status = (one.directory / "status.json").read_text()
        (one.directory / "status.json").write_text(re.sub('"status": "[a-z]*"', '"status": "running"', status))
    with fake_sweep.held(jobs[2].directory):  # by a command that has resumed it
        states = [(view.status, view.metric) for view in SweepJobs(tmp_path).jobs.values()]
    assert states == [(FINISHED, 0.5), (PREEMPTED, None), (RUNNING, None)]


def test_slots_are_the_visible_gpus_and_jobs_may_share_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "visible_gpus", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert LocalExecutor().gpu_slots() == ("0", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-8932f937")
    assert LocalExecutor().gpu_slots() == ("4", "GPU-8932f937")
    shared, given = LocalExecutor(jobs_per_gpu=2), []
    monkeypatch.setattr(local, "start", lambda *_, environment, **__: given.append(environment))
    for _ in range(3):
        shared.start(job(tmp_path, "one", RECORD))
    assert [one["CUDA_VISIBLE_DEVICES"] for one in given] == ["4", "GPU-8932f937", "4"]
    plan: Any = SimpleNamespace(devices=2, accelerator="gpu")
    with pytest.raises(ConfigError, match=r"^trainer.devices=2: hydra.launcher.jobs_per_gpu is for jobs of one GPU"):
        shared.resources(OmegaConf.create(), plan)


def test_a_job_that_diverged_after_its_best_epoch_has_failed(tmp_path: Path) -> None:
    (tmp_path / "metrics.json").write_text('{"metrics": {"val/acc": 0.9}, "optimized_metric": "val/acc"}')
    assert read_state(tmp_path) == (FINISHED, None, 0.9)
    (tmp_path / "progress.json").write_text('{"metrics": {"train/loss": null, "val/acc": 0.1}}')
    assert read_state(tmp_path) == ("failed", "train/loss not finite", None)
