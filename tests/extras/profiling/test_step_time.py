"""What a step's time goes to, where it is known: planted waits are found in the part that they are planted in."""

import csv
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from capabilities import requires
from in_process import prepared
from lightning import Callback
from torch import Tensor

from lockstep.datamodules import Batches
from lockstep.extras.profiling import step_time
from lockstep.extras.profiling.step_time import StepTime

WAITS = {"data": 0.15, "forward": 0.02, "backward": 0.03, "optimizer": 0.01, "rest": 0.025}  # seconds


class Waits(Callback):
    """In the hooks of another callback: part of no computation."""

    def on_train_batch_start(self, *_: Any, **__: Any) -> None:
        time.sleep(WAITS["rest"] / 2)

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        time.sleep(WAITS["rest"] / 2)


def plant(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    read, forward, configure = Batches.__getitem__, model.forward, model.configure_optimizers

    def slow_read(self: Batches, draw: Any) -> Any:
        time.sleep(WAITS["data"])
        return read(self, draw)

    def slow_forward(inputs: Tensor) -> Tensor:
        time.sleep(WAITS["forward"])
        outputs = forward(inputs)
        if outputs.requires_grad:
            outputs.register_hook(lambda _: time.sleep(WAITS["backward"]))
        return outputs

    def slow_optimizer() -> Any:
        configured = configure()
        configured["optimizer"].register_step_post_hook(lambda *_: time.sleep(WAITS["optimizer"]))
        return configured

    monkeypatch.setattr(Batches, "__getitem__", slow_read)
    monkeypatch.setattr(model, "forward", slow_forward)
    monkeypatch.setattr(model, "configure_optimizers", slow_optimizer)


def measured(trainer: Any) -> dict[str, float]:
    """Seconds of the mean measured batch, by part."""
    (callback,) = (callback for callback in trainer.callbacks if isinstance(callback, StepTime))
    assert callback._count
    return {part: seconds / callback._count for part, seconds in callback._seconds.items()}


@requires("fast_loop")
@pytest.mark.parametrize("is_plain", [True, False])
def test_each_wait_is_found_in_its_part(is_plain: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part is at least as long as its wait; the shares say that none is in another's place."""
    monkeypatch.setattr(step_time, "_WARM_UP", 1)
    options = ("callbacks.step_time.every_n_steps=1", "guards.checkpoint.every_n_steps=null", "trainer.limit_val_batches=1")
    datamodule, model, trainer = prepared(tmp_path, *options, extra=[Waits()])
    plant(model, monkeypatch)
    if not is_plain:
        monkeypatch.setattr("lockstep.extras.fast_loop.epoch_loop.is_plain", lambda *_: False)
    trainer.fit(model, datamodule)
    assert (trainer.fit_loop.epoch_loop._plain is not None) is is_plain
    seconds = measured(trainer)
    assert all(seconds[part] >= WAITS[part] for part in WAITS)
    assert seconds["communication"] == 0
    assert sum(seconds.values()) < 2 * sum(WAITS.values())
    record = next(callback.facts() for callback in trainer.callbacks if isinstance(callback, StepTime))
    assert sum(record["step_time"].values()) == pytest.approx(1, abs=1e-4)
    assert record["closing_rows"]["a step"].startswith("data ")
    assert record["steps_measured"] == 9  # of twelve in three epochs, all but the first of each
    with (tmp_path / "csv" / "metrics.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["time/data"]]
    assert len(rows) == 9
    assert "time/communication" not in rows[0]
    assert sum(float(rows[0][f"time/{part}"]) for part in WAITS) == pytest.approx(1)


def test_validations_checkpoints_and_the_start_of_an_epoch_are_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_time, "_WARM_UP", 1)
    options = ("callbacks.step_time.every_n_steps=1", "trainer.val_check_interval=2", "trainer.max_epochs=2")
    datamodule, model, trainer = prepared(tmp_path, *options, "guards.checkpoint.every_n_steps=3")
    monkeypatch.setattr(model, "on_validation_end", lambda: time.sleep(0.5), raising=False)
    monkeypatch.setattr(model, "on_save_checkpoint", lambda _: time.sleep(0.5))
    trainer.fit(model, datamodule)
    assert max(measured(trainer).values()) < 0.25


def test_one_batch_of_many_is_measured(tmp_path: Path) -> None:
    """Twelve, of which the sixth and the eighth come after the warm-up and are not the first of an epoch."""
    options = ("callbacks.step_time.every_n_steps=2", "guards.checkpoint.every_n_steps=null")
    datamodule, model, trainer = prepared(tmp_path, *options)
    trainer.fit(model, datamodule)
    with (tmp_path / "csv" / "metrics.csv").open(newline="") as file:
        assert [int(row["step"]) for row in csv.DictReader(file) if row["time/rest"]] == [5, 7, 9, 11]
    assert getattr(trainer.fit_loop.epoch_loop, "_plain", trainer) is not None


def test_with_lightning_s_own_loop_data_is_all_between_two_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_time, "_WARM_UP", 1)
    options = ("callbacks.step_time.every_n_steps=1", "guards.checkpoint.every_n_steps=null", "trainer.max_epochs=1")
    datamodule, model, trainer = prepared(tmp_path, *options, "++events.fast_loop=null", extra=[Waits()])
    plant(model, monkeypatch)
    trainer.fit(model, datamodule)
    seconds = measured(trainer)
    assert seconds["data"] >= WAITS["data"] + WAITS["rest"] / 2
    assert all(seconds[part] >= WAITS[part] for part in ("forward", "backward", "optimizer"))


class Event:
    """A CUDA event on a device whose clock the test turns; milliseconds, as torch has them."""

    now, done_until = 0.0, 0.0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at = Event.now

    def query(self) -> bool:
        return self.at <= Event.done_until

    def elapsed_time(self, end: "Event") -> float:
        return end.at - self.at


def test_on_a_gpu_its_events_are_read_when_they_are_past(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(Event, "now", 0.0)
    monkeypatch.setattr(Event, "done_until", 0.0)
    loop = SimpleNamespace(waited_for_data=0.0)
    trainer: Any = SimpleNamespace(fit_loop=SimpleNamespace(epoch_loop=loop), world_size=1)
    batch = step_time._Batch(trainer, SimpleNamespace(device=torch.device("cuda"), parameters=list), print)  # pyright: ignore
    loop.waited_for_data = 0.002  # seconds, of the four milliseconds in which the device had nothing to do
    for part, now in (("forward", 4), ("backward", 14), ("rest", 34), ("optimizer", 35), ("rest", 40), ("end", 42)):
        Event.now = now
        batch.begin(part)
    assert not batch.is_over()
    Event.done_until = 42
    assert batch.is_over()
    expected = {"data": 2, "forward": 10, "backward": 20, "communication": 0, "optimizer": 5, "rest": 5}
    assert {part: 1000 * seconds for part, seconds in batch.seconds().items()} == pytest.approx(expected)
