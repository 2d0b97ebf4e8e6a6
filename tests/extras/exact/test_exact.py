"""The very same bits on one process, two and four: weights, optimizer states, buffers and metrics of real trainings over gloo."""

import copy
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from bitwise import differences
from capabilities import is_there, requires
from in_process import SMALL, KeepAll, become_rank, composed, last
from lightning import Callback
from ranks import in_ranks

from lockstep.build import build
from lockstep.config.plan import Plan
from lockstep.errors import ConfigError

pytestmark = [pytest.mark.slow, requires("synthetic")]
WORKERS = 4
SHORT = ("trainer.exact=4", "test=false", "trainer.max_epochs=2", "trainer.limit_val_batches=2")
LOSS = ("optimized_metric=val/loss", "optimized_mode=min")
TINY = ("datamodule=synthetic_images", "datamodule.length=90", "datamodule.val_length=22", "datamodule.shape=[3,8,8]")
RAGGED = "datamodule.drop_last=false"  # an epoch's last batch has 45 samples, or 10
CASES: dict[str, tuple[str, ...]] = {
    "mlp": ("model=mlp", "model.net.dropout=0.2", "datamodule.batch_size=96", RAGGED, "callbacks=ema"),
    "sgd": (
        "model=mlp",
        "model/optimizer=sgd",
        "trainer.gradient_clip_val=0.1",
        "trainer.precision=bf16-mixed",
        "datamodule.batch_size=96",
    ),
    "cnn": ("model=cnn", *TINY, "datamodule.batch_size=10", RAGGED, "datamodule.augment={crop: 8, padding: 1}"),
    "plain": ("datamodule.batch_size=96", RAGGED, "datamodule.num_workers=1"),
    "resnet18": ("model=resnet18", *TINY, "datamodule.batch_size=7", "trainer.max_epochs=1"),
}
SMALL_NET = ("model.net.width=16", "model.net.depth=1", "trainer.max_epochs=1")
OF_EXTRAS: dict[str, tuple[str, ...]] = {
    "vit": ("model=vit", *SMALL_NET, "model.net.heads=2", "model.net.patch=4", *TINY, "datamodule.batch_size=10", RAGGED),
    "gpt": ("model=gpt_nano", *SMALL_NET, "datamodule=text", "datamodule.context=8", "model/optimizer=muon"),
}
OF_EXTRAS["vit"] += ("datamodule.num_workers=1", "datamodule.augment={crop: 8, padding: 1}")
OF_EXTRAS["gpt"] += (
    f"datamodule.paths=[{Path(json.__file__).parent}]",
    "datamodule.batch_size=1",
    "trainer.limit_train_batches=4",
    "trainer.precision=bf16-mixed",
)
NEEDS = {"vit": ("vit",), "gpt": ("language", "muon")}
CASES |= {name: case for name, case in OF_EXTRAS.items() if all(map(is_there, NEEDS[name]))}
ON_FOUR = ("mlp", "cnn")  # the others on one process and on two
ALONE = {"loop": ("model=mlp", "model/optimizer=sgd", "datamodule.batch_size=96")}
ALONE["tiny"] = ("model=resnet18", *TINY, "datamodule.batch_size=1")
# What says where a run was, and on how many processes.
_PLACES = ("dirpath", "best_model_path", "best_k_models", "kth_best_model_path", "last_model_path")
_OTHER = {*_PLACES, "run_id", "world_size", "train_means"}


def train(folder: Path, name: str, world_size: int, extra: list[Callback], ckpt_path: Path | None = None) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    overrides = (*SMALL, *SHORT, *LOSS, *(CASES | ALONE)[name], f"trainer.devices={world_size}", "max_processes_per_core=4")
    cfg = composed(*overrides, run_dir=folder)
    if name == "plain":
        cfg.model = {"_target_": "exact_modules.Own"}
    datamodule, model, trainer = build(cfg, Plan.from_config(cfg))
    trainer.callbacks[0:0] = extra
    trainer.fit(model, datamodule, ckpt_path=ckpt_path)
    return without_place(last(folder))


def without_place(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: without_place(value) for key, value in content.items() if key not in _OTHER}
    return [without_place(value) for value in content] if isinstance(content, list | tuple) else content


