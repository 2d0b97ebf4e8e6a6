"""The very same bits on one process and several, of shipped models and of plain LightningModules: weights, buffers, metrics."""

import copy
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from bitwise import differences
from in_process import SMALL, KeepAll, composed, last, logged
from lightning import Callback, Trainer
from omegaconf import DictConfig
from ranks import in_ranks

from lockstep.build import build
from lockstep.config.plan import Plan
from lockstep.errors import ConfigError
from lockstep.runs.results import recording
from lockstep.runs.validation import validated

WRONG = {
    ("trainer.exact=3",): "trainer.exact=3: use a power of two",
    ("trainer.exact=4", "trainer.devices=3"): "trainer.devices=3: ",
    ("trainer.exact=4", "trainer.accumulate_grad_batches=2"): "trainer.accumulate_grad_batches=2: ",
    ("trainer.exact=4", "datamodule.global_batch_size=30"): "datamodule.global_batch_size=30: use a multiple of",
}


def test_the_batch_is_that_of_all_workers_and_what_can_not_be_is_named(compose: Callable[..., DictConfig]) -> None:
    for devices in (1, 4):
        cfg = compose("trainer=cpu", "trainer.exact=4", f"trainer.devices={devices}", "datamodule.batch_size=8")
        validated(cfg)
        assert (cfg.datamodule.global_batch_size, cfg.trainer.sync_batchnorm) == (32, False)
    for overrides, line in WRONG.items():
        with pytest.raises(ConfigError) as refused:
            validated(compose("trainer=cpu", *overrides))
        assert str(refused.value).startswith(line)


WORKERS = 4
SHORT = ("trainer.exact=4", "test=false", "trainer.max_epochs=2", "trainer.limit_val_batches=2")
LOSS = ("optimized_metric=val/loss", "optimized_mode=min")
TINY = ("datamodule=synthetic_images", "datamodule.length=90", "datamodule.val_length=22", "datamodule.shape=[3,8,8]")
RAGGED = "datamodule.drop_last=false"  # an epoch's last batch has 45 samples, or 10
SMALL_NET = ("model.net.width=16", "model.net.depth=1", "trainer.max_epochs=1")
CASES: dict[str, tuple[str, ...]] = {
    "mlp": ("model=mlp", "model.net.dropout=0.2", "datamodule.batch_size=96", RAGGED, "callbacks=ema"),
    "sgd": (
        *("model=mlp", "model/optimizer=sgd", "trainer.gradient_clip_val=0.1"),
        *("trainer.precision=bf16-mixed", "datamodule.batch_size=96"),
    ),
    "cnn": ("model=cnn", *TINY, "datamodule.batch_size=10", RAGGED, "datamodule.augment={crop: 2, flip: true}"),
    "vit": (
        *("model=vit", *SMALL_NET, "model.net.heads=2", "model.net.patch=4", *TINY, "datamodule.batch_size=10", RAGGED),
        *("datamodule.length=81", "datamodule.num_workers=1", "datamodule.augment={crop: 2, flip: true}"),
    ),
    "gpt": (
        *("model=gpt_nano", *SMALL_NET, "datamodule=text", "datamodule.context=8", "datamodule.batch_size=1"),
        *(f"datamodule.paths=[{Path(json.__file__).parent}]", "trainer.limit_train_batches=4", "trainer.precision=bf16-mixed"),
    ),
}
ALONE = {"loop": ("model=mlp", "model/optimizer=sgd", "datamodule.batch_size=96")}
# What says where a run was, and on how many processes.
_PLACES = ("dirpath", "best_model_path", "best_k_models", "kth_best_model_path", "last_model_path")
_OTHER = {*_PLACES, "run_id", "train_means"}


def train(rank: int, world_size: int, folder: Path, name: str, *extra: Callback, ckpt_path: Path | None = None) -> dict[str, Any]:
    """Return the last checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    overrides = (*SMALL, *SHORT, *LOSS, *(CASES | ALONE)[name], f"trainer.devices={world_size}")
    cfg = composed(*overrides, run_dir=folder)
    datamodule, model, trainer = build(cfg, Plan.from_config(cfg))
    trainer.callbacks[0:0] = extra
    trainer.fit(model, datamodule, ckpt_path=ckpt_path)
    facts = {name: value for one in recording(trainer) for name, value in one.facts().items() if name.startswith("exact")}
    return without_place(last(folder)) | {"facts": facts}


def without_place(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: without_place(value) for key, value in content.items() if key not in _OTHER}
    return [without_place(value) for value in content] if isinstance(content, list | tuple) else content


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_checkpoints_are_the_same_to_the_bit(name: str, tmp_path: Path) -> None:
    ends = {}
    for size in (1, 2, 4) if name == "cnn" else (1, 2):
        ends[size] = in_ranks(size, partial(train, folder=tmp_path / str(size), name=name), tmp_path)[0]
    assert ends[1]["global_step"] > 2
    assert ends[1]["facts"]["exact_hash"]  # in metrics.json
    assert {size: differences(ends[1], ended) for size, ended in ends.items()} == {size: [] for size in ends}


def train_and_keep(rank: int, world_size: int, folder: Path) -> dict[str, Any]:
    return train(rank, world_size, folder / "whole", "mlp", KeepAll(folder))


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_processes_to_the_bit(tmp_path: Path) -> None:
    """It goes on from within the second epoch."""
    whole = in_ranks(2, partial(train_and_keep, folder=tmp_path), tmp_path)[0]
    resumed = partial(train, folder=tmp_path / "resumed", name="mlp", ckpt_path=tmp_path / "6.ckpt")
    assert differences(whole, in_ranks(1, resumed, tmp_path)[0]) == []


def record(rank: int, world_size: int, folder: Path) -> dict[str, Any]:
    ended = train(rank, world_size, folder / "loop", "loop", batches := Batches())
    return {"begun": batches.begun, "batches": batches.seen, "ended": ended["state_dict"]}


class Batches(Callback):
    """Keeps the state that training begins with, and the workers' shares of each batch."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []
        self.begun: dict[str, Any] = {}

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.begun = copy.deepcopy(pl_module.state_dict())

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.seen.append([share.batch for share in trainer.strategy.shares])


