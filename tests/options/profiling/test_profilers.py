"""A window of steps is profiled, on rank zero alone, and it is the steps as they are without a profiler."""

import gzip
import json
from pathlib import Path
from typing import Any

from in_process import prepared
from lightning.pytorch.profilers import PyTorchProfiler


def trained(folder: Path, *overrides: str) -> Any:
    options = ("trainer.max_epochs=2", "guards.checkpoint.every_n_steps=null")  # eight steps
    datamodule, model, trainer = prepared(folder, *options, *overrides)
    trainer.fit(model, datamodule)
    return trainer


def test_a_trace_has_the_steps_of_the_window(tmp_path: Path) -> None:
    trainer = trained(tmp_path, "profiler=pytorch", "callbacks.profiler.first_step=2", "callbacks.profiler.steps=3")
    with gzip.open(tmp_path / "profile" / "rank0.pt.trace.json.gz") as file:
        names = [event["name"] for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]
    assert {f"ProfilerStep#{number}" for number in (2, 3, 4)} <= {*names}
    assert names.count("Optimizer.step#AdamW.step") == 3
    assert "aten::addmm" in (tmp_path / "profile" / "operations.txt").read_text()
    assert getattr(trainer.fit_loop.epoch_loop, "_plain", trainer) is not None


def test_lightning_s_profilers_are_options(tmp_path: Path) -> None:
    trained(tmp_path, "profiler=simple")
    assert "run_training_epoch" in (tmp_path / "profile" / "fit-hooks.txt").read_text()
    trainer = prepared(tmp_path, "profiler=nsight")[2]
    assert isinstance(trainer.profiler, PyTorchProfiler)
    assert trainer.profiler._emit_nvtx
