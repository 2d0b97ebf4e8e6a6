"""N processes compute what one does: gradients, BatchNorm and metrics, with real gloo groups and exact numbers."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import in_ranks
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torchmetrics.classification import MulticlassAUROC, MulticlassCalibrationError, MulticlassF1Score

from lockstep.datamodules import Batches, InMemory
from lockstep.datamodules.base import DataSpec
from lockstep.datamodules.samplers import EvalSampler, TrainSampler
from lockstep.models import Classifier
from lockstep.models.epoch_metrics import EpochMetrics
from lockstep.models.sample_mean import SampleMean
from lockstep.trainer.batchnorm import synchronise_batchnorm


@pytest.fixture(scope="module", params=(2, 3))
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank of a group has measured: one group per world size for all tests of this file."""
    return in_ranks(request.param, check_all, tmp_path_factory.mktemp("ranks"))


def check_all(rank: int, world_size: int) -> dict[str, Any]:
    return {
        "gradients": check_gradients(rank, world_size),
        "batchnorm": check_batchnorm(rank, world_size),
        "nothing": check_nothing(rank, world_size),
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


def test_gradients_are_those_of_the_mean_over_the_global_batch(results: list[dict[str, Any]]) -> None:
    world_size = len(results)
    for rank in results:
        size = 12 // world_size // 3 * world_size  # 4 on 2 ranks, 3 on 3
        # the mean of x^2 over each slice of the order; the last has 3 samples of 4, or 1 of 3: two ranks have none
        by_hand = {4: [(1 + 4 + 9 + 16) / 4, (25 + 36 + 49) / 3], 3: [(1 + 4 + 9) / 3, (16 + 25 + 36) / 3, 49.0]}[size]
        assert rank["gradients"]["tail"] == pytest.approx(by_hand, rel=1e-15)
        # 12 samples at once, then two: sum of squares to 12 is 650, and (13^2 + 14^2) / 2 = 182.5
        assert rank["gradients"]["accumulated"] == pytest.approx([650 / 12, 182.5], rel=1e-15)


def pictures(channels: int = 3) -> Tensor:
    return torch.randn(11, channels, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3 + 1


class Activated(nn.BatchNorm2d):
    """A layer that is more than a norm, and computes it by itself, as timm's BatchNormAct2d does."""

    def forward(self, input: Tensor) -> Tensor:
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += self.training
        statistics = (self.running_mean, self.running_var, self.weight, self.bias)
        return functional.batch_norm(input, *statistics, self.training, 0.3, self.eps).relu_()


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "plain": lambda: nn.BatchNorm2d(3),
    "a mean of all batches": lambda: nn.BatchNorm2d(3, momentum=None, affine=False),
    "a subclass": lambda: Activated(3),
    "used twice, under two names": lambda: nn.Sequential(*[nn.BatchNorm2d(3)] * 2),
    "nothing tracked": lambda: nn.BatchNorm2d(3, track_running_stats=False),
    "nothing tracked, evaluated": lambda: nn.BatchNorm2d(3, track_running_stats=False).eval(),
    "torch's": lambda: nn.SyncBatchNorm(3),
}


def through(layer: nn.Module, x: Tensor, weights: Tensor) -> dict[str, Any]:
    """Output, gradients under a loss that weighs every output differently, and running statistics."""
    x = x.clone().requires_grad_()
    y = layer(x)
    (y * weights).sum().backward()
    return {
        "output": y.detach(),
        "gradient": x.grad,
        "gradients": [parameter.grad for parameter in layer.parameters()],
        "buffers": list(layer.buffers()),
    }


def check_batchnorm(rank: int, world_size: int) -> dict[str, Any]:
    """All samples to the first ranks, unevenly; the last rank has none."""
    counts = [11 - 3 * (world_size - 2), *[3] * (world_size - 2), 0]
    mine = slice(sum(counts[:rank]), sum(counts[: rank + 1]))
    results = {}
    for name, make in LAYERS.items():
        layer = make().double()
        synchronise_batchnorm(layer)
        with torch.profiler.profile() as profile:
            results[name] = through(layer, pictures()[mine], slopes()[mine])
        results[name]["exchanges"] = sum(event.name.startswith("c10d::") for event in profile.events() or [])
        for gradient in results[name]["gradients"]:
            dist.all_reduce(gradient)
    return results


def slopes() -> Tensor:
    x = pictures()
    return torch.arange(x.numel(), dtype=torch.float64).reshape(x.shape).sin()


@pytest.mark.parametrize("name", LAYERS)
def test_batchnorm_over_ranks_is_batchnorm_over_the_batch(name: str, results: list[dict[str, Any]]) -> None:
    expected = through(LAYERS[name]().double(), pictures(), slopes())
    ranks = [rank["batchnorm"][name] for rank in results]
    close = {"rtol": 1e-12, "atol": 1e-12}
    for what in ("output", "gradient"):
        torch.testing.assert_close(torch.cat([rank[what] for rank in ranks]), expected[what], **close)
    for rank in ranks:
        torch.testing.assert_close(rank["gradients"], expected["gradients"], **close)
        torch.testing.assert_close(rank["buffers"], expected["buffers"], **close)
        torch.testing.assert_close(rank["buffers"], ranks[0]["buffers"], rtol=0, atol=0)  # DDP does not send them
        passes = 2 if "twice" in name else 1
        assert rank["exchanges"] == 2 * passes  # one forward, one backward: on CPUs each takes a millisecond


def test_a_synchronised_layer_stays_what_it_is() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), Activated(4), nn.Sequential(nn.BatchNorm2d(4)))
    keys, parameters = list(model.state_dict()), list(model.parameters())
    for _ in range(2):  # twice changes no more than once
        synchronise_batchnorm(model)
    assert isinstance(model[1], Activated)
    assert (list(model.state_dict()), list(map(id, model.parameters()))) == (keys, list(map(id, parameters)))
    x = torch.randn(5, 3, 6, 6)
    torch.testing.assert_close(model(x), copy.deepcopy(model)(x))  # alone it computes as ever


