"""A window of steps is profiled, on rank zero alone, and it is the steps as they are without a profiler."""

import gzip
import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from in_process import prepared
from unwatched import unwatched

from lockstep.errors import ConfigError
from lockstep.extras.profiling import profilers
from lockstep.extras.profiling.profilers import Nsight, TorchProfiler
from lockstep.extras.profiling.step_time import StepTime


def trained(folder: Path, *overrides: str) -> Any:
    options = ("trainer.max_epochs=2", "callbacks.step_time=null", "guards.checkpoint.every_n_steps=null")  # eight steps
    datamodule, model, trainer = prepared(folder, *options, *overrides)
    trainer.fit(model, datamodule)
    return trainer


def names_in(folder: Path) -> list[str]:
    with gzip.open(folder / "profile" / "rank0.pt.trace.json.gz") as file:
        events = json.load(file)["traceEvents"]
    return [event["name"] for event in events if event.get("ph") == "X"]


def test_a_trace_has_the_steps_of_the_window_with_their_parts(tmp_path: Path) -> None:
    trainer = trained(tmp_path, "profiler=pytorch", "callbacks.profiler.first_step=2", "callbacks.profiler.steps=3")
    names = names_in(tmp_path)
    assert {name for name in names if name.startswith("ProfilerStep")} == {"ProfilerStep#2", "ProfilerStep#3", "ProfilerStep#4"}
    parts = {part: names.count(part) for part in ("data", "validation", "forward", "backward", "optimizer")}
    assert parts == {"data": 4, "validation": 1, "forward": 3, "backward": 3, "optimizer": 3}  # an epoch ends within it
    assert names.count("Optimizer.step#AdamW.step") == 3
    assert "aten::addmm" in (tmp_path / "profile" / "operations.txt").read_text()
    assert getattr(trainer.fit_loop.epoch_loop, "_plain", trainer) is not None


def test_a_table_alone_is_what_simple_leaves(tmp_path: Path) -> None:
    trained(tmp_path, "profiler=simple", "callbacks.profiler.first_step=2", "callbacks.profiler.steps=1")
    assert [file.name for file in (tmp_path / "profile").iterdir()] == ["operations.txt"]


def test_nsight_without_a_gpu_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^profiler=nsight: is for GPUs, and this run has none; accepted are simple, pytorch$"):
        trained(tmp_path, "profiler=nsight")


def test_nsight_marks_the_window_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What it tells CUDA, written down; this machine may have none."""
    said: list[str] = []
    cuda = SimpleNamespace(
        profiler=SimpleNamespace(start=lambda: said.append("start"), stop=lambda: said.append("stop")),
        nvtx=SimpleNamespace(range_start=lambda part: said.append(part) or len(said), range_end=lambda _: said.append("|")),
    )
    operations = SimpleNamespace(__enter__=lambda: said.append("["), __exit__=lambda *_: said.append("]"))
    monkeypatch.setattr(profilers, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(profilers, "emit_nvtx", lambda: operations)
    monkeypatch.setattr(Nsight, "setup", lambda *_, **__: None)
    with caplog.at_level(logging.INFO, logger=profilers.__name__):
        trained(tmp_path, "profiler=nsight", "callbacks.profiler.first_step=2", "callbacks.profiler.steps=2")
    step = "data | forward | backward | rest | optimizer |"
    assert " ".join(said) == f"start [ {step} {step} ] stop"
    assert [record.message for record in caplog.records if "nsys profile" in record.message]


@pytest.mark.parametrize("kind", [Nsight, StepTime, TorchProfiler])
def test_it_is_watched_in_all_its_hooks(kind: type) -> None:
    assert unwatched(kind) == []
