"""N processes compute what one does: gradients, BatchNorm and metrics, with real gloo groups and exact numbers."""

from typing import Any

import pytest
import torch
from ranks import in_ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torchmetrics.classification import MulticlassAUROC, MulticlassCalibrationError, MulticlassF1Score

from lockstep.datamodules import Batches, InMemory
from lockstep.datamodules.samplers import EvalSampler, TrainSampler
from lockstep.models.epoch_metrics import EpochMetrics
from lockstep.models.sample_mean import SampleMean
from lockstep.trainer.batchnorm import AllReduceBatchNorm, SyncBatchNorm

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=(2, 3, 4))
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank of a group has found: one group per world size for all tests of this file."""
    return in_ranks(request.param, check_all, tmp_path_factory.mktemp("ranks"))


def check_all(rank: int, world_size: int) -> dict[str, Any]:
    return {
        "gradients": check_gradients(rank, world_size),
        "batchnorm": check_batchnorm(rank, world_size),
        "means": check_sample_mean(rank, world_size),
        "metrics": check_epoch_metrics(rank, world_size),
    }


def gradients_of_an_epoch(rank: int, world_size: int, length: int, batch_size: int, accumulate: int) -> list[float]:
    """One weight w = 2, losses (w x - y)^2 / 2 with x = 1, 2, ..., y = x: the gradient of sample x is (w - 1) x x = x^2."""
    x = torch.arange(1, length + 1, dtype=torch.float64)
    data = Batches(InMemory(x[:, None], x[:, None]))
    sampler = TrainSampler(length, batch_size, rank, world_size, accumulate, shuffle=False, drop_last=False)
    net = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(net.weight, 2.0)
    model = DistributedDataParallel(net)
    gradients: list[float] = []
    for number, draw in enumerate(sampler, start=1):
        batch = data[draw]
        losses = (model(batch.inputs) - batch.targets).square().sum(dim=1) / 2
        (losses.sum() * batch.loss_weight / accumulate).backward()
        if number % accumulate == 0 or number == len(sampler):
            assert net.weight.grad is not None
            gradients.append(net.weight.grad.item())
            net.zero_grad()
    return gradients


def check_gradients(rank: int, world_size: int) -> dict[str, list[float]]:
    return {
        "tail": gradients_of_an_epoch(rank, world_size, length=7, batch_size=12 // world_size // 3, accumulate=1),
        "accumulated": gradients_of_an_epoch(rank, world_size, length=14, batch_size=1, accumulate=12 // world_size),
    }


def test_gradients_are_those_of_the_mean_over_the_global_batch(found: list[dict[str, Any]]) -> None:
    world_size = len(found)
    for rank in found:
        size = 12 // world_size // 3 * world_size  # 4 on 2 and 4 ranks, 3 on 3
        # the mean of x^2 over each slice of the order; the last has 3 samples of 4, or 1 of 3: two ranks have none
        by_hand = {4: [(1 + 4 + 9 + 16) / 4, (25 + 36 + 49) / 3], 3: [(1 + 4 + 9) / 3, (16 + 25 + 36) / 3, 49.0]}[size]
        assert rank["gradients"]["tail"] == pytest.approx(by_hand, rel=1e-15)
        # 12 samples at once, then two: sum of squares to 12 is 650, and (13^2 + 14^2) / 2 = 182.5
        assert rank["gradients"]["accumulated"] == pytest.approx([650 / 12, 182.5], rel=1e-15)


def pictures(channels: int = 3) -> Tensor:
    return torch.randn(11, channels, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3 + 1


def through_batchnorm(layer: nn.Module, x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Output, and gradient of the input under a loss that weighs every output differently."""
    x = x.clone().requires_grad_()
    y = layer(x)
    (y * weights).sum().backward()
    assert x.grad is not None
    return y.detach(), x.grad


