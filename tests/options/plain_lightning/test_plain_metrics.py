"""The metrics that runs of code which knows nothing of Lockstep are compared by."""

from pathlib import Path
from typing import Any

import pytest
import torch
from plain_lightning import DigitsData, LitClassifier
from test_plain_lightning import fitted
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader

from lockstep.errors import ConfigError

LOGS = "the model logs train_acc, train_loss, train_loss_epoch, train_loss_step, val_acc, "


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (
            ["optimized_metric=val/acc"],
            rf"optimized_metric=val/acc: {LOGS}val_loss before its first optimizer step; use one of these, .*or null",
        ),
        (
            ["callbacks.best_checkpoint.monitor=val_loss_x"],
            r"callbacks\.best_checkpoint\.monitor=val_loss_x: the model logs ",
        ),
        (["model._target_=test_plain_metrics.Silent"], "optimized_metric=val_acc: the model logs nothing before its first "),
    ],
)
def test_a_metric_that_is_not_logged_is_refused_before_the_first_step(overrides: list[str], line: str, tmp_path: Path) -> None:
    steps: list[int] = []
    hook = register_optimizer_step_post_hook(lambda *_: steps.append(1))
    with pytest.raises(ConfigError, match=f"^{line}"):
        fitted(tmp_path, *overrides)
    hook.remove()
    assert steps == []


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


class NamesTheStage(LitClassifier):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("sanity_check_acc" if self.trainer.sanity_checking else "val_acc", 1.0)


def test_a_metric_of_another_name_in_the_sanity_check_is_refused_with_the_key_that_leaves_it_out(tmp_path: Path) -> None:
    own = "model._target_=test_plain_metrics.NamesTheStage"
    with pytest.raises(ConfigError, match=r"If only the sanity check does not log \w+, use trainer\.num_sanity_val_steps=0$"):
        fitted(tmp_path / "refused", own)
    trainer = fitted(
        tmp_path / "run", own, "trainer.num_sanity_val_steps=0", "trainer.max_epochs=1", "trainer.limit_train_batches=1"
    )
    assert trainer.callback_metrics["val_acc"] == 1


class OtherNamespace(nn.Module):
    """As a LightningModule of pytorch_lightning, which is no LightningModule of lightning.pytorch."""

    def __init__(self, hidden: int, lr: float) -> None:
        super().__init__()


def test_a_module_of_the_other_namespace_is_refused_with_the_import_that_it_needs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^model\._target_=.*, not of pytorch_lightning: import lightning\.pytorch as pl$"):
        fitted(tmp_path, "model._target_=test_plain_metrics.OtherNamespace")