def train_all(rank: int, world_size: int, folder: Path) -> dict[str, Any]:
    become_rank(rank, world_size)
    kept = folder / "kept"
    kept.mkdir(exist_ok=True)
    names = ON_FOUR if world_size == 4 else CASES
    extra: dict[str, list[Callback]] = {"mlp": [KeepAll(kept)]} if world_size == 2 else {}
    return {name: train(folder / f"{world_size}/{name}", name, world_size, extra.get(name, [])) for name in names}


def continue_it(rank: int, world_size: int, folder: Path) -> dict[str, Any]:
    """From within the second epoch of two processes' run."""
    become_rank(rank, world_size)
    return train(folder / f"{world_size}/resumed", "mlp", world_size, [], ckpt_path=folder / "kept" / "6.ckpt")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exact")


@pytest.fixture(scope="module")
def trained(folder: Path) -> dict[int, dict[str, Any]]:
    """The last checkpoints of rank zero, by the number of processes."""
    return {size: in_ranks(size, partial(train_all, folder=folder), _group(folder, f"group{size}"))[0] for size in (1, 2, 4)}


def _group(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    return folder / name


@pytest.mark.parametrize("name", CASES)
def test_checkpoints_are_the_same_to_the_bit(name: str, trained: dict[int, dict[str, Any]]) -> None:
    one = trained[1][name]
    assert one["global_step"] > 2
    result = {size: differences(one, checkpoints[name]) for size, checkpoints in trained.items() if name in checkpoints}
    assert result == {size: [] for size in ((1, 2, 4) if name in ON_FOUR else (1, 2))}


def refusal(rank: int, world_size: int, folder: Path) -> str:
    become_rank(rank, world_size)
    with pytest.raises(ConfigError) as refused:
        train(folder / "tiny", "tiny", world_size, [])
    return str(refused.value)


def test_a_worker_of_one_value_per_channel_is_told_in_one_line(tmp_path: Path) -> None:
    line = in_ranks(1, partial(refusal, folder=tmp_path), tmp_path)[0]
    assert line.startswith("trainer.exact=4: 1 of 4 samples are a virtual worker's, too few for BatchNorm; accepted is")


def test_a_run_goes_on_with_another_number_of_processes_to_the_bit(trained: dict[int, dict[str, Any]], folder: Path) -> None:
    for size in (1, 4):
        resumed = in_ranks(size, partial(continue_it, folder=folder), _group(folder, f"again{size}"))[0]
        assert differences(trained[2]["mlp"], resumed) == []


def record(rank: int, world_size: int, folder: Path) -> dict[str, Any]:
    become_rank(rank, world_size)
    batches = Batches()
    ended = train(folder / "loop", "loop", world_size, [batches])
    return {"begun": batches.begun, "batches": batches.seen, "ended": ended["state_dict"]}


class Batches(Callback):
    """Keeps the state that training begins with, and of each batch inputs, targets and the weight of a sample."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []
        self.begun: dict[str, Any] = {}

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.begun = copy.deepcopy(pl_module.state_dict())

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.seen.append((batch.inputs.clone(), batch.targets.clone(), batch.loss_weight))


def test_a_step_is_that_of_a_plain_loop_over_the_workers(tmp_path: Path) -> None:
    """Four gradients, added as (0 + 2) + (1 + 3), and divided by four."""
    recorded = in_ranks(1, partial(record, folder=tmp_path), tmp_path)[0]
    cfg = composed(*SMALL, *ALONE["loop"], run_dir=tmp_path)
    model: Any = build(cfg, Plan.from_config(cfg))[1]
    model.load_state_dict(recorded["begun"])
    parameters = list(model.parameters())
    optimizer = model.make_optimizer(parameters)
    for inputs, targets, weight in recorded["batches"]:
        workers = []
        for worker in range(WORKERS):
            losses = model.measure(model(inputs[worker::WORKERS].clone()), targets[worker::WORKERS].clone())["loss"]
            workers.append(torch.autograd.grad(losses.sum() * (weight * WORKERS), parameters))
        for parameter, *gradients in zip(parameters, *workers, strict=True):
            parameter.grad = ((gradients[0] + gradients[2]) + (gradients[1] + gradients[3])) / WORKERS
        optimizer.step()
    assert len(recorded["batches"]) > 3
    assert differences(dict(model.state_dict()), recorded["ended"]) == []
