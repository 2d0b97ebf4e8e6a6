"""Losses, metrics and nets, against numbers worked out by hand."""

import ast
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

import lockstep.nets
from lockstep.counter_rng import random_bits
from lockstep.datamodules import DataSpec
from lockstep.errors import ConfigError
from lockstep.models import Classifier, Regressor
from lockstep.models.preprocess import Preprocess
from lockstep.models.sample_mean import SampleMean
from lockstep.models.schedules import constant
from lockstep.nets import CNN, MLP, Dropout, resnet

NETS = Path(lockstep.nets.__file__).parent
WHEN = {"interval": "step", "frequency": 1, "monitor": None, "warmup_steps": 0, "warmup_epochs": 0}


def parts(net: nn.Module, shape: tuple[int, ...], num_outputs: int, metrics: Sequence[str], **options: Any) -> dict[str, Any]:
    optimizer, schedule = partial(torch.optim.SGD, lr=0.1), partial(constant, **WHEN)
    spec = DataSpec(shape, num_outputs)
    return {"net": net, "spec": spec, "optimizer": optimizer, "lr_scheduler": schedule, "metrics": metrics, **options}


def classifier(metrics: Sequence[str] = ("loss", "acc"), classes: int = 3, **options: Any) -> Classifier:
    """Its outputs are its inputs, vectors of `classes` logits."""
    return Classifier(**parts(nn.Identity(), (classes,), classes, metrics, **options))


def regressor(metrics: Sequence[str] = ("loss", "mae")) -> Regressor:
    return Regressor(**parts(nn.Identity(), (2,), 2, metrics))


# SampleMean


def test_a_sample_mean_is_the_mean_over_samples_in_float64() -> None:
    """In float32 the sum would stop growing at 2 ** 24; in float64 sums of multiples of 1/4 are exact."""
    values = torch.arange(1_000_000, dtype=torch.float32) / 4 + 2**20
    means = SampleMean(["loss"])
    for part in values.split(999):
        means.update({"loss": part})
    expected = numpy.asarray(values).astype(numpy.float64).mean()
    assert float(means.compute()["loss"]) == float(expected) == 2**20 + 999_999 / 8
    assert int(means.count) == 1_000_000


def test_a_sample_mean_weighs_samples_not_batches() -> None:
    means = SampleMean(["loss", "acc"])
    means.update({"loss": torch.tensor([1.0, 1.0, 1.0]), "acc": torch.tensor([True, True, True])})
    means.update({"loss": torch.tensor([5.0]), "acc": torch.tensor([False])})
    means.update({"loss": torch.empty(0), "acc": torch.empty(0, dtype=torch.bool)})  # a rank without a sample in a tail
    computed = means.compute()
    assert {name: float(value) for name, value in computed.items()} == {"loss": 2.0, "acc": 0.75}  # (3 + 5) / 4, 3 / 4
    assert all(value.dtype == torch.float64 for value in computed.values())
    assert int(means.count) == 4


def test_a_sample_mean_starts_anew_after_a_reset() -> None:
    means = SampleMean(["loss"])
    means.update({"loss": torch.tensor([10.0])})
    means.compute()
    means.reset()
    means.update({"loss": torch.tensor([1.0, 2.0])})
    assert float(means.compute()["loss"]) == 1.5
    assert int(means.count) == 2


def test_a_sample_mean_keeps_no_graph_and_stays_in_float64_in_a_half_precision_model() -> None:
    means = SampleMean(["loss"]).bfloat16()
    means.update({"loss": torch.ones(3, dtype=torch.bfloat16, requires_grad=True)})
    assert means.sums.dtype == torch.float64
    assert not means.sums.requires_grad


# Classifier


def test_cross_entropy_accuracy_and_top_k_by_hand() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0], [math.log(2), 0.0, 0.0], [0.0, math.log(2), math.log(5)]], dtype=torch.float64)
    values = classifier(["loss", "acc", "top2"]).measure(logits, torch.tensor([2, 0, 0]))
    # -log of the probability of the class: 1/3; 2/(2+1+1) = 1/2; 1/(1+2+5) = 1/8
    torch.testing.assert_close(values["loss"], torch.tensor([3.0, 2.0, 8.0], dtype=torch.float64).log())
    assert values["acc"].tolist() == [False, True, False]  # the first logit is largest, of three equal ones too
    assert values["top2"].tolist()[1:] == [True, False]  # the third sample's class is its last choice


