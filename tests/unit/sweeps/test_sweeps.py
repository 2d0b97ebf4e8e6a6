"""Jobs and slots, without starting anything but small stand-in processes."""

import errno
import json
import os
import random
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_sweep
import pytest
from omegaconf import OmegaConf
from saved_run import CONFIG, save_run

from lockstep.errors import ConfigError
from lockstep.runs.saved import read_run_id
from lockstep.sweeps.jobs import FINISHED, INTERRUPTED, RUNNING, Exit, Job, computed_config, identity, state_from_record
from lockstep.sweeps.local import LocalExecutor, Pool
from lockstep.sweeps.runner import Runner
from lockstep.sweeps.settings import LocalSettings, Settings
from lockstep.sweeps.sweep_jobs import SweepJobs
from lockstep.sweeps.table import look_at, write_results

# a job that writes its record after `seconds`
PROGRAM = """
import json, sys, time
time.sleep(float(sys.argv[2]))
json.dump({"metrics": {"val/acc": float(sys.argv[3])}, "optimized_metric": "val/acc"}, open(sys.argv[1] + "/metrics.json", "w"))
"""
# a job that is preempted when it has saved, and fails afterwards
PREEMPTED = """
import os, sys
os.path.isdir(sys.argv[1] + "/attempts") and sys.exit(3)
os.mkdir(sys.argv[1] + "/checkpoints")
open(sys.argv[1] + "/checkpoints/last.ckpt", "w")
sys.exit(75)
"""
# a job that ends when another runs beside it
BESIDE = """
import json, os, pathlib, sys, time
place = pathlib.Path(sys.argv[1])
(place / "gpu").write_text(os.environ["CUDA_VISIBLE_DEVICES"])
while len([*place.parent.glob("*/gpu")]) < 2:
    time.sleep(0.05)
json.dump({"metrics": {"val/acc": 1.0}, "optimized_metric": "val/acc"}, open(place / "metrics.json", "w"))
"""


def job(number: int, width: int, folder: Path, seconds: float = 0.0, metric: float = 0.5, pool: str = "gpu") -> Job:
    directory = folder / f"job_key{number}"
    command = (sys.executable, "-S", "-c", PROGRAM, str(directory), str(seconds), str(metric))
    return Job(f"key{number}", (f"number={number}",), directory, pool, width, width, "val/acc", "max", command)


def broken_job(folder: Path) -> Job:
    command = (sys.executable, "-S", "-c", "raise SystemExit(3)")
    return Job("broken", ("number=9",), folder / "broken", "gpu", 1, 1, "val/acc", "max", command)


def run(jobs: list[Job], slots: int | LocalExecutor, folder: Path, **settings: Any) -> SweepJobs:
    sweep_jobs = SweepJobs(folder)
    sweep_jobs.register(jobs)
    if isinstance(slots, int):
        slots = LocalExecutor({"gpu": Pool(tuple(map(str, range(slots)))), "cpu": Pool(("0",))}, fake_sweep.run_code)
    Runner(sweep_jobs, slots, Settings(**settings)).run(jobs)
    return SweepJobs(folder)


def test_jobs_of_all_widths_are_packed_without_overlap_or_starvation() -> None:
    """By a clock that is made up: a job begins when another one ends."""
    slots, now = 8, 0.0
    dice, pool = random.Random(slots), Pool(tuple(map(str, range(slots))))
    widths = dice.sample([1] * 8 + [2] * 6 + [4] * 4, 18)
    waiting: Any = [SimpleNamespace(width=width, seconds=dice.uniform(0.5, 1.0)) for width in widths]
    work, longest = (fold([job.seconds * job.width for job in waiting]) for fold in (sum, max))
    running: list[tuple[float, tuple[str, ...]]] = []
    while waiting or running:
        while (job := pool.choose(waiting)) is not None:
            waiting.remove(job)
            running.append((now + job.seconds, pool.take(job.width)))
            taken = [slot for _, names in running for slot in names]
            assert len(taken) == len({*taken}) <= slots
        now, names = min(running)
        running.remove((now, names))
        pool.give_back(names)
    assert now <= 1.5 * max(work / slots, longest)


