"""Each file of a run directory cut, emptied, flipped, removed, swapped: the run goes on as itself, or a line says why not."""

import shutil
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from lockstep.atomic_files import write_json
from lockstep.checkpointing import latest_valid_checkpoint, write_checkpoint
from lockstep.errors import ConfigError
from lockstep.runs.identity import Identity
from lockstep.runs.record import write_status

OVERRIDES = ["model=cnn", "seed=3", "+trainer.profiler=simple", "trainer.max_epochs=20"]


def made(run: Path, run_id: str, seed: int, overrides: list[str]) -> Path:
    """A run that was preempted, with every kind of file that one leaves; its weights are `seed`."""
    (run / ".hydra").mkdir(parents=True)
    Identity(run_id, ["--config-name", "train"], overrides, 64).write(run)
    write_status(run, "running")
    write_status(run, "preempted", "preempted by SIGTERM")
    write_json(run / "metrics.json", {"metrics": {"val/acc": 0.5}})
    write_json(run / "progress.json", {"epoch": 2})
    (run / "lock").write_text("process 1 on host\n")
    (run / "train.log").write_text("epoch 1/20\nepoch 2/20\n")
    OmegaConf.save(OmegaConf.create(overrides), run / ".hydra" / "overrides.yaml")
    OmegaConf.save(OmegaConf.create({"hydra": {"overrides": {"task": overrides, "hydra": []}}}), run / ".hydra" / "hydra.yaml")
    OmegaConf.save(
        OmegaConf.create({"model": {"net": {"width": 8}}, "seed": seed, "run_dir": "x"}), run / ".hydra" / "config.yaml"
    )
    (run / "tensorboard").mkdir()
    (run / "tensorboard" / "events").write_bytes(bytes(range(256)))
    for step, name in ((1, "last"), (2, "last"), (2, "best")):
        weight = torch.full((8, 8), float(seed))
        state = {"LastCheckpoint": {"run_id": run_id}}
        content = {"global_step": step, "state_dict": {"weight": weight}, "callbacks": state}
        write_checkpoint(content, run / "checkpoints" / f"{name}.ckpt", keep_as=f"{'previous' if name == 'last' else name}.ckpt")
    return run


def test_without_any_checkpoint_of_its_own_it_does_not_begin_anew_over_another_s(tmp_path: Path) -> None:
    run = made(tmp_path / "run", "ours", 3, OVERRIDES)
    other = made(tmp_path / "other", "theirs", 9, OVERRIDES)
    for name in ("last.ckpt", "previous.ckpt", "best.ckpt"):
        shutil.copy(other / "checkpoints" / name, run / "checkpoints" / name)
    (run / "checkpoints" / "best.ckpt").write_bytes(b"torn")
    line = rf"^resume={run}: every checkpoint is damaged or another run's: last.ckpt, previous.ckpt, best.ckpt; move them away"
    with pytest.raises(ConfigError, match=line):
        latest_valid_checkpoint(run / "checkpoints", "ours")
