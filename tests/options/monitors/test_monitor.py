"""Callbacks that look: what they log and write, and that one which fails is said once, in one line, and ends no run."""

import csv
import gzip
import json
import logging
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from in_process import BARE, Rates, become_rank, prepared, trained
from lightning import Callback, Trainer
from ranks import in_ranks

from lockstep.callbacks.equivalence import EquivalenceReport
from lockstep.callbacks.monitors import LearningRate, Monitor, Pictures, Progress, Throughput, watched
from lockstep.callbacks.noise_scale import NoiseScale
from lockstep.errors import ConfigError
from lockstep.runs.results import collect_facts
from lockstep.trainer.profilers import TorchProfiler


class Looks(Monitor, Callback):
    """Fails in the backward pass of its second batch, and when it is asked for its state; or refuses the config."""

    def __init__(self, refusal: Exception | None = None) -> None:
        self.seen: list[int] = []
        self.is_released = False
        self.refusal = refusal

    @watched
    def see(self, gradient: Any) -> None:
        if len(self.seen) == 2:
            raise RuntimeError("nothing to\nbe seen")

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if self.refusal:
            raise self.refusal
        next(pl_module.parameters()).register_hook(self.see)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.seen.append(batch_idx)

    def release(self) -> None:
        self.is_released = True

    def facts(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def state_dict(self) -> dict[str, Any]:
        raise KeyError("state")


def fit(folder: Path, monitor: Callback) -> Trainer:
    few = ("trainer.max_epochs=1", "trainer.limit_train_batches=5", "trainer.limit_val_batches=0")
    datamodule, model, trainer = prepared(folder, *few, "optimized_metric=train/loss", base=BARE, extra=[monitor])
    trainer.fit(model, datamodule)
    return trainer


def test_what_fails_is_said_once_and_switched_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    looks = Looks()
    with caplog.at_level(logging.WARNING, logger="lockstep.callbacks.monitors"):
        assert fit(tmp_path, looks).global_step == 5
        assert not looks.state_dict()
    assert (looks.is_off, looks.is_released, looks.facts()) == (True, True, {"seen": [0, 1]})
    said = "Looks is switched off for the rest of the run: see: RuntimeError: nothing to be seen"
    assert [record.message for record in caplog.records] == [said]


def test_a_refusal_of_the_config_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        fit(tmp_path, Looks(ConfigError("key=value: use another")))


@pytest.mark.parametrize("kind", [EquivalenceReport, LearningRate, NoiseScale, Pictures, Progress, Throughput, TorchProfiler])
def test_all_hooks_of_a_monitor_are_watched(kind: type) -> None:
    names = [name for name in dir(Callback) if name.startswith("on_") or name in ("setup", "teardown", "state_dict")]
    own = [name for name in names if getattr(kind, name) is not getattr(Callback, name)]
    assert own
    assert [name for name in own if not hasattr(getattr(kind, name), "is_watched")] == []


def of_rank(rank: int, world_size: int, folder: Path) -> tuple[int, bool, bool]:
    become_rank(rank, world_size)
    pictures, options = Pictures(), ("callbacks=noise_scale", "callbacks.noise_scale.every_n_steps=1", "trainer.max_epochs=2")
    datamodule, model, trainer = prepared(folder, *options, f"trainer.devices={world_size}", extra=[pictures])
    (scale,) = (callback for callback in trainer.callbacks if isinstance(callback, NoiseScale))
    if rank == 0:
        vars(scale)["_estimate"] = None  # as a logger whose disk is full, on the one rank that writes
    else:
        vars(pictures)["on_test_batch_end"] = watched(lambda *_: 1 / 0).__get__(pictures)
    trainer.fit(model, datamodule)
    trainer.test(model, datamodule, verbose=False)
    return trainer.global_step, scale.is_off, pictures.is_off


@pytest.mark.slow
def test_one_that_fails_in_one_process_keeps_no_other_waiting(tmp_path: Path) -> None:
    """Its collectives would otherwise meet those of training."""
    first, second = in_ranks(2, partial(of_rank, folder=tmp_path), tmp_path)
    assert first == second == (4, True, True)


def test_progress_json_says_how_far_a_run_is(tmp_path: Path) -> None:
    progress = ("trainer.enable_progress_bar=true", "++callbacks.progress={_target_: lockstep.callbacks.monitors.Progress}")
    trained(tmp_path, "trainer.max_epochs=2", *progress)
    content = json.loads((tmp_path / "progress.json").read_text())
    metrics = content.pop("metrics")
    assert content == {"epoch": 2, "epochs": 2, "step": 8, "share": 1.0, "seconds_left": 0.0}
    assert metrics["val/acc"] > 0


def column(run: Path, name: str) -> dict[int, float]:
    """Return the values that were logged under a name, by step."""
    with (run / "csv" / "metrics.csv").open(newline="") as file:
        return {int(row["step"]): float(row[name]) for row in csv.DictReader(file) if row[name]}


@pytest.mark.parametrize(
    ("limit", "steps"), [("trainer.max_epochs=3", [0, 3, 4, 7, 9, 11]), ("trainer.max_steps=6", [0, 3, 4, 5])]
)
def test_points_are_at_the_first_step_each_interval_and_each_end(limit: str, steps: list[int], tmp_path: Path) -> None:
    trained(tmp_path, limit, "trainer.log_every_n_steps=5")  # of four steps an epoch
    for name in ("lr", "throughput/samples_per_second", "throughput/step_time"):
        assert [*column(tmp_path, name)] == steps


@pytest.mark.parametrize("schedule", ["cosine", "plateau"])
def test_the_rate_that_is_logged_and_recorded_is_that_of_the_steps(schedule: str, tmp_path: Path) -> None:
    options = {
        "plateau": ["model.lr_scheduler.patience=0", "optimized_mode=min"],  # the accuracy rises
        "cosine": ["model.lr_scheduler.warmup_steps=3", "trainer.accumulate_grad_batches=2"],
    }
    rates = Rates()
    _, trainer = trained(tmp_path, f"model/lr_scheduler={schedule}", *options[schedule], extra=[rates])
    assert column(tmp_path, "lr") == dict(enumerate(rates.seen))
    assert len(rates.seen) == trainer.global_step
    assert len(set(rates.seen)) > 1
    facts = collect_facts(trainer)
    assert facts["lr"] == max(rates.seen)


def test_a_trace_has_the_steps_of_the_window(tmp_path: Path) -> None:
    window = ("profiler=pytorch", "callbacks.profiler.first_step=2", "callbacks.profiler.steps=3")
    trained(tmp_path, *window, "trainer.max_epochs=2")  # eight steps
    with gzip.open(tmp_path / "profile" / "rank0.pt.trace.json.gz") as file:
        names = [event["name"] for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]
    assert {f"ProfilerStep#{number}" for number in (2, 3, 4)} <= {*names}
    assert names.count("Optimizer.step#AdamW.step") == 3
    assert "aten::addmm" in (tmp_path / "profile" / "operations.txt").read_text()