def test_a_narrow_job_does_not_overtake_a_wide_one_it_would_delay() -> None:
    pool = Pool(("0", "1", "2", "3"))
    wide, narrow = SimpleNamespace(width=4), SimpleNamespace(width=1)
    pool.take(1)
    assert pool.choose([narrow, wide]) is None  # a second narrow job would keep the wide one waiting for longer
    assert pool.choose([narrow]) is narrow
    three = SimpleNamespace(width=3)
    pool = Pool(("0", "1", "2", "3"))
    pool.take(3)
    assert pool.choose([three, narrow]) is narrow  # the fourth slot is of no use to a job of three
    assert pool.take(1) == ("3",)
    assert pool.choose([three, narrow]) is None


def test_a_failure_is_tried_again_and_does_not_stop_the_others(tmp_path: Path) -> None:
    broken = broken_job(tmp_path)
    sweep_jobs = run([broken, job(1, 1, tmp_path)], 1, tmp_path, retries=2)
    assert sweep_jobs.jobs["key1"].status == FINISHED
    assert sweep_jobs.jobs["broken"].attempt == 3
    assert sweep_jobs.jobs["broken"].reason == "ended with code 3"
    assert (tmp_path / "broken" / "attempts" / "2" / "output.log").is_file()


def test_an_attempt_that_was_preempted_is_none_of_those_that_failed(tmp_path: Path) -> None:
    command = (sys.executable, "-S", "-c", PREEMPTED, str(tmp_path / "key1"))
    one = Job("key1", ("number=1",), tmp_path / "key1", "gpu", 1, 1, "val/acc", "max", command)
    assert run([one], 1, tmp_path, retries=1).jobs["key1"].attempt == 3  # preempted, failed, failed


def test_a_job_that_takes_too_long_and_does_not_listen_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep.sweeps.runner.GRACE", 0.3)
    deaf = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(60)"
    one = Job("deaf", ("number=1",), tmp_path / "deaf", "gpu", 1, 1, "val/acc", "max", (sys.executable, "-S", "-c", deaf))
    view = run([one], 1, tmp_path, timeout=0.5).jobs["deaf"]
    assert (view.status, view.reason) == ("failed", "no end within 0.5 s")


