"""Jobs in SLURM's queue: what they ask for, and how each is followed to its end, with a stand-in for SLURM."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import once, wait_for

from lockstep.config.plan import Plan
from lockstep.errors import ConfigError
from lockstep.runs.composition import compose
from lockstep.slurm.launcher import SlurmExecutor, cancel
from lockstep.sweeps.jobs import Job, JobLaunch, SweepJobs
from lockstep.sweeps.local import LocalExecutor
from lockstep.sweeps.sweep import Runner
from lockstep.sweeps.table import look_at

# SLURM's commands as shell scripts: each job runs at once, or waits while there is a file `hold`. Its line of squeue's is a file
# of its own in `tasks`, which a test may change.
_SBATCH = r"""
echo "$@" >> calls
[ -f refuses ] && { cat refuses >&2; [ -f heard ] || exit 1; }
for word; do
  case $word in --job-name=*) name=${word#*=} ;; esac
  script=$word
done
say() { echo "$2" > saying.$1 && mv saying.$1 tasks/$1; } # at once: squeue must not find half of it
number=$(( $(cat number 2>/dev/null || echo 0) + 1 ))
echo $number > number
say $number "$number|$name|PENDING|Priority|"
( for fd in $(ls /proc/self/fd); do [ $fd -gt 2 ] && [ $fd -lt 255 ] && eval "exec $fd>&-"; done
  while [ -f hold ]; do sleep 0.02; done
  say $number "$number|$name|RUNNING|None|n1"
  SLURM_CPUS_PER_TASK=1 bash "$script"
  [ $? -eq 0 ] && state=COMPLETED || state=FAILED
  say $number "$number|$name|$state|None|n1"
) > /dev/null 2>&1 &
[ -f heard ] && exit 1
echo "$number;cluster"
"""
_SQUEUE = '[ -f down ] && { cat down >&2; exit 1; }; echo "9|somebody\'s|RUNNING|None|n2"; cat tasks/* 2>/dev/null; true'
_SRUN = r"""
while case $1 in --output=*) output=${1#*=} ;; --*) ;; *) false ;; esac; do shift; done
exec "$@" >> "$output" 2>&1
"""
_SCANCEL = r"""
echo "$@" >> cancelled
case "$*" in *--signal*) exit 0 ;; esac
for id; do [ -f tasks/$id ] && sed -i "s/PENDING\|RUNNING/CANCELLED/" tasks/$id; done
true
"""


# a job that writes its record, fails, or is preempted at its first start; it counts its starts
PROGRAM = """
import json, os, pathlib, sys
folder, how = pathlib.Path(sys.argv[1]), sys.argv[2]
starts = folder.parent / f"starts.{folder.name}"
with starts.open("a") as file: file.write(chr(10))
if how == "fails": sys.exit("planted fault")
if how == "preempted" and starts.read_text().count(chr(10)) == 1:
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "last.ckpt").touch()
    (folder / "status.json").write_text(json.dumps({"status": "preempted", "reason": "preempted by SIGTERM"}))
    sys.exit(75)
