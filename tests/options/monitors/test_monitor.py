"""A callback that looks never ends a run: what it raises is said once, in one line, and it looks no more."""

import logging
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from in_process import BARE, become_rank, prepared
from lightning import Callback, Trainer
from ranks import in_ranks

from lockstep.callbacks.equivalence import EquivalenceReport
from lockstep.callbacks.monitors import LearningRate, Monitor, Pictures, Progress, Throughput, watched
from lockstep.callbacks.noise_scale import NoiseScale
from lockstep.errors import ConfigError
from lockstep.trainer.profilers import TorchProfiler


class Looks(Monitor, Callback):
    """Fails in its second batch, within the backward pass, and in what it is asked for at last."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.is_released = False

    @watched
    def see(self, gradient: Any) -> None:
        if len(self.seen) == 2:
            raise RuntimeError("nothing to\nbe seen")

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        next(pl_module.parameters()).register_hook(self.see)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.seen.append(batch_idx)

    def release(self) -> None:
        self.is_released = True

    def facts(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def state_dict(self) -> dict[str, Any]:
        raise KeyError("state")


class Refuses(Monitor, Callback):
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        raise ConfigError("key=value: use another")


def fit(folder: Path, monitor: Callback) -> Trainer:
    few = ("trainer.max_epochs=1", "trainer.limit_train_batches=5", "trainer.limit_val_batches=0")
    datamodule, model, trainer = prepared(folder, *few, "optimized_metric=train/loss", base=BARE, extra=[monitor])
    trainer.fit(model, datamodule)
    return trainer


def test_what_fails_is_said_once_and_switched_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    looks = Looks()
    with caplog.at_level(logging.WARNING, logger="lockstep.callbacks.monitors"):
        trainer = fit(tmp_path, looks)
        assert not looks.state_dict()
    assert trainer.global_step == 5
    assert looks.is_off
    assert looks.is_released
    assert looks.facts() == {"seen": [0, 1]}
    said = "Looks is switched off for the rest of the run: see: RuntimeError: nothing to be seen"
    assert [record.message for record in caplog.records] == [said]


def test_a_refusal_of_the_config_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        fit(tmp_path, Refuses())


@pytest.mark.parametrize(
    "kind",
    [EquivalenceReport, LearningRate, NoiseScale, Pictures, Progress, Throughput, TorchProfiler],
    ids=lambda kind: kind.__name__,
)
def test_what_looks_is_watched_in_all_its_hooks(kind: type) -> None:
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