class Flattens(nn.Module):
    """A net that can't be run on nothing: what is -1 is not known then."""

    def forward(self, x: Tensor) -> Tensor:
        return x.view(x.size(0), -1)


def small_task() -> Classifier:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), Flattens(), nn.LazyLinear(5), nn.LazyBatchNorm1d())
    parts: Any = {"optimizer": None, "lr_scheduler": None}
    spec = DataSpec((3, 4, 4), 5)
    return Classifier(net=nn.Sequential(*net, nn.Linear(5, 5)), spec=spec, metrics=["loss"], **parts).double()


def compute_losses(model: nn.Module, task: Classifier, mine: slice) -> dict[str, Any]:
    """Gradients of the sum of the losses, and BatchNorm's statistics."""
    losses = task.measure(model(pictures()[mine]), torch.arange(11)[mine] % 5)["loss"]
    losses.sum().backward()
    return {"losses": losses.detach(), "gradients": [p.grad for p in task.parameters()], "buffers": list(task.net.buffers())}


def check_nothing(rank: int, world_size: int) -> dict[str, Any]:
    """Ranks but the first have no sample. Many small buckets: gradients are reduced in between BatchNorm's collectives."""
    task = small_task()
    synchronise_batchnorm(task)
    results = compute_losses(DistributedDataParallel(task, bucket_cap_mb=1e-4), task, slice(0, 11 if rank == 0 else 0))
    return results | {"gradients": [gradient * world_size for gradient in results["gradients"]]}


def test_a_process_without_samples_changes_nothing(results: list[dict[str, Any]]) -> None:
    task = small_task()
    expected = compute_losses(task, task, slice(None))
    assert [len(rank["nothing"]["losses"]) for rank in results] == [11] + [0] * (len(results) - 1)
    for rank in results:
        torch.testing.assert_close(rank["nothing"]["gradients"], expected["gradients"], rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(rank["nothing"]["buffers"], expected["buffers"], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(rank["nothing"]["buffers"], results[0]["nothing"]["buffers"], rtol=0, atol=0)
    assert task(pictures()[:0]).shape == (0, 5)


def values(length: int) -> Tensor:
    return torch.arange(1, length + 1, dtype=torch.float64).square() / 7


def check_sample_mean(rank: int, world_size: int) -> dict[int, tuple[float, int, int]]:
    """For lengths 1 to 13: the mean over all samples, their count, and the number of batches of this rank."""
    results = {}
    for length in range(1, 14):
        data = Batches(InMemory(values(length), values(length)))
        sampler = EvalSampler(length, 2, rank, world_size)
        means = SampleMean(["loss"])
        for draw in sampler:
            means.update({"loss": data[draw].inputs})
        mean = means.compute()["loss"].item()
        with means.sync_context():
            results[length] = (mean, int(means.count), len(sampler))
    return results


def test_metrics_count_every_sample_once_at_any_length(results: list[dict[str, Any]]) -> None:
    for rank in results:
        for length, (mean, count, batches) in rank["means"].items():
            assert mean == pytest.approx(values(length).mean().item(), rel=1e-15)
            assert count == length
            assert batches == -(-length // (2 * len(results)))


def check_epoch_metrics(rank: int, world_size: int) -> dict[int, dict[str, float]]:
    """For lengths 3 to 13, a metric that adds up counts and two that keep every sample."""
    scores = torch.rand(13, 3, generator=torch.Generator().manual_seed(0)).softmax(dim=1)
    metrics = EpochMetrics({"f1": MulticlassF1Score(3), "auroc": MulticlassAUROC(3), "ece": MulticlassCalibrationError(3)})
    results = {}
    for length in range(3, 14):
        for draw in EvalSampler(length, 2, rank, world_size):
            metrics.update(scores[draw.ids], draw.ids % 3)
        results[length] = {name: float(value) for name, value in metrics.compute().items()}
        metrics.reset()
    return results


def test_other_metrics_are_those_of_one_process_at_any_length(results: list[dict[str, Any]]) -> None:
    alone = check_epoch_metrics(0, 1)
    for rank in results:
        for length, values in rank["metrics"].items():
            assert values == pytest.approx(alone[length], rel=1e-6)
