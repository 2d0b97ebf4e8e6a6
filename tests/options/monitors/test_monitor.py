"""A callback that looks never ends a run: what it raises is said once, in one line, and it looks no more."""

import logging
from typing import Any

import pytest
import torch
from lightning import Callback, LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader
from unwatched import unwatched

from lockstep.callbacks.equivalence import EquivalenceReport
from lockstep.callbacks.monitors import LearningRate, Monitor, Pictures, Progress, Throughput, watched
from lockstep.callbacks.noise_scale import NoiseScale
from lockstep.errors import ConfigError
from lockstep.trainer.profilers import TorchProfiler

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*log_every_n_steps")


class Model(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(2, 1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.net(batch).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


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
        pl_module.net.weight.register_hook(self.see)

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


def fit(*monitors: Callback) -> Trainer:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = Trainer(max_epochs=1, accelerator="cpu", callbacks=list(monitors), **quiet)  # pyright: ignore[reportArgumentType]
    trainer.fit(Model(), DataLoader(list(torch.ones(5, 2)), batch_size=1))
    return trainer


def test_what_fails_is_said_once_and_switched_off(caplog: pytest.LogCaptureFixture) -> None:
    looks = Looks()
    with caplog.at_level(logging.WARNING, logger="lockstep.callbacks.monitors"):
        trainer = fit(looks)
        assert not looks.state_dict()
    assert trainer.global_step == 5
    assert looks.is_off
    assert looks.is_released
    assert looks.facts() == {"seen": [0, 1]}
    said = "Looks is switched off for the rest of the run: see: RuntimeError: nothing to be seen"
    assert [record.message for record in caplog.records] == [said]


def test_a_refusal_of_the_config_ends_the_run() -> None:
    with pytest.raises(ConfigError):
        fit(Refuses())


@pytest.mark.parametrize(
    "kind",
    [EquivalenceReport, LearningRate, NoiseScale, Pictures, Progress, Throughput, TorchProfiler],
    ids=lambda kind: kind.__name__,
)
def test_what_looks_is_watched_in_all_its_hooks(kind: type) -> None:
    assert unwatched(kind) == []
