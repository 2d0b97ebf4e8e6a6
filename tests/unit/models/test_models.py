"""Losses and metrics, against numbers worked out by hand."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lockstep.datamodules import DataSpec
from lockstep.errors import ConfigError
from lockstep.models import Classifier, Regressor
from lockstep.models.schedules import constant
from lockstep.nets import CNN


def parts(net: nn.Module, shape: tuple[int, ...], num_outputs: int, metrics: Sequence[str], **options: Any) -> dict[str, Any]:
    optimizer, schedule = partial(torch.optim.SGD, lr=0.1), constant
    spec = DataSpec(shape, num_outputs)
    return {"net": net, "spec": spec, "optimizer": optimizer, "lr_scheduler": schedule, "metrics": metrics, **options}


def classifier(metrics: Sequence[str] = ("loss", "acc"), classes: int = 3, **options: Any) -> Classifier:
    """Its outputs are its inputs, vectors of `classes` logits."""
    return Classifier(**parts(nn.Identity(), (classes,), classes, metrics, **options))


def regressor(metrics: Sequence[str] = ("loss", "mae"), outputs: int = 2) -> Regressor:
    return Regressor(**parts(nn.Identity(), (outputs,), outputs, metrics))


def measured(model: Any, outputs: Tensor, targets: Tensor, stage: str = "training") -> dict[str, Any]:
    """Return the values that a step logs, by their names without the stage, and its loss."""
    logged: dict[str, Any] = {}
    model.log = lambda name, value, **_: logged.update({name.partition("/")[2]: value})
    result = getattr(model.double(), f"{stage}_step")((outputs, targets), 0)
    return logged | ({"loss": result} if stage == "training" else {})


def each(model: Any, outputs: Tensor, targets: Tensor, name: str) -> list[float]:
    return [measured(model, outputs[[i]], targets[[i]])[name].item() for i in range(len(outputs))]


def test_cross_entropy_and_accuracy_by_hand() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0], [math.log(2), 0.0, 0.0], [0.0, math.log(2), math.log(5)]], dtype=torch.float64)
    model, targets = classifier(), torch.tensor([2, 0, 0])
    # -log of the probability of the class: 1/3; 2/(2+1+1) = 1/2; 1/(1+2+5) = 1/8
    assert each(model, logits, targets, "loss") == pytest.approx([math.log(3), math.log(2), math.log(8)], rel=1e-12)
    assert each(model, logits, targets, "acc") == [0, 1, 0]  # the first logit is largest, of three equal ones too
    whole = measured(model, logits, targets)
    assert float(whole["loss"]) == pytest.approx(math.log(48) / 3, rel=1e-12)
    assert float(whole["acc"]) == pytest.approx(1 / 3, rel=1e-12)
    assert set(measured(classifier(["loss"]), logits, targets)) == {"loss"}


def test_a_target_that_is_none_is_not_hit() -> None:
    model, logits, targets = classifier(), torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([-100])  # torch's ignore_index
    assert each(model, logits, targets, "acc") == each(model, logits, targets, "loss") == [0]


def test_label_smoothing_by_hand() -> None:
    """With smoothing 0.3 over 3 classes the class counts 0.8, the others 0.1 each; probabilities are 1/2, 1/4, 1/4."""
    logits = torch.tensor([[math.log(2), 0.0, 0.0]], dtype=torch.float64)
    values = measured(classifier(label_smoothing=0.3), logits, torch.tensor([0]))
    assert float(values["loss"]) == pytest.approx(0.8 * math.log(2) + 0.2 * math.log(4), rel=1e-12)


def test_a_metric_a_classifier_does_not_know_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^model.metrics=f1: Classifier measures loss, acc$"):
        classifier(["loss", "f1"])


def test_a_classifier_predicts_probabilities() -> None:
    model = classifier()
    model.train()
    probabilities = model.predict(torch.tensor([[math.log(2), 0.0, 0.0], [0.0, 0.0, 0.0]]))
    torch.testing.assert_close(probabilities, torch.tensor([[1 / 2, 1 / 4, 1 / 4], [1 / 3, 1 / 3, 1 / 3]]))
    assert not model.training
    assert not probabilities.requires_grad


def test_squared_and_absolute_error_by_hand() -> None:
    outputs, targets = torch.tensor([[1.0, 2.0], [0.0, 0.0]], requires_grad=True), torch.tensor([[4.0, 6.0], [0.0, 1.0]])
    assert each(regressor(), outputs, targets, "loss") == [12.5, 0.5]  # (9 + 16) / 2, (0 + 1) / 2
    assert each(regressor(), outputs, targets, "mae") == [3.5, 0.5]  # (3 + 4) / 2, (0 + 1) / 2
    values = measured(regressor(), outputs, targets)
    assert values["loss"].requires_grad
    assert not values["mae"].requires_grad


@pytest.mark.parametrize("n", [1, 4])
def test_targets_of_one_output_may_be_flat(n: int) -> None:
    """Broadcasting would make n * n errors of (n, 1) and (n,)."""
    outputs = torch.arange(n, dtype=torch.float32)[:, None]
    assert each(regressor(outputs=1), outputs, torch.ones(n), "loss") == [float((i - 1) ** 2) for i in range(n)]


@pytest.mark.parametrize(("outputs", "targets"), [((4, 2), (4, 4)), ((4, 2), (4,)), ((4, 2), (4, 1))])
def test_targets_of_another_shape_are_refused(outputs: tuple[int, ...], targets: tuple[int, ...]) -> None:
    with pytest.raises(RuntimeError, match="invalid for input of size"):
        measured(regressor(), torch.zeros(outputs), torch.zeros(targets))


def test_class_numbers_are_integers_of_any_kind() -> None:
    logits, targets = torch.tensor([[0.0, 1.0, 2.0]]), torch.tensor([1])
    wanted, *others = (measured(classifier(), logits, targets.to(kind)) for kind in (torch.int64, torch.int32, torch.uint8))
    assert all(values == wanted for values in others)


def test_channels_last_changes_the_layout_not_the_numbers() -> None:
    spec_shape = (3, 8, 8)
    torch.manual_seed(0)
    model = Classifier(**parts(CNN(spec_shape, 3, width=4), spec_shape, 3, ["loss"])).eval()
    torch.manual_seed(0)
    other = Classifier(**parts(CNN(spec_shape, 3, width=4), spec_shape, 3, ["loss"], channels_last=True)).eval()
    images = torch.rand(2, *spec_shape)
    torch.testing.assert_close(other(images), model(images))
    assert all(p.is_contiguous(memory_format=torch.channels_last) for p in other.net.parameters() if p.ndim == 4)
