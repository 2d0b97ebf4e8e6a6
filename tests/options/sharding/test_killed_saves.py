"""Runs with sharded checkpoints that are killed while they save and train, or can't save: they end as those left in peace."""

import contextlib
import errno
import json
import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from bitwise import differences
from commands import ROOT, python
from in_parts import NOWHERE, Killed, assert_equal, poison
from in_process import last, trained
from ranks import in_ranks
from safetensors.torch import load_file
from test_sharded_checkpoints import FSDP, LAST, SHARDED

from lockstep.checkpointing import CheckpointError, latest_valid_checkpoint, read_checkpoint
from lockstep.strategies.sharding import parts

pytestmark = pytest.mark.slow
EACH_STEP = (*FSDP, SHARDED, "guards.checkpoint.every_n_steps=1")


def live(rank: int, world_size: int, run: Path, kill: tuple[int, int, Path] | None = None) -> None:
    """Trains from where the run is as far as it comes."""
    checkpoint = latest_valid_checkpoint(run / "checkpoints")
    dist.barrier()  # all have seen the same
    extra = [poison(rank=world_size - 1), *([Killed(*kill)] if kill else [])]
    trained(run, *EACH_STEP, f"trainer.devices={world_size}", extra=extra, ckpt_path=checkpoint)


def step_of(run: Path) -> int:
    checkpoint = latest_valid_checkpoint(run / "checkpoints")
    return 0 if checkpoint is None else read_checkpoint("it", checkpoint, whole=())["global_step"]


def killed_often(run: Path, worlds: list[int], folder: Path) -> list[int]:
    """Trains to the end, but for a kill in each of these lives but the last. Returns the steps that they have come to."""
    dice = random.Random(len(worlds))
    steps: list[int] = []
    for life, world_size in enumerate(worlds[:-1]):
        group = folder / str(life)
        group.mkdir(parents=True)
        rank = dice.randrange(world_size)
        kill = (rank, dice.randint(1, 2 if rank else 12), group / "killed")  # rank zero writes the list too
        with contextlib.suppress(AssertionError):
            in_ranks(world_size, partial(live, run=run, kill=kill), group)
        assert (group / "killed").exists()
        steps.append(step_of(run))
    in_ranks(worlds[-1], partial(live, run=run), folder)
    return [*steps, step_of(run)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("whole")
    in_ranks(2, partial(live, run=folder / "run"), folder)
    return last(folder / "run") | NOWHERE


LIVES = {"same number": [2] * 11, "other numbers": [2, 4, 2, 1, 4, 1, 2]}


@pytest.mark.parametrize("worlds", LIVES.values(), ids=LIVES)
def test_nothing_is_lost_by_kills(worlds: list[int], whole: dict[str, Any], tmp_path: Path) -> None:
    steps = killed_often(tmp_path / "run", worlds, tmp_path / "lives")
    own: dict[str, Any] = last(tmp_path / "run") | NOWHERE
    assert steps == sorted(steps)
    assert steps[-1] == 10
    if set(worlds) == {2}:
        assert differences(own, whole) == []
    assert_equal(own, whole)
    left = {path.name for path in (tmp_path / "run" / "checkpoints" / "parts").iterdir()}
    contents = [torch.load(path, weights_only=True) for path in (tmp_path / "run" / "checkpoints").glob("*.ckpt")]
    assert left == {Path(content["tensor_files"]["folder"]).name for content in contents if "tensor_files" in content}


# One process of two can't write


def check_full_disk(rank: int, world_size: int, folder: Path) -> list[str]:
    write, calls = parts._Writer.write_data, list[Any]()

    def write_unless_full(*arguments: Any) -> Any:
        calls.append(arguments)
        if rank == 1 and len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(*arguments)

    said = list[str]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts._Writer, "write_data", write_unless_full)
        try:
            trained(folder / "run", *EACH_STEP, "trainer.devices=2", "trainer.max_epochs=1")
        except CheckpointError as error:
            said.append(str(error))
        dist.barrier()
    return said


def test_a_process_that_cannot_write_fails_the_save_of_all(tmp_path: Path) -> None:
    said = in_ranks(2, partial(check_full_disk, folder=tmp_path), tmp_path)
    line = f"{tmp_path / 'run' / LAST}: the checkpoint was not written (No space left on device); earlier ones are untouched"
    assert said == [[line], [line]]
    assert step_of(tmp_path / "run") == 1


# As a user types it

CLI = ("trainer=cpu", "trainer/strategy=fsdp", SHARDED, "trainer.max_epochs=2", "datamodule.global_batch_size=300", "model=mlp")
CLI += ("++callbacks.pictures=null", "logger=csv", "guards.checkpoint.every_n_steps=2")


def test_commands_read_it_as_any_other(tmp_path: Path) -> None:
    run = tmp_path / "run"
    fault = "+callbacks.fault={_target_: faults.Fault, rank: 1, how: kill, batch: 1, epoch: 1, once: true}"
    python(ROOT / "train.py", *CLI, "trainer.devices=2", f"hydra.run.dir={run}", fault, cwd=tmp_path, code=1)
    listed = torch.load(run / LAST, weights_only=True)["tensor_files"]
    part = run / "checkpoints" / listed["folder"] / next(iter(listed["files"]))
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    python(ROOT / "train.py", f"resume={run}", "trainer.devices=4", cwd=tmp_path, code=0)
    log = (run / "train.log").read_text()
    assert f"the checkpoint is corrupt (at {part.relative_to(run / 'checkpoints')}); looking for an older one" in log
    metrics = json.loads((run / "metrics.json").read_text())["metrics"]
    python(ROOT / "scripts" / "evaluate.py", run, "trainer.devices=2", cwd=tmp_path, code=0)
    (again,) = (json.loads(path.read_text())["metrics"] for path in run.glob("evaluations/*/metrics.json"))
    assert again["test/acc"] == metrics["test/acc"]
    python(ROOT / "scripts" / "export.py", run, cwd=tmp_path, code=0)
    best = read_checkpoint("it", run / "checkpoints" / "best.ckpt")["state_dict"]
    assert differences(load_file(run / "export" / "best.safetensors"), best) == []
