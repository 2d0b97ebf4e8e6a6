"""Checkpoints of which each process writes its part: the same content, at any number of processes and in any layout, verified."""

import logging
import shutil
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from bitwise import differences
from faults import Poison
from in_parts import furthest, stopped
from in_process import become_rank, last, trained
from ranks import in_ranks

from lockstep.checkpointing import latest_valid_checkpoint, read_checkpoint
from lockstep.models.from_checkpoint import load_model

pytestmark = pytest.mark.slow
# two epochs of five steps at a global batch of 240; layers that four processes do not divide evenly; one step is left out
OPTIONS = (
    "datamodule.global_batch_size=240",
    "trainer.max_epochs=2",
    "model.net.hidden=[14, 6]",
    "trainer.precision=64-true",
    "trainer.gradient_clip_val=0.05",
    "callbacks=ema",
    "callbacks.ema.decay=0.9",
    "++callbacks.progress=null",
    "callbacks.pictures=null",
    "guards.nonfinite.action=skip",
    "guards.preemption.every_n_steps=1",
    "guards.checkpoint.every_n_steps=5",
)
SHARDED = "trainer.strategy.sharded_checkpoints=true"
FSDP = (*OPTIONS, "trainer/strategy=fsdp")
MESH = (*OPTIONS, "trainer/strategy=tensor_parallel", "trainer/plan=mlp")
NOWHERE = {"callbacks": None}  # which say where the best checkpoint is
LAST = Path("checkpoints", "last.ckpt")


def state(run: Path) -> dict[str, Any]:
    return last(run) | NOWHERE


def check_two(rank: int, world_size: int, folder: Path) -> dict[str, Any]:
    become_rank(rank, world_size)
    two = (*FSDP, "trainer.devices=2")
    for name, options in {"one file": (), "parts": (SHARDED,)}.items():
        trained(folder / name, *two, *options, extra=[Poison((2,), ranks=(1,))])
    number = stopped(folder / "stopped", 7, *two, SHARDED)
    dist.barrier()
    if rank == 0:
        shutil.copytree(folder / "stopped", folder / "elsewhere")
    trained(folder / "stopped", *two, SHARDED, ckpt_path=folder / "stopped" / LAST)
    dist.barrier()
    from_one_file, _ = trained(folder / "from one file", *two, SHARDED, ckpt_path=folder / "one file/checkpoints/previous.ckpt")
    _, tester = trained(folder / "elsewhere", *two, ckpt_path=folder / "elsewhere" / LAST)  # writes whole ones from now on
    model: Any = tester.lightning_module
    metrics = tester.test(model, tester.datamodule, ckpt_path=str(folder / "parts/checkpoints/best.ckpt"), verbose=False)
    stopped(folder / "chain", 3, *two, SHARDED)
    return {"number": number, "tested": metrics, "from one file": from_one_file | NOWHERE}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("parts")


@pytest.fixture(scope="module")
def two(folder: Path) -> list[dict[str, Any]]:
    return in_ranks(2, partial(check_two, folder=folder), folder)


def test_it_holds_what_a_checkpoint_in_one_file_does(two: list[dict[str, Any]], folder: Path) -> None:
    for name in ("last.ckpt", "previous.ckpt", "best.ckpt"):
        whole, parts = (read_checkpoint("it", folder / run / "checkpoints" / name) | NOWHERE for run in ("one file", "parts"))
        assert differences(parts, whole) == []
    assert furthest(parts["current_model_state"], parts["state_dict"]) > 1e-4  # the average is there too
    weights = torch.load(folder / "parts" / LAST, weights_only=True)["state_dict"]
    assert {tensor.device.type for name, tensor in weights.items() if name.endswith("weight")} == {"meta"}
    assert two[0]["tested"] == two[1]["tested"]
    assert two[0]["tested"][0]["test/loss"] > 0


@pytest.mark.usefixtures("two")
def test_no_process_writes_the_whole(folder: Path) -> None:
    sizes = [path.stat().st_size for path in (folder / "parts" / "checkpoints" / "parts").glob("*/*.safetensors")]
    assert max(sizes) < 0.75 * (folder / "one file" / LAST).stat().st_size


def test_a_preempted_run_goes_on_to_the_bit(two: list[dict[str, Any]], folder: Path) -> None:
    assert [rank["number"] for rank in two] == [signal.SIGTERM, signal.SIGTERM]
    whole = state(folder / "parts")
    assert differences(whole, state(folder / "stopped")) == []
    assert differences(whole, state(folder / "elsewhere")) == []  # from parts to one file
    assert [differences(whole, rank["from one file"]) for rank in two] == [[], []]


def check_four(rank: int, world_size: int, folder: Path) -> list[int]:
    become_rank(rank, world_size)
    numbers = list[int]()
    for at, options in ((5, FSDP), (7, MESH)):
        numbers.append(stopped(folder, at, *options, "trainer.devices=4", SHARDED, ckpt_path=folder / LAST))
        dist.barrier()
    return numbers


def check_end(rank: int, world_size: int, folder: Path) -> None:
    become_rank(rank, world_size)
    trained(folder, *MESH, "trainer.devices=2", SHARDED, ckpt_path=folder / LAST)


@pytest.mark.usefixtures("two")
def test_it_goes_on_at_other_numbers_and_in_other_layouts(folder: Path, tmp_path: Path) -> None:
    run, groups = folder / "chain", [tmp_path / name for name in ("four", "end")]
    for group in groups:
        group.mkdir()
    assert in_ranks(4, partial(check_four, folder=run), groups[0]) == [[signal.SIGTERM, signal.SIGTERM]] * 4
    assert stopped(run, 9, *OPTIONS, ckpt_path=run / LAST) == signal.SIGTERM  # one process
    in_ranks(2, partial(check_end, folder=run), groups[1])
    one, _ = trained(tmp_path / "one", *OPTIONS, extra=[Poison((2,))])
    own = last(run)
    assert own["global_step"] == 10
    assert furthest(own["current_model_state"], one["current_model_state"]) < 1e-10
    assert furthest(own["state_dict"], one["state_dict"]) < 1e-10
    assert furthest(own["optimizer_states"][0]["state"], one["optimizer_states"][0]["state"]) < 1e-10
    single = {name: tensor.float() for name, tensor in own["state_dict"].items()}
    assert differences(dict(load_model(run / LAST).state_dict()), single) == []


# What is damaged is named, put aside, and the one before it taken


def parts_of(path: Path) -> list[Path]:
    listed = torch.load(path, weights_only=True)["tensor_files"]
    return [path.parent / listed["folder"] / name for name in listed["files"]]


def test_a_part_that_is_missing_is_found_and_the_checkpoint_before_it_taken(
    two: list[dict[str, Any]], folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert two
    run = shutil.copytree(folder / "parts", tmp_path / "run")
    part, _ = parts_of(run / LAST)
    part.unlink()
    with caplog.at_level(logging.WARNING):
        assert latest_valid_checkpoint(run / "checkpoints") == run / "checkpoints" / "previous.ckpt"
    name = part.relative_to(run / "checkpoints")
    assert f"the checkpoint is corrupt ({name} is missing); looking for an older one" in caplog.text
    assert (run / "checkpoints" / "last.ckpt.damaged").is_file()
