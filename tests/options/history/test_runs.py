"""The runs below a folder, as scripts/runs.py lists, searches and compares them."""

import json
from pathlib import Path

import pytest
from commands import ROOT, python, train

from lockstep.errors import ConfigError
from lockstep.history.runs import best_run, find_runs, sort_runs, where

RUNS = ROOT / "scripts" / "runs.py"


def make_run(
    folder: Path,
    name: str,
    accuracy: float | None,
    lr: float = 0.1,
    model: str = "cnn",
    state: str = "finished",
    mode: str = "max",
) -> Path:
    """What a run leaves, less all that nobody reads here."""
    run = folder / name
    (run / ".hydra").mkdir(parents=True)
    (run / ".hydra" / "overrides.yaml").write_text(f"- model.optimizer.lr={lr}\n")
    (run / "status.json").write_text(json.dumps({"status": state, "reason": "why", "started": f"2026-01-01T00:00:{name[-1]}0"}))
    (run / ".hydra" / "config.yaml").write_text(f"model:\n  optimizer:\n    lr: {lr}\noptimized_mode: {mode}\nrun_dir: {run}\n")
    (run / ".hydra" / "hydra.yaml").write_text(
        f"hydra:\n  runtime:\n    choices:\n      model: {model}\n      trainer: cpu\n  verbose: 1\n"
    )
    if accuracy is not None:
        record = {"optimized_metric": "val/acc", "wall_time": 90.0, "lr": lr, "devices": 2, "metrics": {"val/acc": accuracy}}
        (run / "metrics.json").write_text(json.dumps(record))
    return run


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    make_run(tmp_path, "a/0", 0.5, lr=0.1)
    make_run(tmp_path, "a/sweep/1", 0.9, lr=0.001, model="mlp")
    make_run(tmp_path, "b/2", None, state="failed")
    return tmp_path


@pytest.mark.parametrize(
    ("condition", "expected"),
    [("model=mlp", "a/sweep/1"), ("state=failed", "b/2"), ("val/acc=0.50", "a/0"), ("trainer=cpu", "a/0")],
)
def test_where(logs: Path, condition: str, expected: str) -> None:
    assert where(find_runs(logs), [condition])[0].name == expected


def test_the_best_has_finished(logs: Path) -> None:
    """Metrics are recorded before everything is done that a run has to do."""
    for number, state in enumerate(("failed", "preempted")):
        make_run(logs, f"c/{number}", 0.95, state=state)
    assert best_run(find_runs(logs)).name == "a/sweep/1"
    with pytest.raises(ConfigError, match="--best=none: is not one metric of finished runs"):
        best_run(where(find_runs(logs), ["state=failed"]))
    with pytest.raises(ConfigError, match="--sort=no/such: no run has it"):
        sort_runs(find_runs(logs), "no/such")


@pytest.mark.slow
def test_two_runs_are_listed_and_compared(tmp_path: Path) -> None:
    """Two runs whose rates differ."""
    options = ("model=mlp", "trainer.max_epochs=1", "trainer.log_every_n_steps=1", "callbacks.pictures=null", "test=false")
    for name, lr in (("one", "1e-3"), ("other", "1e-2")):
        train(*options, f"model.optimizer.lr={lr}", f"hydra.run.dir=logs/{name}", cwd=tmp_path, code=0)
    listed = python(RUNS, "--where", "model=mlp", "--sort", "val/loss", cwd=tmp_path, code=0)
    assert [line.split()[1] for line in listed.stdout.splitlines()[1:]] == ["finished"] * 2
    compared = python(RUNS, "diff", "logs/one", "logs/other", cwd=tmp_path, code=0)
    assert "model.optimizer.lr  0.001" in compared.stdout
    best = python(RUNS, "--best", cwd=tmp_path).stdout.strip()
    assert (tmp_path / best / "checkpoints" / "best.ckpt").is_file()
    refused = python(RUNS, "diff", "logs/one", "nowhere", cwd=tmp_path)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