def test_label_smoothing_by_hand() -> None:
    """With smoothing 0.3 over 3 classes the class counts 0.8, the others 0.1 each; probabilities are 1/2, 1/4, 1/4."""
    logits = torch.tensor([[math.log(2), 0.0, 0.0]], dtype=torch.float64)
    values = classifier(label_smoothing=0.3).measure(logits, torch.tensor([0]))
    assert float(values["loss"]) == pytest.approx(0.8 * math.log(2) + 0.2 * math.log(4), rel=1e-12)


@pytest.mark.parametrize(("name", "right"), [("top1", [1, 0, 0]), ("top2", [1, 1, 0]), ("top3", [1, 1, 1]), ("top5", [1, 1, 1])])
def test_top_k_of_any_k_even_above_the_number_of_classes(name: str, right: list[int]) -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0]] * 3)
    values = classifier(["loss", name]).measure(logits, torch.tensor([0, 1, 2]))
    assert values[name].int().tolist() == right


def test_only_declared_metrics_are_measured_and_only_the_loss_has_a_gradient() -> None:
    logits = torch.zeros(2, 3, requires_grad=True)
    values = classifier(["loss", "top2"]).measure(logits, torch.tensor([0, 1]))
    assert list(values) == ["loss", "top2"]
    assert values["loss"].requires_grad
    assert not values["top2"].requires_grad


def test_a_classifier_measures_an_empty_batch() -> None:
    values = classifier(["loss", "acc", "top2"]).measure(torch.empty(0, 3), torch.empty(0, dtype=torch.int64))
    assert {name: value.shape for name, value in values.items()} == {"loss": (0,), "acc": (0,), "top2": (0,)}


@pytest.mark.parametrize("name", ["f1", "top", "topk", "top-1", "accuracy", "mae"])
def test_a_metric_a_classifier_does_not_know_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^model.metrics={name}: a classifier measures loss, acc, and topK such as top5$"):
        classifier(["loss", name])


def test_a_classifier_predicts_probabilities() -> None:
    model = classifier()
    model.train()
    probabilities = model.predict(torch.tensor([[math.log(2), 0.0, 0.0], [0.0, 0.0, 0.0]]))
    torch.testing.assert_close(probabilities, torch.tensor([[1 / 2, 1 / 4, 1 / 4], [1 / 3, 1 / 3, 1 / 3]]))
    assert not model.training
    assert not probabilities.requires_grad


# Regressor


def test_squared_and_absolute_error_by_hand() -> None:
    outputs = torch.tensor([[1.0, 2.0], [0.0, 0.0]], requires_grad=True)
    values = regressor().measure(outputs, torch.tensor([[4.0, 6.0], [0.0, 1.0]]))
    assert values["loss"].tolist() == [12.5, 0.5]  # (9 + 16) / 2, (0 + 1) / 2
    assert values["mae"].tolist() == [3.5, 0.5]  # (3 + 4) / 2, (0 + 1) / 2
    assert values["loss"].requires_grad
    assert not values["mae"].requires_grad


def test_a_regressor_measures_an_empty_batch() -> None:
    values = regressor().measure(torch.empty(0, 2), torch.empty(0, 2))
    assert {name: value.shape for name, value in values.items()} == {"loss": (0,), "mae": (0,)}


def test_targets_are_cast_to_the_outputs_type() -> None:
    assert regressor().measure(torch.ones(1, 2, dtype=torch.float64), torch.ones(1, 2))["loss"].dtype == torch.float64


