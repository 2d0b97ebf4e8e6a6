"""A run whose processes are ended and started again: what each has trained on, and where it waits for its end."""

import json
import os
import time
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from in_process import become_rank, last, prepared
from lightning import Callback, LightningModule, Trainer

from lockstep.atomic_files import replace_text
from lockstep.launchers.stop_signals import STOP_SIGNALS

FIXED = (
    "trainer.accelerator=cpu",
    "trainer.precision=64-true",
    "trainer.max_epochs=2",
    "model=mlp",
    "model.net.dropout=0.2",
    "datamodule.augment=null",
    "guards.checkpoint.every_n_steps=3",
    "guards.watchdog=null",
    "++callbacks.pictures=null",
    "logger=csv",
    "test=false",
)
JOURNAL = "+callbacks.journal={_target_:restarted_runs.Journal}"


class Journal(Callback):
    """A line for each batch of a process, with the step that its life began at."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.began = trainer.global_step

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        line = {
            "began": self.began,
            "step": trainer.global_step,
            "epoch": trainer.current_epoch,
            "ids": trainer.train_dataloader.sampler.numbers(batch_idx),
        }
        line |= {"world_size": trainer.world_size, "node": os.environ.get("MASTER_ADDR")}
        with (Path(trainer.default_root_dir) / f"{os.getpid()}.journal").open("a") as file:
            file.write(json.dumps(line) + "\n")


def journal(run: Path) -> list[dict[str, Any]]:
    """The lines of all processes, each with its pid."""
    lines = [(int(path.stem), line) for path in run.glob("*.journal") for line in path.read_text().splitlines()]
    return [{"pid": pid} | json.loads(line) for pid, line in lines]


class Hold(Callback):
    """Waits at a batch of rank zero's, in a world of so many: until this process is killed or asked to stop."""

    def __init__(self, world_size: int, epoch: int, batch: int) -> None:
        self.place = (world_size, epoch, batch)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if not trainer.is_global_zero or (trainer.world_size, trainer.current_epoch, batch_idx) != self.place:
            return
        run, deadline = Path(trainer.default_root_dir), time.monotonic() + 60
        replace_text(held(run, trainer.world_size), str(os.getpid()))
        while not STOP_SIGNALS.received and time.monotonic() < deadline:
            time.sleep(0.01)


def hold(world_size: int, epoch: int, batch: int) -> str:
    place = f"world_size:{world_size},epoch:{epoch},batch:{batch}"
    return f"+callbacks.hold{world_size}={{_target_:restarted_runs.Hold,{place}}}"


def held(run: Path, world_size: int) -> Path:
    """Has the pid of what waits, when it does."""
    return run / f"held.{world_size}"


def undisturbed(rank: int, world_size: int, run: Path, options: tuple[str, ...]) -> None:
    """In a process of tests/ranks.py."""
    if world_size > 1:
        become_rank(rank, world_size)
    datamodule, model, trainer = prepared(run, *options, f"trainer.devices={world_size}", base=(), extra=[Journal()])
    trainer.fit(model, datamodule)


def lives(run: Path) -> list[tuple[int, int, str]]:
    """Of each the step it began at, the world, and the address of rank zero's node."""
    return sorted({(line["began"], line["world_size"], line["node"]) for line in journal(run)})


def status(run: Path) -> Any:
    return json.loads((run / "status.json").read_text())


def assert_same_training(run: Path, whole: Path, at_least: int = 1000) -> None:
    """Weights and optimizer up to rounding; in each step the same samples, by the last life that made it; each once an epoch, of
    which `at_least` so many."""
    own, other = last(run), last(whole)
    assert own["global_step"] == other["global_step"]
    torch.testing.assert_close(own["state_dict"], other["state_dict"], rtol=1e-10, atol=1e-10)
    states = [one["optimizer_states"][0]["state"] for one in (own, other)]
    torch.testing.assert_close(*states, rtol=1e-10, atol=1e-10)
    assert _samples(run) == _samples(whole)
    for epoch in {epoch for epoch, _ in _samples(run)}:
        ids = [*chain.from_iterable(ids for (of, _), ids in _samples(run).items() if of == epoch)]
        assert len(ids) == len(set(ids)) >= at_least


def _samples(run: Path) -> dict[tuple[int, int], list[int]]:
    """By epoch and step."""
    result: dict[tuple[int, int], list[tuple[int, list[int]]]] = {}
    for line in journal(run):
        result.setdefault((line["epoch"], line["step"]), []).append((line["began"], line["ids"]))
    return {
        place: sorted(chain.from_iterable(ids for began, ids in shares if began == max(began for began, _ in shares)))
        for place, shares in sorted(result.items())
    }


def assert_none_lives(run: Path) -> None:
    """Of those that have trained; zombies have no environment."""
    assert not [line["pid"] for line in journal(run) if _environment(line["pid"])]


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""
