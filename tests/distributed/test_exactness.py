"""N processes compute what one does: gradients, BatchNorm and metrics, with real gloo groups and exact numbers."""

import copy
import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from in_process import prepared
from lightning import Callback
from ranks import in_ranks
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from lockstep.runs.results import logged_numbers
from lockstep.trainer.batchnorm import synchronise_batchnorm, without_statistics


@pytest.fixture(scope="module", params=(2, 3))
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return the measurements of each rank of a group: one group per world size for all tests of this file."""
    folder = tmp_path_factory.mktemp("ranks")
    return in_ranks(request.param, partial(check_all, folder=folder), folder)


def check_all(rank: int, world_size: int, folder: Path) -> dict[str, Any]:
    trained = {name: check_training(rank, world_size, name, folder) for name in CASES}
    buffers = {name: check_buffers(world_size, name, folder) for name in BUFFERS}
    return {"batchnorm": check_batchnorm(rank, world_size), "few": check_few_values(rank)} | trained | buffers


AUROC = "+model.torchmetrics.auroc={_target_: torchmetrics.AUROC, task: multiclass, num_classes: 10}"
CLIPPED = "trainer.gradient_clip_val=0.1"


CASES: dict[str, tuple[str, ...]] = {
    "mlp": ("datamodule.global_batch_size=426", AUROC),  # a tail of one
    "cnn": ("model=cnn", "model.net.width=4", "datamodule.global_batch_size=120", "trainer.accumulate_grad_batches=4", CLIPPED),
}


def check_training(rank: int, world_size: int, name: str, folder: Path) -> dict[str, Any]:
    """Weights and metrics after two epochs in the data's own order."""
    fixed = ("trainer.precision=64-true", "trainer.max_epochs=2", "datamodule.shuffle=false", "datamodule.drop_last=false")
    fixed += ("datamodule.val_fraction=0.11", f"trainer.devices={world_size}", "logger=csv")
    fixed += ("model/optimizer=sgd", "model/lr_scheduler=cosine")
    datamodule, model, trainer = prepared(folder / f"{name}{world_size}", *fixed, *CASES[name])
    trainer.fit(model, datamodule)
    data = {name: vars(getattr(datamodule.splits, name)) for name in ("train", "val")}
    return {"weights": model.net.state_dict(), "metrics": logged_numbers(trainer)} | data