@pytest.mark.parametrize("n", [0, 1, 4])
def test_targets_of_one_output_may_be_flat(n: int) -> None:
    """By broadcasting, (n, 1) and (n,) would be n * n errors."""
    outputs, targets = torch.arange(n, dtype=torch.float32)[:, None], torch.ones(n)
    values = regressor().measure(outputs, targets)
    assert values["loss"].tolist() == [float((i - 1) ** 2) for i in range(n)]
    assert regressor().for_torchmetrics(outputs, targets)[1].shape == (n, 1)


@pytest.mark.parametrize(("outputs", "targets"), [((4, 1), (4, 4)), ((4, 2), (4,)), ((4, 2), (4, 1)), ((4, 1), (1, 4))])
def test_targets_of_another_shape_are_refused(outputs: tuple[int, ...], targets: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError) as refused:
        regressor().measure(torch.zeros(outputs), torch.zeros(targets))
    assert str(refused.value).startswith(f"datamodule: its targets have the shape {targets} and the model's outputs {outputs};")


@pytest.mark.parametrize("targets", [torch.zeros(2, 3), torch.zeros(2), torch.zeros(2, 1, dtype=torch.int64)])
def test_targets_that_are_no_class_numbers_are_refused(targets: Tensor) -> None:
    with pytest.raises(
        ConfigError, match=r"^datamodule: its targets have the shape .* accepted by a classifier are class numbers"
    ):
        classifier().measure(torch.zeros(2, 3), targets)


def test_a_metric_a_regressor_does_not_know_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^model.metrics=\['acc', 'r2'\]: a regressor measures loss and mae$"):
        regressor(["loss", "r2", "acc"])


def test_a_regressor_predicts_its_outputs() -> None:
    assert regressor().predict(torch.tensor([[1.0, 2.0]])).tolist() == [[1.0, 2.0]]


# Preprocess


def test_bytes_become_zero_to_one_and_floats_stay() -> None:
    preprocess = Preprocess((1, 1, 2))
    assert preprocess(torch.tensor([[[[0, 255]]]], dtype=torch.uint8)).tolist() == [[[[0.0, 1.0]]]]
    assert preprocess(torch.tensor([[[[0.25, 255.0]]]])).tolist() == [[[[0.25, 255.0]]]]
    assert preprocess(torch.ones(1, 1, 1, 2, dtype=torch.float64)).dtype == torch.float32


def test_images_are_standardised_per_channel() -> None:
    preprocess = Preprocess((2, 1, 2))
    scaler: Any = StandardScaler()
    scaler.mean_, scaler.scale_ = numpy.array([0.0, 1.0]), numpy.array([0.5, 2.0])
    preprocess.fit(scaler)
    images = torch.tensor([[[[0.0, 1.0]], [[3.0, 5.0]]]])
    assert preprocess(images).tolist() == [[[[0.0, 2.0]], [[1.0, 2.0]]]]  # (x - 0) / 0.5, (x - 1) / 2
    white = torch.full((1, 2, 1, 2), 255, dtype=torch.uint8)
    assert preprocess(white).tolist() == [[[[2.0, 2.0]], [[0.0, 0.0]]]]  # (1 - 0) / 0.5, (1 - 1) / 2


def test_vectors_are_standardised_per_feature_and_the_fit_is_saved() -> None:
    data = numpy.array([[1.0, 10.0], [3.0, 50.0]])
    preprocess = Preprocess((2,))
    preprocess.fit(StandardScaler().fit(data))
    assert preprocess(torch.tensor(data)).tolist() == [[-1.0, -1.0], [1.0, 1.0]]  # means 2 and 30, deviations 1 and 20
    again = Preprocess((2,))
    again.load_state_dict(preprocess.state_dict())
    assert again.mean.tolist() == [2.0, 30.0]
    assert again.scale.tolist() == [1.0, 20.0]


def test_bytes_use_the_type_of_the_model() -> None:
    assert Preprocess((1, 1, 1)).double()(torch.ones(1, 1, 1, 1, dtype=torch.uint8)).dtype == torch.float64


# Nets