(folder / "metrics.json").write_text(json.dumps({"metrics": {"val/acc": 0.5}, "optimized_metric": "val/acc"}))
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of these commands, first on the PATH."""
    place = tmp_path / "cluster"
    (place / "tasks").mkdir(parents=True)
    enter = f"cd {place}\n"
    for name, text in {"sbatch": enter + _SBATCH, "squeue": enter + _SQUEUE, "scancel": enter + _SCANCEL, "srun": _SRUN}.items():
        (place / name).write_text(f"#!/bin/bash\n{text}\n")
        (place / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}{os.pathsep}{os.environ['PATH']}")
    yield place
    (place / "hold").unlink(missing_ok=True)


def job(folder: Path, name: str, how: str = "well", asks: tuple[str, ...] = ("--nodes=1",)) -> Job:
    directory = folder / f"sweep-{name}"
    command = (sys.executable, "-S", "-c", PROGRAM, str(directory), how)
    return Job(directory, name, [], 1, "val/acc", "max", launch=JobLaunch(command, asks))


def begin(folder: Path, **settings: Any) -> tuple[Runner, SweepJobs]:
    """Begin a sweep as its command does, the first time or again."""
    sweep_jobs, slurm = SweepJobs(folder, is_running=False), SlurmExecutor(**{"poll": 0.05} | settings)
    slurm.open(sweep_jobs)
    return Runner(sweep_jobs, slurm), sweep_jobs


def sweep(folder: Path, jobs: list[Job], /, **settings: Any) -> dict[str, tuple[str, str | None]]:
    """Runs what has to be run; how the jobs stand in the end."""
    runner, sweep_jobs = begin(folder, **settings)
    runner.run(sweep_jobs.register(jobs))
    return states(SweepJobs(folder))


def submit(folder: Path, jobs: list[Job]) -> None:
    """Submit all jobs of a sweep that is killed then."""
    runner, sweep_jobs = begin(folder)
    for one in sweep_jobs.register(jobs):
        runner.start(one)


def states(sweep_jobs: SweepJobs) -> dict[str, tuple[str, str | None]]:
    return {key: (job.status, job.reason) for key, job in sweep_jobs.jobs.items()}


def are_in_queue(folder: Path, keys: str) -> bool:
    with contextlib.suppress(ConfigError):  # there is no sweep yet
        return states(look_at(folder)) == dict.fromkeys(keys, ("queued", "in SLURM's queue: Priority"))
    return False


def starts(folder: Path) -> dict[str, int]:
    return {path.name.rpartition("-")[2]: path.read_text().count("\n") for path in folder.glob("starts.*")}


def test_each_job_is_submitted_with_its_flags_and_tried_again_and_all_are_answered_for(place: Path, tmp_path: Path) -> None:
    how = {"a": "well", "b": "preempted", "c": "fails", "d": "well"}
    jobs = [job(tmp_path, name, way, ("--nodes=2",) if name == "d" else ("--nodes=1",)) for name, way in how.items()]
    failed = ("failed", "ended with code 1: planted fault")
    ends = sweep(tmp_path, jobs, setup=["export OMP_NUM_THREADS=3"], retries=1)
    assert ends == dict.fromkeys("abd", ("finished", None)) | {"c": failed}
    calls = (place / "calls").read_text().splitlines()
    assert ["--nodes=2" in call for call in calls[:4]] == [False, False, False, True]
    assert starts(tmp_path) == {"a": 1, "b": 2, "c": 2, "d": 1}
    assert {(job.attempt, job.queue) for job in SweepJobs(tmp_path).jobs.values()} == {(1, None), (2, None)}
    assert sweep(tmp_path, jobs[:2])["a"] == ("finished", None)  # nothing to do
    assert len((place / "calls").read_text().splitlines()) == len(calls) == 6


def test_whoever_comes_next_finds_the_jobs_in_the_queue(place: Path, tmp_path: Path) -> None:
    """A sweep that is stopped leaves them there, and so does one that is killed; nothing is submitted twice."""
    (place / "hold").touch()
    jobs = [job(tmp_path, "a"), job(tmp_path, "b")]
    runner, sweep_jobs = begin(tmp_path)
    once(lambda: are_in_queue(tmp_path, "ab"), os.kill, os.getpid(), signal.SIGTERM)
    runner.run(sweep_jobs.register(jobs))
    assert runner.interrupted
    assert are_in_queue(tmp_path, "ab")
    assert starts(tmp_path) == {}
    with pytest.raises(ConfigError, match=r"^hydra.sweep.dir=.*: 2 job\(s\) of it are in a queue"):
        LocalExecutor().open(SweepJobs(tmp_path))

    (place / "hold").unlink()
    wait_for(lambda: len(starts(tmp_path)) == 2, 10)  # while nobody looks
    wait_for(lambda: "RUNNING" not in "".join(path.read_text() for path in (place / "tasks").iterdir()))
    assert states(look_at(tmp_path)) == dict.fromkeys("ab", ("finished", None))
    assert sweep(tmp_path, [*jobs, job(tmp_path, "c")]) == dict.fromkeys("abc", ("finished", None))
    assert starts(tmp_path) == {"a": 1, "b": 1, "c": 1}


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("CANCELLED", ("preempted", "CANCELLED by SLURM on n1")),
        ("NODE_FAIL", ("failed", "NODE_FAIL by SLURM on n1")),
        ("", ("queued", None)),
    ],
)
def test_what_slurm_says_of_an_end_is_its_reason(state: str, expected: Any, place: Path, tmp_path: Path) -> None:
    (place / "hold").touch()
    submit(tmp_path, [job(tmp_path, "a")])
    line = f"1|{SweepJobs(tmp_path).jobs['a'].queue}|{state}|None|n1\n" if state else ""
    (place / "saying").write_text(line)
    (place / "saying").replace(place / "tasks" / "1")  # at once, as above
    assert states(look_at(tmp_path)) == {"a": expected}


def test_jobs_that_are_cancelled_are_taken_out_of_the_queue(place: Path, tmp_path: Path) -> None:
    (place / "hold").touch()
    submit(tmp_path, [job(tmp_path, "a"), job(tmp_path, "b")])
    assert cancel(SweepJobs(tmp_path)) == 2
    assert states(look_at(tmp_path)) == dict.fromkeys("ab", ("preempted", "CANCELLED by SLURM"))


def test_a_submission_that_sbatch_refuses_has_failed_unless_it_was_heard(place: Path, tmp_path: Path) -> None:
    (place / "refuses").write_text("sbatch: error: Socket timed out on send/recv operation")
    reason = "could not be started (sbatch: Socket timed out on send/recv operation)"
    assert sweep(tmp_path, [job(tmp_path, "a")]) == {"a": ("failed", reason)}
    (place / "heard").touch()
    assert sweep(tmp_path / "heard", [job(tmp_path / "heard", "b")]) == {"b": ("finished", None)}
    assert (len((place / "calls").read_text().splitlines()), starts(tmp_path / "heard")) == (2, {"b": 1})


def test_a_sweep_does_not_begin_while_nobody_answers(place: Path, tmp_path: Path) -> None:
    (place / "down").write_text("slurm_load_jobs error: Unable to contact slurm controller")
    with pytest.raises(ConfigError, match=r"^hydra/launcher=slurm: squeue: slurm_load_jobs error: Unable to contact"):
        begin(tmp_path)
    (place / "down").unlink()
    runner, sweep_jobs = begin(tmp_path)
    (place / "down").touch()  # while it runs, things are taken to stand as they did
    threading.Timer(0.5, (place / "down").unlink).start()
    runner.run(sweep_jobs.register([job(tmp_path, "a")]))
    assert states(sweep_jobs) == {"a": ("finished", None)}


@pytest.mark.parametrize(
    ("overrides", "flags"),
    [
        ("trainer.devices=4", "--nodes=1 --ntasks-per-node=1 --cpus-per-task=16 --gres=gpu:4"),
        ("trainer.devices=4 trainer.num_nodes=2", "--nodes=2 --ntasks-per-node=4 --cpus-per-task=4 --gres=gpu:4"),
        ("trainer=cpu trainer.devices=2", "--nodes=1 --ntasks-per-node=1 --cpus-per-task=8"),
    ],
)
def test_a_job_asks_for_what_its_processes_need(overrides: str, flags: str) -> None:
    plan = Plan.from_config(compose(*overrides.split()), node_gpus=4)
    assert SlurmExecutor().flags(plan) == (*flags.split(), "--requeue", "--signal=USR1@120")
    given = SlurmExecutor(partition="long", time="1-00:00:00", mem="9G", gres="gpu:a100", warning=60, sbatch=["--no-requeue"])
    more = f"{flags} --partition=long --time=1-00:00:00 --mem=9G --requeue --signal=USR1@60 --no-requeue"
    assert given.flags(plan) == (*more.replace("gpu:", "gpu:a100:").split(),)
