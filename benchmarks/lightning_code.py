"""A table of docs/numbers.md: Lightning code as it is, on 2 and 3 processes against one, here and by Lightning.

    python benchmarks/lightning_code.py > benchmarks/lightning_code.md

Each kind of lightning_modules.py and noisy_modules.py trains for two epochs in float64, with one global batch. The gradients of
every step, the weights at the end and the logged metrics of every epoch are compared with those of one process.
"""

import copy
import functools
import logging
import os
import tempfile
import warnings
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning_modules
import noisy_modules
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hardware import processor
from lightning import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.strategies import DDPStrategy
from omegaconf import open_dict
from run import heading

from lockstep.build import build
from lockstep.config.plan import Plan
from lockstep.launchers.environment import PARENT_PID, this_rank
from lockstep.runs.composition import compose

KINDS = lightning_modules.KINDS | noisy_modules.KINDS
WORLD_SIZES = (1, 2, 3)
BATCH = 12  # samples, of all processes
TOLERANCE = 1e-12
TIMEOUT = 300  # seconds
QUANTITIES = ("gradients", "weights", "metrics")
OVERRIDES = ("trainer=cpu", "trainer.precision=64-true", "trainer.max_epochs=2", "trainer.enable_progress_bar=false")
OVERRIDES += (
    "test=false",
    "trainer.num_sanity_val_steps=0",
)  # the kinds log names of their own
OVERRIDES += ("trainer.strategy.find_unused_parameters=true", "guards.watchdog=null", "guards.preemption=null")
OVERRIDES += ("~callbacks", "~logger")
WAYS = {"here": "trained", "stock": "trained_by_stock"}


