"""Each file of a run directory cut, emptied, flipped, removed, swapped: the run goes on as itself, or a line says why not."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from lockstep.atomic_files import write_json
from lockstep.checkpointing import latest_valid_checkpoint, read_checkpoint, write_checkpoint
from lockstep.errors import ConfigError
from lockstep.runs import resume
from lockstep.runs.identity import Identity, read_run_id
from lockstep.runs.record import write_status
from lockstep.runs.resume import command_to_continue

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


def damages(whole: bytes, other: bytes, dice: random.Random) -> Iterator[bytes | None]:
    """None is a file that is gone."""
    yield from (None, b"", other, bytes(len(whole)))
    yield from (whole[: len(whole) * share // 4] for share in (1, 2, 3))
    yield whole[:-1]
    for _ in range(5):
        place = dice.randrange(len(whole))
        yield whole[:place] + bytes([whole[place] ^ 1 << dice.randrange(8)]) + whole[place + 1 :]


def goes_on(run: Path) -> str:
    """What `resume=RUN_DIR` comes to, and from which step; or the line that it ends with."""
    try:
        command = command_to_continue([f"resume={run}"])
        assert command is not None
        checkpoint = latest_valid_checkpoint(run / "checkpoints", read_run_id(run))
    except ConfigError as error:
        return str(error)
    overrides = [override for override in command[2:-2] if override != "++allow=[]"]  # what a directory allows counts for nothing
    content: dict[str, Any] = {} if checkpoint is None else read_checkpoint("checkpoint", checkpoint)
    assert overrides == OVERRIDES
    assert content["state_dict"]["weight"].eq(3).all()  # its own
    return f"from step {content['global_step']}"


def test_a_damaged_run_goes_on_as_itself_or_says_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(resume, "this_rank", lambda: None)
    kept = made(tmp_path / "kept", "ours", 3, OVERRIDES)
    other = made(tmp_path / "other", "theirs", 9, ["model=mlp", "seed=9"])
    run, dice = tmp_path / "run", random.Random(0)
    result: dict[str, list[str]] = {}
    for path in sorted(path for path in kept.rglob("*") if path.is_file()):
        name = str(path.relative_to(kept))
        for damaged in damages(path.read_bytes(), (other / name).read_bytes(), dice):
            shutil.rmtree(run, ignore_errors=True)
            shutil.copytree(kept, run)
            (run / name).unlink() if damaged is None else (run / name).write_bytes(damaged)
            said = goes_on(run)
            assert "\n" not in said
            result.setdefault(name, []).append(said)
    assert sum(map(len, result.values())) >= 150
    refused = {name: [line for line in lines if not line.startswith("from step")] for name, lines in result.items()}
    assert {name for name, lines in refused.items() if lines} == {"run.json"}  # anything else is done without
    assert len(refused["run.json"]) == len(result["run.json"]) - 1  # which lacks the last line's end alone
    assert all(line.startswith(f"resume={run}: ") for line in refused["run.json"])
    assert {"from step 1", "from step 2"} == set(result["checkpoints/last.ckpt"])
    assert "of another run than this" in caplog.text


def test_without_any_checkpoint_of_its_own_it_does_not_begin_anew_over_another_s(tmp_path: Path) -> None:
    run = made(tmp_path / "run", "ours", 3, OVERRIDES)
    other = made(tmp_path / "other", "theirs", 9, OVERRIDES)
    for name in ("last.ckpt", "previous.ckpt", "best.ckpt"):
        shutil.copy(other / "checkpoints" / name, run / "checkpoints" / name)
    (run / "checkpoints" / "best.ckpt").write_bytes(b"torn")
    line = rf"^resume={run}: every checkpoint is damaged or another run's: last.ckpt, previous.ckpt, best.ckpt; move them away"
    with pytest.raises(ConfigError, match=line):
        latest_valid_checkpoint(run / "checkpoints", "ours")
