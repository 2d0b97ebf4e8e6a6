"""Checkpoints of which each process writes its part: the same content, at any number of processes and in any layout, verified."""

import logging
import shutil
import signal
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from bitwise import differences
from in_parts import NOWHERE, assert_equal, furthest, poison, stopped
from in_process import last, trained
from ranks import in_ranks
from test_model_parallel import KEPT

from lockstep.checkpointing import latest_valid_checkpoint, read_checkpoint

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
    dist.barrier()
    if rank == 0:
        shutil.copytree(folder / "stopped", folder / "to one file")
    trained(folder / "stopped", *parts, ckpt_path=folder / "stopped" / LAST)
    dist.barrier()
    trained(folder / "from one file", *parts, ckpt_path=folder / "one file" / "checkpoints" / "previous.ckpt")
    trained(folder / "to one file", *whole, ckpt_path=folder / "to one file" / LAST)
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


def test_a_part_that_is_missing_is_found_and_the_checkpoint_before_it_taken(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = shutil.copytree(folder / "parts", tmp_path / "run")
    listed = torch.load(run / LAST, weights_only=True)["tensor_files"]
    name = f"{listed['folder']}/{next(iter(listed['files']))}"
    (run / "checkpoints" / name).unlink()
    with caplog.at_level(logging.WARNING):
        assert latest_valid_checkpoint(run / "checkpoints") == run / "checkpoints" / "previous.ckpt"
    assert f"the checkpoint is corrupt ({name} is missing); looking for an older one" in caplog.text
    assert (run / "checkpoints" / "last.ckpt.damaged").is_file()