class Recorder(Callback):
    """Record tensors that a training computes on this rank, by quantity and name."""

    def __init__(self) -> None:
        self.values: dict[str, dict[str, torch.Tensor]] = {quantity: {} for quantity in QUANTITIES}

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        step = trainer.global_step
        for name, parameter in pl_module.named_parameters():
            if parameter.grad is not None:
                self.values["gradients"][f"{step}.{name}"] = parameter.grad.clone()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._metrics(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.values["weights"] = {name: tensor.clone() for name, tensor in pl_module.state_dict().items()}
        self._metrics(trainer)

    def _metrics(self, trainer: Trainer) -> None:
        of_epochs = {name: value for name, value in trainer.callback_metrics.items() if not name.endswith("_step")}
        self.values["metrics"] |= {f"{trainer.current_epoch}.{name}": value.double() for name, value in of_epochs.items()}


def trained(kind: str, world_size: int, folder: Path) -> tuple[Recorder, list[str]]:
    """Train by this package on one of several ranks. Return the record, and the lines of what is not as on one process."""
    cfg = _composed(kind, world_size)
    cfg.run_dir = str(folder)
    datamodule, model, trainer = build(cfg, Plan.from_config(cfg))
    recorder = Recorder()
    callbacks: Any = trainer
    callbacks.callbacks.append(recorder)
    trainer.fit(model, datamodule)
    return recorder, [cause for callback in callbacks.callbacks for cause in getattr(callback, "causes", ())]


def _composed(kind: str, world_size: int) -> Any:
    module, data = KINDS[kind]
    cfg: Any = copy.deepcopy(_options(world_size))
    size = {"batch_size": BATCH // world_size}
    with open_dict(cfg):
        cfg.model = {"_target_": f"{module.__module__}.{module.__name__}"} | (size if data is None else {})
        cfg.datamodule = None if data is None else {"_target_": f"{data.__module__}.{data.__name__}"} | size
    return cfg


@functools.cache
def _options(world_size: int) -> Any:
    """Composed once for all kinds, which are put into it: it takes as long as their training."""
    return compose(*OVERRIDES, f"trainer.devices={world_size}", "optimized_metric=val_loss")


def trained_by_stock(kind: str, world_size: int, folder: Path) -> tuple[Recorder, list[str]]:
    """Train by Lightning alone."""
    module, data = KINDS[kind]
    seed_everything(0, verbose=False)
    options = {"batch_size": BATCH // world_size}
    model: Any = module(**(options if data is None else {}))
    recorder = Recorder()
    strategy = DDPStrategy(process_group_backend="gloo", find_unused_parameters=True) if world_size > 1 else "auto"
    trainer = Trainer(
        accelerator="cpu",
        devices=world_size,
        strategy=strategy,
        precision="64-true",
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[recorder],
        default_root_dir=folder,
    )
    trainer.fit(model, None if data is None else data(**options))
    return recorder, []


def difference(values: Mapping[str, torch.Tensor], reference: Mapping[str, torch.Tensor]) -> float:
    """The largest max|a - b| / max|b| over all tensors; infinite where there are others, or of another shape."""
    if values.keys() != reference.keys() or any(values[name].shape != reference[name].shape for name in values):
        return float("inf")
    largest = [((values[name] - b).abs().max() / b.abs().max().clamp(min=1e-30)).item() for name, b in reference.items()]
    return max(largest, default=0.0)


def compared(kinds: Mapping[str, Any] = KINDS, ways: Mapping[str, str] = WAYS) -> dict[tuple[str, str], dict[str, Any]]:
    """Return, by (kind, way), the largest difference of each quantity on several processes from one, and the lines said."""
    with tempfile.TemporaryDirectory() as folder:
        results = {size: in_processes(size, list(kinds), dict(ways), Path(folder, str(size))) for size in WORLD_SIZES}
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for key, (reference, _) in results[1].items():
        several = [results[size][key] for size in WORLD_SIZES[1:]]
        row: dict[str, Any] = {q: max(difference(values[q], reference[q]) for values, _ in several) for q in QUANTITIES}
        rows[key] = row | {"said": list(dict.fromkeys(line for _, said in several for line in said))}
    return rows


def in_processes(world_size: int, kinds: list[str], ways: dict[str, str], folder: Path) -> dict[tuple[str, str], Any]:
    """Return the record of rank zero of a group of gloo processes, by (kind, way)."""
    folder.mkdir()
    mp.start_processes(_rank, (world_size, kinds, ways, folder), nprocs=world_size, start_method="forkserver")
    return torch.load(folder / "results.pt")


def _rank(rank: int, world_size: int, kinds: list[str], ways: dict[str, str], folder: Path) -> None:
    torch.set_num_threads(1)
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
    os.environ[PARENT_PID] = "-1"  # it is a rank, which its parent watches
    this_rank.cache_clear()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    store = dist.FileStore(str(folder / "store"), world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=TIMEOUT))
    results = {}
    for number, (kind, way) in enumerate((kind, way) for kind in kinds for way in ways):
        recorder, said = globals()[ways[way]](kind, world_size, folder / str(number))
        results[kind, way] = recorder.values, said
    if rank == 0:
        torch.save(results, folder / "results.pt")
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    print(f"{heading(processor())}\n")
    print("The largest difference of 2 and of 3 processes from one, relative to the largest entry of each tensor: gradients of")
    print("each step, weights after two epochs, metrics of each epoch; = is at most 1e-12. Stock Lightning has the same code.\n")
    heads = [f"{quantity}, {way}" for way in WAYS for quantity in QUANTITIES]
    print(f"| code | {' | '.join(heads)} | message |\n|---|{'---|' * (len(heads) + 1)}")
    rows = compared()
    for kind in KINDS:
        cells = [_cell(rows[kind, way][quantity]) for way in WAYS for quantity in QUANTITIES]
        unknown = [] if {*cells[: len(QUANTITIES)]} == {"="} else ["none: a run can't know it; `lockstep parity` names it"]
        print(f"| {kind} | {' | '.join(cells)} | {'; '.join(rows[kind, 'here']['said'] or unknown)} |")


def _cell(value: float) -> str:
    return "=" if value <= TOLERANCE else "others" if value == float("inf") else f"{value:.0e}"


if __name__ == "__main__":
    main()