@pytest.mark.parametrize("step", ["open", "start"])
def test_a_job_that_can_not_be_started_does_not_stop_the_others(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk, or without another process: the sweep ended without its table, and ended those that ran."""
    (tmp_path / "broken").mkdir()
    if step == "open":
        (tmp_path / "broken" / "output.log").mkdir()
        monkeypatch.setattr("lockstep.sweeps.sweep_jobs._archive", lambda _: None)
    else:
        where = "lockstep.sweeps.sweep_jobs._archive" if step == "archive" else "lockstep.sweeps.local.start"
        monkeypatch.setattr(where, failing(vars(sys.modules[where.rpartition(".")[0]])[step]))
    sweep_jobs = run([broken_job(tmp_path), job(1, 1, tmp_path)], 1, tmp_path, retries=1)
    view = sweep_jobs.jobs["broken"]
    said = "Is a directory" if step == "open" else "No space left on device"
    assert (view.status, view.reason, view.attempt) == ("failed", f"could not be started ({said})", 2)
    assert sweep_jobs.jobs["key1"].status == FINISHED


def failing(call: Any) -> Any:
    def fail(first: Any, *more: Any, **named: Any) -> Any:
        if "broken" in str(first) or (more and more[0] == list(broken_job(Path()).command[1:])):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return call(first, *more, **named)

    return fail


def test_jobs_that_ran_when_a_sweep_died_have_the_states_of_their_directories(tmp_path: Path) -> None:
    jobs = [fake_sweep.job(tmp_path, number) for number in range(3)]
    sweep_jobs = fake_sweep.sweep(tmp_path, dict(zip(jobs, ("finished", "interrupted", "interrupted"), strict=True)))
    for one in jobs:
        fake_sweep.update(sweep_jobs, one.key, ended=None)
        status = (one.directory / "status.json").read_text()
        (one.directory / "status.json").write_text(re.sub('"status": "[a-z]*"', '"status": "running"', status))
    with fake_sweep.held(jobs[2].directory):  # by a command that has resumed it
        states = [(view.status, view.metric) for view in SweepJobs(tmp_path).jobs.values()]
    assert states == [(FINISHED, 0.5), (INTERRUPTED, None), (RUNNING, None)]


def test_a_job_that_was_resumed_by_itself_has_finished(tmp_path: Path) -> None:
    """Its results are not set aside to train it again."""
    one = fake_sweep.job(tmp_path, 1)
    sweep_jobs = fake_sweep.sweep(tmp_path, {one: "finished"})
    fake_sweep.update(sweep_jobs, one.key, status="failed", reason="planted")
    (found,) = look_at(tmp_path).ranked
    assert (found.status, found.reason, found.metric) == (FINISHED, None, 0.5)
    assert SweepJobs(tmp_path).register([one]) == []


def test_a_finished_job_that_was_trained_further_has_the_metric_of_its_record(tmp_path: Path) -> None:
    """By train.py resume=DIRECTORY trainer.max_epochs=20: its row had the new epochs, and the metric from before them."""
    one = fake_sweep.job(tmp_path, 1)
    fake_sweep.sweep(tmp_path, {one: "finished"})
    record = {"metrics": {"val/acc": 0.75}, "optimized_metric": "val/acc", "ended_by": "trainer.max_epochs=20"}
    (one.directory / "metrics.json").write_text(json.dumps(record))
    (found,) = look_at(tmp_path).ranked
    assert (found.metric, found.reason) == (0.75, "trainer.max_epochs=20")


def made(one: Job) -> Job:
    """A job whose run has a config."""
    hydra = {"overrides": {"task": []}, "runtime": {"choices": {}}}
    return replace(one, composed=OmegaConf.create(CONFIG | {"run_id": None, "hydra": hydra}))


@pytest.mark.parametrize("said", ["preempted", "running", "failed"])
def test_only_a_job_that_has_failed_by_itself_begins_anew(said: str, tmp_path: Path) -> None:
    """A job that has taken too long, was continued by a person and stopped, or was killed goes on."""
    one = made(broken_job(tmp_path))
    view = run([one], 1, tmp_path).jobs["broken"]
    save_run(one.directory, run_id="id")
    view.save(status=said)
    view.end(Exit(-9))
    view.begin(one)
    begun_anew = said == "failed"
    assert (read_run_id(one.directory) == "id") == (not begun_anew)
    assert begun_anew == (read_run_id(one.directory / "attempts" / "1") == "id")


def test_the_results_rank_jobs_and_average_over_seeds(tmp_path: Path) -> None:
    jobs = [job(i, 1, tmp_path, metric=metric) for i, metric in enumerate([0.5, 0.7, 0.2, 0.4])]
    sweep_jobs = run(jobs, 4, tmp_path)
    for i, one in enumerate(jobs):
        overrides = [f"model.optimizer.lr={i // 2}", f"seed={i % 2}"]
        fake_sweep.update(sweep_jobs, one.key, overrides=overrides, repetition=str(i // 2))
    fake_sweep.update(sweep_jobs, "key2", status="failed", metric=None, reason="planted")
    write_results(sweep_jobs)
    rows = (tmp_path / "results.csv").read_text().splitlines()
    assert [row.split(",")[1] for row in rows[1:]] == ["job_key1", "job_key0", "job_key3", "job_key2"]
    text = (tmp_path / "results.md").read_text()
    means = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()[-2:]]
    assert means == [["0", "2", "0.6", "0.141421"], ["1", "1", "0.4", ""]]  # of 0.5 and 0.7 the deviation is 0.1 * sqrt(2)


def test_gpus_are_those_that_the_environment_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep.sweeps.settings.visible_gpus", lambda: 4)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert LocalSettings().gpu_slots() == ("0", "1", "2", "3")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,GPU-8932f937,MIG-2fa1")
    assert LocalSettings().gpu_slots() == ("4", "5", "GPU-8932f937", "MIG-2fa1")


def test_jobs_of_one_gpu_have_it_together_where_that_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep.sweeps.settings.visible_gpus", lambda: 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8932f937")
    executor = LocalExecutor.from_settings(LocalSettings(jobs_per_gpu=2), fake_sweep.run_code)
    jobs = [job(number, 1, tmp_path) for number in (0, 1)]
    jobs = [replace(one, command=(sys.executable, "-S", "-c", BESIDE, str(one.directory))) for one in jobs]
    sweep_jobs = run(jobs, executor, tmp_path, timeout=30)
    assert [sweep_jobs.jobs[one.key].status for one in jobs] == [FINISHED, FINISHED]
    assert {(one.directory / "gpu").read_text() for one in jobs} == {"GPU-8932f937"}
    plan: Any = SimpleNamespace(devices=2, accelerator="gpu")
    with pytest.raises(ConfigError, match=r"^trainer.devices=2: hydra.launcher.jobs_per_gpu is for jobs of one GPU"):
        executor.resources(OmegaConf.create(), plan)


def test_what_a_sweep_imports_is_light_and_below_the_command_line() -> None:
    code = "import lockstep.sweeps.hydra_callback, lockstep.sweeps.sweep, sys; assert 'lockstep.cli' not in sys.modules;"
    code += "import hydra_plugins, importlib, pkgutil, lockstep.cli;"
    code += "[importlib.import_module(f'hydra_plugins.{one.name}') for one in pkgutil.iter_modules(hydra_plugins.__path__)];"
    code += "print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "lightning", "sklearn", "numpy", "optuna"} & set(modules)


def test_a_job_that_diverged_after_its_best_epoch_has_failed(tmp_path: Path) -> None:
    record = {"metrics": {"val/acc": 0.9}, "optimized_metric": "val/acc"}
    assert state_from_record(tmp_path, record) == (FINISHED, None, 0.9)
    (tmp_path / "progress.json").write_text(json.dumps({"metrics": {"train/loss": None, "val/acc": 0.1}}))
    assert state_from_record(tmp_path, record) == ("failed", "train/loss not finite", None)


def test_jobs_that_another_config_has_made_new_are_said_to_be(tmp_path: Path) -> None:
    """The same command with another version's defaults, on the directory of an earlier call."""

    def batch(**config: Any) -> list[Job]:
        jobs = []
        for rate in (1, 2):
            content: Any = CONFIG | config | {"seed": rate}
            key = identity(computed_config(OmegaConf.create(content)))
            one = Job(key, (f"seed={rate}",), tmp_path / key, "cpu", 1, 1, "val/acc", "max", ("true",))
            jobs.append(replace(made(one), config=computed_config(OmegaConf.create(content))))
            jobs[-1].composed.update(content)
        return jobs

    before, now = batch(test="auto", net={"a": 1, "b": 2}), batch(test=True, net={"a": 1})
    sweep_jobs = SweepJobs(tmp_path)
    assert sweep_jobs.describe_changed(before) is None
    sweep_jobs.register(before)
    assert SweepJobs(tmp_path).describe_changed(before) is None
    line = "2 of 2 jobs have other values of net.b, test than before: they begin anew, beside the earlier ones"
    assert SweepJobs(tmp_path).describe_changed(now) == line
