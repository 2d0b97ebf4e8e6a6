"""The runs below a folder: the one that goes on by `resume=last`, and what scripts/runs.py lists and compares."""

import os
from pathlib import Path

import pytest
from commands import ROOT, python, train
from fake_sweep import held
from saved_run import save_run

from lockstep.atomic_files import write_json
from lockstep.errors import ConfigError
from lockstep.history.runs import best_run, find_runs, sort_runs, where
from lockstep.runs import record
from lockstep.runs.resume import command_to_continue, newest_unfinished


def run_in(folder: Path, status: record.Status = "preempted", **facts: bool) -> Path:
    save_run(folder, "seed=1")
    record.write_status(folder, status, **facts)
    return folder


def test_the_command_that_names_it_is_spelled_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_in(tmp_path / "logs" / "task" / "run")
    run_in(tmp_path / "logs" / "sweep" / "job")
    (tmp_path / "logs" / "sweep" / "multirun.yaml").write_text("{}")  # whose jobs go on with their sweep
    monkeypatch.chdir(tmp_path)
    assert command_to_continue(["resume=last", "test=false"]) == command_to_continue([f"resume={run}", "test=false"])
    record.write_status(run, "finished")
    with pytest.raises(ConfigError, match=r"^resume=last: there is no unfinished run below "):
        command_to_continue(["resume=last"])


def test_the_last_one_is_the_newest_that_can_go_on_and_is_not_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs' own status counts: the times of files are all the other way round."""
    runs = {"logs/task/d": "running", "logs/task/c": "finished", "my runs/b": "running", "logs/a/b/a": "failed"}
    run_in(tmp_path / "mistyped", "failed", **{record.COULD_NOT_START: True})
    for age, (name, status) in enumerate(runs.items()):
        monkeypatch.setattr(record.time, "strftime", lambda _, age=age: f"2026-11-21T10:0{9 - age}:00+0000")
        os.utime(run_in(tmp_path / name, status) / "status.json", (1e9 + age, 1e9 + age))
    with held(tmp_path / "logs" / "task" / "d"):
        assert newest_unfinished(tmp_path) == tmp_path / "my runs" / "b"
    assert newest_unfinished(tmp_path) == tmp_path / "logs" / "task" / "d"


RUNS = ROOT / "scripts" / "runs.py"


def make_run(run: Path, accuracy: float | None, model: str = "cnn", state: str = "finished") -> None:
    save_run(run, choices={"model": model, "trainer": "cpu"}, optimized_mode="max")
    write_json(run / "status.json", {"status": state, "reason": "why", "started": f"2026-01-01T00:00:{run.name}0"})
    if accuracy is not None:
        record = {"optimized_metric": "val/acc", "wall_time": 90.0, "lr": 0.1, "devices": 2, "metrics": {"val/acc": accuracy}}
        write_json(run / "metrics.json", record)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    make_run(tmp_path / "a" / "0", 0.5)
    make_run(tmp_path / "a" / "sweep" / "1", 0.9, model="mlp")
    make_run(tmp_path / "b" / "2", None, state="failed")
    return tmp_path


def test_the_best_has_finished(logs: Path) -> None:
    """Metrics are recorded before everything is done that a run has to do."""
    for number, state in enumerate(("failed", "preempted")):
        make_run(logs / "c" / str(number), 0.95, state=state)
    assert best_run(find_runs(logs)).name == "a/sweep/1"
    with pytest.raises(ConfigError, match="--best=none: is not one metric of finished runs"):
        best_run(where(find_runs(logs), ["state=failed"]))
    with pytest.raises(ConfigError, match="--sort=no/such: no run has it"):
        sort_runs(find_runs(logs), "no/such")


@pytest.mark.slow
def test_two_runs_are_listed_and_compared(tmp_path: Path) -> None:
    options = ("model=mlp", "trainer.max_epochs=1", "trainer.log_every_n_steps=1", "callbacks.pictures=null", "test=false")
    for name, lr in (("one", "1e-3"), ("other", "1e-2")):
        train(*options, f"model.optimizer.lr={lr}", f"hydra.run.dir=logs/{name}", cwd=tmp_path, code=0)
    listed = python(RUNS, "--where", "model=mlp", "--sort", "val/loss", cwd=tmp_path, code=0)
    assert [line.split()[1] for line in listed.stdout.splitlines()[1:]] == ["finished"] * 2
    compared = python(RUNS, "diff", "logs/one", "logs/other", cwd=tmp_path, code=0)
    assert "model.optimizer.lr  0.001" in compared.stdout
    best = python(RUNS, "--best", cwd=tmp_path, code=0).stdout.strip()
    assert (tmp_path / best / "checkpoints" / "best.ckpt").is_file()
    assert python(RUNS, "diff", "logs/one", "nowhere", cwd=tmp_path, code=2).stderr.count("\n") == 1
