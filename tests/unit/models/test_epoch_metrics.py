"""Metrics that are no means over samples, and what `measure` may return."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import last, prepared
from omegaconf import OmegaConf
from sklearn.metrics import f1_score, roc_auc_score
from torch import Tensor
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryAccuracy, MulticlassF1Score

from lockstep.build import build
from lockstep.config.checks import check
from lockstep.config.plan import Plan
from lockstep.errors import ConfigError
from lockstep.models import Classifier
from lockstep.models.epoch_metrics import EpochMetrics
from lockstep.models.from_checkpoint import load_model

CLASSIFICATION = "torchmetrics.classification"
F1 = f"+model.torchmetrics.f1._target_={CLASSIFICATION}.MulticlassF1Score"  # the number of classes comes from the data
AUROC = f"+model.torchmetrics.auroc._target_={CLASSIFICATION}.MulticlassAUROC"


def test_a_run_logs_them_and_its_best_checkpoint_can_be_chosen_by_one(tmp_path: Path) -> None:
    options = ("trainer.max_epochs=2", F1, AUROC, "optimized_metric=val/f1", "datamodule.val_fraction=0.4")
    datamodule, model, trainer = prepared(tmp_path, *options)
    trainer.fit(model, datamodule)
    val = datamodule.splits.val
    model = load_model(tmp_path / "checkpoints" / "last.ckpt")
    scores = model.predict(val.inputs)
    metrics = last(tmp_path)["metrics"]
    assert metrics["val/f1"] == pytest.approx(f1_score(val.targets, scores.argmax(dim=1), average="macro"), rel=1e-6)
    assert metrics["val/auroc"] == pytest.approx(roc_auc_score(val.targets, scores, multi_class="ovr"), rel=1e-6)
    assert "train/f1" not in metrics
    trainer.test(model, datamodule, verbose=False)
    assert {"test/f1", "test/auroc"} <= model.results.keys()


@pytest.mark.parametrize("metric", ["val/f1", "test/f1"])
def test_they_are_declared_for_evaluation(metric: str, shipped: Any) -> None:
    shipped.model.torchmetrics = {"f1": {"_target_": f"{CLASSIFICATION}.MulticlassF1Score"}}
    shipped.optimized_metric = metric
    check(shipped)
    shipped.optimized_metric = "train/f1"
    with pytest.raises(ConfigError, match=r"^optimized_metric=train/f1: the model declares .* val/f1, test/f1; use one of"):
        check(shipped)


@pytest.mark.parametrize("value", ["f1", ["f1"], {"f1": "macro"}, {"f1": {"average": "macro"}}])
def test_a_value_that_names_no_metrics_is_refused(value: Any, shipped: Any) -> None:
    shipped.model.torchmetrics = OmegaConf.create(value) if not isinstance(value, str) else value
    with pytest.raises(ConfigError, match=r"^model.torchmetrics(\.f1)?=.*: use (\{NAME: |a group with a _target_)"):
        build(shipped, Plan.from_config(shipped))


def test_a_metric_of_several_numbers_is_refused() -> None:
    metrics = EpochMetrics({"f1": MulticlassF1Score(3, average=None)})
    metrics.update(torch.eye(3), torch.arange(3))
    line = r"^model.torchmetrics.f1=MulticlassF1Score: gives shape \(3,\); use one number$"
    with pytest.raises(ConfigError, match=line):
        metrics.compute()
    with pytest.raises(ConfigError, match=r"^model.torchmetrics.all=MetricCollection: use a torchmetrics.Metric$"):
        EpochMetrics({"all": MetricCollection([BinaryAccuracy()])})  # pyright: ignore[reportArgumentType]


def test_a_name_has_one_meaning(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^model.torchmetrics=\['acc'\]: use a name that model.metrics has not$"):
        prepared(tmp_path, F1.replace(".f1.", ".acc."))


class WithMargin(Classifier):
    """A subclass that measures one more thing of each sample."""

    def measure(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        best = outputs.topk(2, dim=1).values
        return super().measure(outputs, targets) | {"margin": best[:, 0] - best[:, 1]}


def test_a_subclass_names_what_it_measures(tmp_path: Path) -> None:
    options = (f"model._target_={__name__}.WithMargin", "trainer.max_epochs=1")
    datamodule, model, trainer = prepared(tmp_path, *options, "model.metrics=[loss,acc,margin]")
    trainer.fit(model, datamodule)
    assert {"train/margin", "val/margin"} <= model.results.keys()
    datamodule, model, trainer = prepared(tmp_path / "other", *options, "model.metrics=[loss,acc,marign]")
    with pytest.raises(ConfigError, match=r"^model.metrics=marign: use what measure returns: loss, acc, margin$"):
        trainer.fit(model, datamodule)


class MeansOfABatch(Classifier):
    """Its loss is the batch's mean, as a loss is in code that knows of no samples; `wrong` says how."""

    wrong = staticmethod(torch.Tensor.mean)

    def measure(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        values = super().measure(outputs, targets)
        return values | {"loss": self.wrong(values["loss"])}


@pytest.mark.parametrize(
    ("wrong", "shape"),
    [
        (torch.Tensor.mean, "()"),
        (lambda loss: loss.mean().reshape(1), "(1,)"),
        (lambda loss: torch.stack([loss, loss], dim=1), "(50, 2)"),
    ],
)
def test_what_is_no_value_per_sample_is_refused_before_a_step(
    wrong: Any, shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MeansOfABatch, "wrong", staticmethod(wrong))
    datamodule, model, trainer = prepared(tmp_path, f"model._target_={__name__}.MeansOfABatch", "datamodule.batch_size=50")
    line = f"MeansOfABatch.measure: loss has the shape {shape}; use (50,), one value per sample"
    with pytest.raises(ConfigError, match=f"^{re.escape(line)}$"):
        trainer.fit(model, datamodule)
    assert trainer.global_step == 0