@pytest.mark.parametrize("shape", [(10,), (1, 8, 8), (3, 5, 7)])
@pytest.mark.parametrize("hidden", [[], [16], [16, 4]])
@pytest.mark.parametrize("n", [0, 1, 5])
def test_mlp_gives_an_output_vector_a_sample(n: int, hidden: list[int], shape: tuple[int, ...]) -> None:
    assert MLP(shape, 4, hidden, dropout=0.5)(torch.zeros(n, *shape)).shape == (n, 4)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (2, 5, 9)])
@pytest.mark.parametrize("n", [0, 2, 5])
def test_cnn_gives_an_output_vector_a_sample(n: int, shape: tuple[int, int, int]) -> None:
    net = CNN(shape, 4, width=4)
    assert net.training
    assert net(torch.zeros(n, *shape)).shape == (n, 4)


@pytest.mark.parametrize(("hidden", "count"), [([256], 203_530), ([], 7_850)])
def test_the_mlp_of_the_guides_has_their_number_of_parameters(hidden: list[int], count: int) -> None:
    """784 * 256 + 256 + 256 * 10 + 10, and 784 * 10 + 10."""
    net = MLP((1, 28, 28), 10, hidden)
    assert sum(parameter.numel() for parameter in net.parameters()) == count


def test_the_cnn_has_no_bias_before_batchnorm() -> None:
    """3x3 kernels 9*1*32 + 9*32*64 + 9*64*128 = 92,448; two numbers for each of 224 channels; 128 * 10 + 10 in the head."""
    net = CNN((1, 8, 8), 10, width=32)
    assert sum(parameter.numel() for parameter in net.parameters()) == 92_448 + 448 + 1_290


def test_dropout_is_between_the_layers_and_off_in_evaluation() -> None:
    net = MLP((4,), 2, [100], dropout=0.5)
    x = torch.ones(1, 4)
    assert not torch.equal(net(x), net(x))
    net.eval()
    assert torch.equal(net(x), net(x))
    assert not isinstance(list(net.layers)[-1], nn.Dropout)


@pytest.mark.parametrize("net", [MLP((1, 8, 8), 3, [8], dropout=0.1), CNN((1, 8, 8), 3, width=4)], ids=["MLP", "CNN"])
def test_an_empty_batch_gives_every_parameter_a_gradient_of_zero(net: nn.Module) -> None:
    """DDP waits for every parameter's gradient on every rank, also on one without a sample in a tail."""
    before = {name: buffer.clone() for name, buffer in net.named_buffers()}
    losses: Tensor = nn.functional.cross_entropy(
        net(torch.zeros(0, 1, 8, 8)), torch.zeros(0, dtype=torch.int64), reduction="none"
    )
    (losses.sum() * 2.0).backward()
    for parameter in net.parameters():
        assert parameter.grad is not None
        assert not parameter.grad.any()
    for name, buffer in net.named_buffers():
        assert name.endswith("num_batches_tracked") or torch.equal(buffer, before[name])


