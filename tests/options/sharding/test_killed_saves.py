"""Checkpoints of which each process writes its part: the same content in any layout, after kills, and on a full disk."""

import contextlib
import errno
import json
import random
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from bitwise import differences
from commands import ROOT, python
from in_parts import NOWHERE, Killed, assert_equal, furthest, poison, stopped
from in_process import last, trained
from ranks import in_ranks
from safetensors.torch import load_file
from test_model_parallel import KEPT

from lockstep.checkpointing import CheckpointError, latest_valid_checkpoint, read_checkpoint
from lockstep.strategies.sharding import parts

pytestmark = pytest.mark.slow
# two epochs of five steps; layers that four processes do not divide evenly; one step is left out
OPTIONS = (*KEPT, "trainer.max_epochs=2", "model.net.hidden=[14, 6]", "guards.checkpoint.every_n_steps=5")
SHARDED = "trainer.strategy.sharded_checkpoints=true"
FSDP = (*OPTIONS, "trainer/strategy=fsdp")
MESH = (*OPTIONS, "trainer/strategy=tensor_parallel", "trainer/plan=mlp", SHARDED)
LAST = Path("checkpoints", "last.ckpt")


def check_two(rank: int, world_size: int, folder: Path) -> list[int]:
    whole = (*FSDP, "trainer.devices=2")
    parts = (*whole, SHARDED)
    trained(folder / "one file", *whole, extra=[poison()])
    trained(folder / "parts", *parts, extra=[poison()])
    numbers = [stopped(folder / "stopped", 7, *parts), stopped(folder / "chain", 3, *parts)]
    trained(folder / "from one file", *parts, ckpt_path=folder / "one file" / "checkpoints" / "previous.ckpt")
    trained(folder / "to one file", *whole, ckpt_path=folder / "stopped" / LAST)
    dist.barrier()
    trained(folder / "stopped", *parts, ckpt_path=folder / "stopped" / LAST)
    return numbers


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two processes."""
    folder = tmp_path_factory.mktemp("parts")
    assert in_ranks(2, partial(check_two, folder=folder), folder) == [[signal.SIGTERM] * 2] * 2
    return folder


def test_it_holds_what_a_checkpoint_in_one_file_does(folder: Path) -> None:
    for name in ("last.ckpt", "previous.ckpt", "best.ckpt"):
        whole, parts = (read_checkpoint("it", folder / run / "checkpoints" / name) | NOWHERE for run in ("one file", "parts"))
        assert differences(parts, whole) == []
    assert furthest(parts["current_model_state"], parts["state_dict"]) > 1e-4  # the average is there too


def test_no_process_writes_the_whole(folder: Path) -> None:
    sizes = [path.stat().st_size for path in (folder / "parts" / "checkpoints" / "parts").glob("*/*.safetensors")]
    assert max(sizes) < 0.75 * (folder / "one file" / LAST).stat().st_size


def test_a_preempted_run_goes_on_to_the_bit(folder: Path) -> None:
    whole = last(folder / "parts") | NOWHERE
    for name in ("stopped", "from one file", "to one file"):
        assert differences(whole, last(folder / name) | NOWHERE) == []


def check_four(rank: int, world_size: int, folder: Path) -> list[int]:
    numbers = list[int]()
    for at, options in ((5, (*FSDP, SHARDED)), (7, MESH)):
        numbers.append(stopped(folder, at, *options, "trainer.devices=4", ckpt_path=folder / LAST))
        dist.barrier()
    return numbers


def check_end(rank: int, world_size: int, folder: Path) -> None:
    trained(folder, *MESH, "trainer.devices=2", ckpt_path=folder / LAST)


def test_it_goes_on_at_other_numbers_and_in_other_layouts(folder: Path, tmp_path: Path) -> None:
    run = folder / "chain"
    assert in_ranks(4, partial(check_four, folder=run), tmp_path) == [[signal.SIGTERM] * 2] * 4
    assert stopped(run, 9, *OPTIONS, ckpt_path=run / LAST) == signal.SIGTERM  # one process
    in_ranks(2, partial(check_end, folder=run), tmp_path)
    one, _ = trained(tmp_path / "one", *OPTIONS, extra=[poison(rank=0)])
    assert_equal(last(run), one)


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