def trained_by_hand(name: str, result: dict[str, Any], folder: Path) -> tuple[dict[str, Tensor], float]:
    """The weights, and the loss of the validation, that a loop in plain torch has from the same first weights."""
    _, model, _ = prepared(folder, *CASES[name], "model/optimizer=sgd")
    net, train, val = model.net.double(), *(SimpleNamespace(**result[name]) for name in ("train", "val"))
    size, epochs = {"mlp": 426, "cnn": 120}[name], 2
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    steps, done = epochs * -(-len(train.tensors[0]) // size), 0
    for _ in range(epochs):
        for batch in range(0, len(train.tensors[0]), size):
            for group in optimizer.param_groups:
                group["lr"] = 0.05 * (1 + math.cos(math.pi * done / steps)) / 2
            optimizer.zero_grad()
            parts = slice(batch, batch + size)
            inputs, targets = train.tensors[0][parts].double(), train.tensors[1][parts]
            if name == "mlp":
                functional.cross_entropy(net(inputs), targets).backward()
            else:  # BatchNorm normalises each of the accumulated batches
                for some, classes in zip(inputs.split(size // 4), targets.split(size // 4), strict=True):
                    (functional.cross_entropy(net(some), classes, reduction="sum") / len(inputs)).backward()
                nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            optimizer.step()
            done += 1
    net.eval()
    with torch.no_grad():
        return net.state_dict(), float(functional.cross_entropy(net(val.tensors[0].double()), val.tensors[1]))


@pytest.mark.parametrize("name", CASES)
def test_any_number_of_processes_trains_as_a_loop_in_plain_torch(
    name: str, results: list[dict[str, Any]], tmp_path: Path
) -> None:
    weights, loss = trained_by_hand(name, results[0][name], tmp_path)
    alone = check_training(0, 1, name, tmp_path) if len(results) == 2 else None
    for result in [*(rank[name] for rank in results), *([alone] if alone else [])]:
        assert result["metrics"]["val/loss"] == pytest.approx(loss, rel=1e-12)
        for key, tensor in weights.items():
            torch.testing.assert_close(result["weights"][key], tensor, rtol=1e-11, atol=1e-13)
        assert result["metrics"] == pytest.approx(results[0][name]["metrics"], rel=1e-12)


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


def check_few_values(rank: int) -> list[bool]:
    """One value a channel is refused in all processes, as on one, where there is none beside it; a dummy is no value."""
    layer = nn.BatchNorm1d(3)
    synchronise_batchnorm(layer)
    with pytest.raises(ValueError, match="Expected more than 1 value per channel when training"):
        layer(torch.randn(int(rank == 0), 3))
    seen = [bool(layer(torch.randn(int(rank < 2), 3)).isfinite().all())]
    x = torch.randn(2, 3, requires_grad=True)
    with without_statistics() if rank else nullcontext():
        y = layer(x)
    y.square().sum().backward()
    return [*seen, bool(y.any()), bool(torch.as_tensor(x.grad).any())]


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


def test_batchnorm_of_few_values_is_that_of_one_process(results: list[dict[str, Any]]) -> None:
    assert [rank["few"] for rank in results] == [[True, True, True], *[[True, False, False]] * (len(results) - 1)]


class Sends(Callback):
    """Would DDP send buffers before the step, and what are those of BatchNorm after it."""

    def __init__(self) -> None:
        self.sends: list[bool] = []
        self.means: list[Tensor] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        self.sends.append(trainer.strategy.model.will_sync_module_buffers())
        self.means += [layer.running_mean.clone() for layer in pl_module.modules() if isinstance(layer, nn.BatchNorm2d)]


FLAG = "forward_sync_buffers" if "forward_sync_buffers" in signature(DistributedDataParallel).parameters else "broadcast_buffers"
BUFFERS = {"synchronised": "test=false", "own": "trainer.sync_batchnorm=false", "asked": f"+trainer.strategy.{FLAG}=true"}


def check_buffers(world_size: int, name: str, folder: Path) -> dict[str, Any]:
    options = (f"trainer.devices={world_size}", "model=cnn", "model.net.width=2", "trainer.max_epochs=1", BUFFERS[name])
    datamodule, model, trainer = prepared(folder / f"{name}{world_size}", *options)
    trainer.callbacks.append(sends := Sends())
    trainer.fit(model, datamodule)
    return {"sends": sends.sends, "means": torch.cat(sends.means)}


def test_synchronised_batchnorm_needs_no_broadcast(results: list[dict[str, Any]]) -> None:
    one, other, *_ = results
    assert {*one["synchronised"]["sends"]} == {False}
    assert {*one["own"]["sends"]} == {*one["asked"]["sends"]} == {True}
    for name in ("synchronised", "asked"):  # the same bits on both, sent or not
        assert torch.equal(one[name]["means"], other[name]["means"])
        assert torch.equal(one[name]["means"], one["synchronised"]["means"])
    assert not torch.equal(one["own"]["means"], other["own"]["means"])  # after a step, until the next one begins


def test_a_synchronised_layer_stays_what_it_is() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), Activated(4), nn.Sequential(nn.BatchNorm2d(4)))
    keys, parameters = list(model.state_dict()), list(model.parameters())
    for _ in range(2):  # twice changes no more than once
        synchronise_batchnorm(model)
    assert isinstance(model[1], Activated)
    assert (list(model.state_dict()), list(map(id, model.parameters()))) == (keys, list(map(id, parameters)))
    x = torch.randn(5, 3, 6, 6)
    torch.testing.assert_close(model(x), copy.deepcopy(model)(x))  # alone it computes as ever