@pytest.mark.parametrize(
    ("shape", "kernel", "stride", "pools"),
    [
        ((3, 32, 32), (3, 3), (1, 1), False),
        ((1, 28, 28), (3, 3), (1, 1), False),
        ((3, 64, 64), (3, 3), (1, 1), False),
        ((3, 65, 65), (7, 7), (2, 2), True),
        ((1, 96, 96), (7, 7), (2, 2), True),
    ],
)
def test_resnet_has_a_stem_for_the_size_of_its_images(
    shape: tuple[int, int, int], kernel: tuple[int, int], stride: tuple[int, int], pools: bool
) -> None:
    with torch.device("meta"):  # shapes without numbers
        net: Any = resnet(shape, 10, depth=18)
        outputs = net(torch.zeros(2, *shape))
    assert outputs.shape == (2, 10)
    assert (net.conv1.in_channels, net.conv1.out_channels) == (shape[0], 64)
    assert (net.conv1.kernel_size, net.conv1.stride) == (kernel, stride)
    assert net.conv1.padding == (kernel[0] // 2, kernel[0] // 2)
    assert net.conv1.bias is None
    assert isinstance(net.maxpool, nn.MaxPool2d) is pools


def test_resnet18_of_the_cifar_experiments_has_their_number_of_parameters() -> None:
    """11,181,642 of torchvision's with ten classes, with 64 * 3 * (49 - 9) fewer in the first convolution."""
    net = resnet((3, 32, 32), 10, depth=18)
    assert sum(parameter.numel() for parameter in net.parameters()) == 11_181_642 - 7_680


def test_a_resnet_of_an_unknown_depth_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^model.net.depth=20: accepted is 18, 34, 50, 101, 152$"):
        resnet((3, 32, 32), 10, depth=20)


@pytest.mark.parametrize("source", sorted(NETS.glob("*.py")), ids=lambda path: path.name)
def test_nets_know_nothing_of_lightning_or_of_distribution(source: Path) -> None:
    imported = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported |= {f"{node.module}.{alias.name}" for alias in node.names}
    unwanted = ("lightning", "pytorch_lightning", "torch.distributed", "hydra", "omegaconf")
    assert imported or source.name == "__init__.py"
    assert not [name for name in imported if name.startswith(unwanted)]


# Task


def test_channels_last_changes_the_layout_not_the_numbers() -> None:
    spec_shape = (3, 8, 8)
    torch.manual_seed(0)
    model = Classifier(**parts(CNN(spec_shape, 3, width=4), spec_shape, 3, ["loss"])).eval()
    torch.manual_seed(0)
    other = Classifier(**parts(CNN(spec_shape, 3, width=4), spec_shape, 3, ["loss"], channels_last=True)).eval()
    images = torch.rand(2, *spec_shape)
    torch.testing.assert_close(other(images), model(images))
    assert all(p.is_contiguous(memory_format=torch.channels_last) for p in other.net.parameters() if p.ndim == 4)


# Dropout


def counted_dropout(p: float, ids: Tensor, *, epoch: int = 0, layer: int = 0, elements: int = 6) -> Tensor:
    """Ones after dropout."""
    dropout = Dropout(p)
    dropout.count(random_bits(0, epoch, ids, layer))
    return dropout(torch.ones(len(ids), elements))


def test_a_sample_loses_the_same_elements_in_any_batch() -> None:
    ids = torch.arange(40)
    whole = counted_dropout(0.5, ids)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    assert torch.equal(counted_dropout(0.5, ids[order]), whole[order])
    for rank in range(3):
        assert torch.equal(counted_dropout(0.5, ids[rank::3]), whole[rank::3])
    assert not torch.equal(counted_dropout(0.5, ids, epoch=1), whole)
    assert not torch.equal(counted_dropout(0.5, ids, layer=1), whole)
    assert counted_dropout(0.5, ids[:0]).shape == (0, 6)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_keeps_the_share_it_should_and_the_mean(p: float) -> None:
    """400,000 draws: the share kept has a standard deviation of at most 0.0008."""
    kept = counted_dropout(p, torch.arange(4000), elements=100)
    assert kept.unique().tolist() == [0.0, pytest.approx(1 / (1 - p))]
    assert (kept > 0).double().mean() == pytest.approx(1 - p, abs=0.004)
    columns = (kept > 0).double().mean(0)  # each element, over the samples
    assert columns.std() == pytest.approx(math.sqrt(p * (1 - p) / 4000), rel=0.35)
    agreement = ((kept[:, :50] > 0) == (kept[:, 50:] > 0)).double().mean()  # of two elements of one sample: as of two coins
    assert agreement == pytest.approx(p * p + (1 - p) ** 2, abs=0.006)


def test_dropout_of_everything_of_nothing_and_uncounted() -> None:
    ids = torch.arange(5)
    assert counted_dropout(1.0, ids).tolist() == torch.zeros(5, 6).tolist()
    assert counted_dropout(0.0, ids).tolist() == torch.ones(5, 6).tolist()
    x = torch.randn(5, 6)
    torch.manual_seed(3)
    expected = nn.Dropout(0.5)(x)
    torch.manual_seed(3)
    assert torch.equal(Dropout(0.5)(x), expected)
    dropout = Dropout(0.5)
    dropout.count(ids)
    with pytest.raises(ValueError, match="dropout of 4 rows in a batch of 5 samples"):
        dropout(torch.ones(4, 6))