def check_batchnorm(rank: int, world_size: int) -> dict[str, Any]:
    x = pictures()
    weights = torch.arange(x.numel(), dtype=torch.float64).reshape(x.shape).sin()
    # all samples to the first ranks, unevenly; the last rank has none
    counts = [11 - 3 * (world_size - 2), *[3] * (world_size - 2), 0]
    mine = slice(sum(counts[:rank]), sum(counts[: rank + 1]))
    layer = AllReduceBatchNorm(nn.BatchNorm2d(3).double())
    output, gradient = through_batchnorm(layer, x[mine], weights[mine])
    weight_gradient = layer.weight.grad
    torch.distributed.all_reduce(weight_gradient)
    return {
        "output": output,
        "gradient": gradient,
        "weight_gradient": weight_gradient,
        "mean": layer.running_mean,
        "variance": layer.running_var,
    }


def test_batchnorm_over_ranks_is_batchnorm_over_the_batch(found: list[dict[str, Any]]) -> None:
    x = pictures()
    layer = nn.BatchNorm2d(3).double()
    output, gradient = through_batchnorm(layer, x, torch.arange(x.numel(), dtype=torch.float64).reshape(x.shape).sin())
    ranks = [rank["batchnorm"] for rank in found]
    close = {"rtol": 1e-12, "atol": 1e-12}
    torch.testing.assert_close(torch.cat([rank["output"] for rank in ranks]), output, **close)
    torch.testing.assert_close(torch.cat([rank["gradient"] for rank in ranks]), gradient, **close)
    for rank in ranks:
        torch.testing.assert_close(rank["weight_gradient"], layer.weight.grad, **close)
        torch.testing.assert_close(rank["mean"], layer.running_mean, **close)
        torch.testing.assert_close(rank["variance"], layer.running_var, **close)


def test_synchronised_batchnorm_goes_in_and_out_of_a_model() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Sequential(nn.BatchNorm2d(4)))
    keys, weight = list(model.state_dict()), model[1].weight
    plugin = SyncBatchNorm("cpu")
    synced = plugin.apply(model)
    assert [type(module).__name__ for module in synced.modules()].count("AllReduceBatchNorm") == 2
    assert list(synced.state_dict()) == keys
    synced[1].running_mean.fill_(5.0)
    restored = plugin.revert(synced)
    assert type(restored[1]) is nn.BatchNorm2d
    assert restored[1].weight is weight
    assert restored[1].running_mean.tolist() == [5.0] * 4


def values(length: int) -> Tensor:
    return torch.arange(1, length + 1, dtype=torch.float64).square() / 7


def check_sample_mean(rank: int, world_size: int) -> dict[int, tuple[float, int, int]]:
    """For lengths 1 to 13: the mean over all samples, their count, and the number of batches of this rank."""
    found = {}
    for length in range(1, 14):
        data = Batches(InMemory(values(length), values(length)))
        sampler = EvalSampler(length, 2, rank, world_size)
        means = SampleMean(["loss"])
        for draw in sampler:
            means.update({"loss": data[draw].inputs})
        mean = means.compute()["loss"].item()
        with means.sync_context():
            found[length] = (mean, int(means.count), len(sampler))
    return found


def test_metrics_count_every_sample_once_at_any_length(found: list[dict[str, Any]]) -> None:
    for rank in found:
        for length, (mean, count, batches) in rank["means"].items():
            assert mean == pytest.approx(values(length).mean().item(), rel=1e-15)
            assert count == length
            assert batches == -(-length // (2 * len(found)))


def check_epoch_metrics(rank: int, world_size: int) -> dict[int, dict[str, float]]:
    """For lengths 3 to 13, a metric that adds up counts and two that keep every sample; of 3 samples, rank 3 has none."""
    scores = torch.rand(13, 3, generator=torch.Generator().manual_seed(0)).softmax(dim=1)
    metrics = EpochMetrics({"f1": MulticlassF1Score(3), "auroc": MulticlassAUROC(3), "ece": MulticlassCalibrationError(3)})
    found = {}
    for length in range(3, 14):
        for draw in EvalSampler(length, 2, rank, world_size):
            metrics.update(scores[draw.ids], draw.ids % 3)
        found[length] = {name: float(value) for name, value in metrics.compute().items()}
        metrics.reset()
    return found


def test_other_metrics_are_those_of_one_process_at_any_length(found: list[dict[str, Any]]) -> None:
    alone = check_epoch_metrics(0, 1)
    for rank in found:
        for length, values in rank["metrics"].items():
            assert values == pytest.approx(alone[length], rel=1e-6)