@pytest.mark.slow
def test_a_step_is_that_of_a_plain_loop_over_the_workers(tmp_path: Path) -> None:
    """Four gradients, added as (0 + 2) + (1 + 3), and divided by four."""
    recorded = in_ranks(1, partial(record, folder=tmp_path), tmp_path)[0]
    cfg = composed(*SMALL, *ALONE["loop"], run_dir=tmp_path)
    model: Any = build(cfg, Plan.from_config(cfg))[1]
    model.load_state_dict(recorded["begun"])
    parameters = list(model.parameters())
    optimizer = model.make_optimizer(parameters)
    for shares in recorded["batches"]:
        whole, workers = sum(len(targets) for _, targets in shares), []
        for inputs, targets in shares:
            loss = torch.nn.functional.cross_entropy(model(inputs), targets, reduction="none").mean()
            workers.append(torch.autograd.grad(loss * (len(targets) * WORKERS / whole), parameters))
        for parameter, *gradients in zip(parameters, *workers, strict=True):
            parameter.grad = ((gradients[0] + gradients[2]) + (gradients[1] + gradients[3])) / WORKERS
        optimizer.step()
    assert len(recorded["batches"]) > 3
    assert differences(dict(model.state_dict()), recorded["ended"]) == []


RUN = ("trainer.accelerator=cpu", "trainer.max_epochs=2", "trainer.exact=4", "test=false", "logger=csv")
RUN += ("trainer.enable_progress_bar=false", "guards.watchdog=null", "trainer.log_every_n_steps=1", "++callbacks.progress=null")
RUN += ("optimized_mode=min", "datamodule=none")
DATA = {"_target_": "plain_modules.Ragged"}
PLAIN_CASES: dict[str, tuple[str, Any, str]] = {
    "ragged": ("Plain", DATA, "val/error"),
    "drop_last, data worker": ("Plain", DATA | {"drop_last": True, "workers": 1}, "val/error"),
    "own loaders, LBFGS": ("OwnLoaders", None, "val/loss"),
    "batches left out": ("LeavesOut", None, "val/loss"),
}


class Metrics(Callback):
    """Collect the metrics of every epoch, as callbacks see them."""

    def __init__(self) -> None:
        self.epochs: list[dict[str, Any]] = []

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        self.epochs.append({name: value.clone() for name, value in trainer.callback_metrics.items()})

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        self.on_train_epoch_end(trainer, pl_module)


def build_plain(name: str, data: Any, world_size: int, folder: Path, metric: str) -> tuple[Any, Any, Any]:
    cfg = composed(*RUN, f"optimized_metric={metric}", f"trainer.devices={world_size}", run_dir=folder)
    cfg.model, cfg.datamodule = {"_target_": f"plain_modules.{name}"}, data
    folder.mkdir(parents=True, exist_ok=True)
    return build(cfg, Plan.from_config(cfg))


def train_all(rank: int, world_size: int, folder: Path) -> dict[str, Any]:
    results = {}
    for number, (case, (name, data, metric)) in enumerate(PLAIN_CASES.items()):
        run = folder / f"{world_size}/{number}"
        datamodule, model, trainer = build_plain(name, data, world_size, run, metric)
        trainer.callbacks.append(metrics := Metrics())
        trainer.fit(model, datamodule)
        seen = {f"{epoch}.{name}": value for epoch, each in enumerate(metrics.epochs) for name, value in each.items()}
        points = {f"{step} {name}": value for (step, name), value in logged(run).items()} if rank == 0 else {}
        results[case] = {"checkpoint": without_place(last(run)), "metrics": seen, "points": points}
    return results


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, Any]]]:
    runs = {}
    for size in (1, 2):
        folder = tmp_path_factory.mktemp(f"plain{size}")
        runs[size] = in_ranks(size, partial(train_all, folder=folder), folder)
    return runs


@pytest.mark.slow
@pytest.mark.parametrize("case", PLAIN_CASES)
def test_plain_modules_are_the_same_to_the_bit(case: str, trained: dict[int, list[dict[str, Any]]]) -> None:
    one = trained[1][0][case]
    assert one["checkpoint"]["global_step"] >= 6
    assert len(one["points"]) > 10
    assert {size: differences(one, ranks[0][case]) for size, ranks in trained.items()} == {1: [], 2: []}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("ByHand", "ByHand has automatic_optimization=False, and steps its optimizers before"),
        ("Gathers", "Gathers calls self.all_gather within a step"),
    ],
)
def test_what_cannot_be_divided_is_refused_in_one_line(name: str, why: str, tmp_path: Path) -> None:
    datamodule, model, trainer = build_plain(name, None, 1, tmp_path, "train/loss")
    with pytest.raises(ConfigError) as refused:
        trainer.fit(model, datamodule)
    assert str(refused.value).startswith(f"trainer.exact=4: {why}")
    assert "\n" not in str(refused.value)
    assert trainer.global_step == 0
