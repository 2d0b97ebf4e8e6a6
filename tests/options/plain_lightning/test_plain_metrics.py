"""The metrics that runs of code which knows nothing of Lockstep are compared by."""

from pathlib import Path
from typing import Any

import pytest
import torch
from plain_lightning import DigitsData, LitClassifier
from test_plain_lightning import fitted
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader

from lockstep.errors import ConfigError

LOGS = "the model logs train_acc, train_acc_epoch, train_acc_step, train_loss, train_loss_epoch, train_loss_step, val_acc, "


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (
            ["optimized_metric=val/acc"],
            rf"optimized_metric=val/acc: {LOGS}val_loss up to its first optimizer step; use .*, or null",
        ),
        (
            ["callbacks.best_checkpoint.monitor=val_loss_x"],
            r"callbacks\.best_checkpoint\.monitor=val_loss_x: the model logs ",
        ),
        (["model._target_=test_plain_metrics.Silent"], "optimized_metric=val_acc: the model logs nothing up to its first "),
    ],
)
def test_a_metric_that_is_not_logged_is_refused_before_the_first_step(overrides: list[str], line: str, tmp_path: Path) -> None:
    steps: list[int] = []
    hook = register_optimizer_step_post_hook(lambda *_: steps.append(1))
    with pytest.raises(ConfigError, match=f"^{line}"):
        fitted(tmp_path, *overrides)
    hook.remove()
    assert steps == []


@pytest.mark.parametrize("metric", ["train_loss", "test_acc"])
def test_a_metric_that_is_logged_in_training_or_in_the_test_is_accepted(metric: str, tmp_path: Path) -> None:
    monitor = ["callbacks.best_checkpoint=null"]
    trainer = fitted(tmp_path, f"optimized_metric={metric}", "trainer.max_epochs=1", *monitor)
    assert trainer.global_step == 14


class Silent(LitClassifier):
    def log(self, *_: Any, **__: Any) -> None:
        pass


class TwoValidations(DigitsData):
    def val_dataloader(self) -> Any:
        return [super().val_dataloader(), DataLoader(self.train, 200)]


class LogsOfTwo(LitClassifier):
    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        value = torch.tensor(float(dataloader_idx))
        self.log("val_acc", value)
        self.log(f"val_of_{dataloader_idx}", value, add_dataloader_idx=False)


def test_a_metric_of_one_of_several_validation_loaders_is_accepted(tmp_path: Path) -> None:
    metric = "val_acc/dataloader_idx_1"
    several = ("model._target_=test_plain_metrics.LogsOfTwo", "datamodule._target_=test_plain_metrics.TwoValidations")
    trainer = fitted(tmp_path / "run", *several, f"optimized_metric={metric}", "trainer.max_epochs=1", "test=false")
    assert trainer.callback_metrics[metric] == 1
    with pytest.raises(ConfigError, match=r"^optimized_metric=val_acc: the model logs .*, val_acc/dataloader_idx_0, val_acc/"):
        fitted(tmp_path / "other", *several, "trainer.max_epochs=1", "test=false")
