"""The very same bits on one process and several: weights, optimizer states, buffers and metrics of real trainings over gloo."""

import copy
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from bitwise import differences
from in_process import SMALL, KeepAll, composed, last
from lightning import Callback
from ranks import in_ranks

from lockstep.build import build
from lockstep.config.plan import Plan
from lockstep.exact.metrics import WorkerMetrics

pytestmark = pytest.mark.slow
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
    "plain": ("datamodule.batch_size=96", RAGGED, "datamodule.num_workers=1"),
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
    if name == "plain":
        cfg.model = {"_target_": "exact_modules.Own"}
    datamodule, model, trainer = build(cfg, Plan.from_config(cfg))
    trainer.callbacks[0:0] = extra
    trainer.fit(model, datamodule, ckpt_path=ckpt_path)
    facts = next(callback for callback in trainer.callbacks if isinstance(callback, WorkerMetrics)).facts()  # pyright: ignore[reportAttributeAccessIssue]
    return without_place(last(folder)) | {"facts": facts}


def without_place(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: without_place(value) for key, value in content.items() if key not in _OTHER}
    return [without_place(value) for value in content] if isinstance(content, list | tuple) else content


@pytest.mark.parametrize("name", CASES)
def test_checkpoints_are_the_same_to_the_bit(name: str, tmp_path: Path) -> None:
    ends = {}
    for size in (1, 2, 4) if name == "cnn" else (1, 2):
        ends[size] = in_ranks(size, partial(train, folder=tmp_path / str(size), name=name), tmp_path)[0]
    assert ends[1]["global_step"] > 2
    assert {size: differences(ends[1], ended) for size, ended in ends.items()} == {size: [] for size in ends}


def train_and_keep(rank: int, world_size: int, folder: Path) -> dict[str, Any]:
    return train(rank, world_size, folder / "whole", "mlp", KeepAll(folder))


def test_a_run_goes_on_with_another_number_of_processes_to_the_bit(tmp_path: Path) -> None:
    """From within the second epoch."""
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
