"""Sharded checkpoints that are written while training goes on: the same content, whole when all have written, and waited for."""

import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from bitwise import differences
from faults import Poison
from in_parts import stopped
from in_process import become_rank, last, trained
from lightning import Callback, LightningModule, Trainer
from ranks import in_ranks
from test_sharded_checkpoints import FSDP, LAST, NOWHERE, SHARDED
from waiting import wait_for

from lockstep.checkpointing import read_checkpoint
from lockstep.extras.sharding import write_parts

pytestmark = pytest.mark.slow
TWO = (*FSDP, SHARDED, "trainer.devices=2")
BEHIND = (*TWO, "trainer.checkpoint_io.async=true")


class Copied(Callback):
    """How many bytes of the state are copied on this process when training ends, and the places of these copies at each step."""

    def __init__(self) -> None:
        self.bytes, self.places = 0, list[list[int]]()

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        copy: Any = trainer.strategy.checkpoint_io
        if copy._copy is not None:
            self.places.append([piece.data_ptr() for piece in copy._copy["pieces"].values()])
            self.bytes = sum(piece.nbytes for piece in copy._copy["pieces"].values())


class Late(Callback):
    """The first part that rank one writes is written when it has made step 5. Notes the files that are there then."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.may_write = folder, threading.Event()
        self.files = set[str]()

    def write(self, content: Any, path: Path, keep_as: str | None = None) -> None:
        assert self.may_write.wait(60)
        self.write_now(content, path, keep_as)

    write_now = staticmethod(write_parts.write_checkpoint)

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step == 5:
            wait_for((self.folder / "parts" / "0" / "0.ckpt").is_file)  # rank zero's part
            self.files = {str(path.relative_to(self.folder)) for path in self.folder.rglob("[!.]*.ckpt")}
            self.may_write.set()


class Broken(Callback):
    """All ranks raise in step 4, when the write of the checkpoint of step 3 has begun, which takes a while."""

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == 4:
            raise ArithmeticError("planted fault")


def write_slowly(content: Any, path: Path, keep_as: str | None = None, write: Any = write_parts.write_checkpoint) -> None:
    time.sleep(1)
    write(content, path, keep_as)


def check_two(rank: int, world_size: int, folder: Path) -> dict[str, Any]:
    become_rank(rank, world_size)
    poison, copied, late = Poison((2,), ranks=(1,)), Copied(), Late(folder / "late" / "checkpoints")
    trained(folder / "foreground", *TWO, extra=[poison])
    trained(folder / "background", *BEHIND, extra=[Poison((2,), ranks=(1,)), copied])
    with pytest.MonkeyPatch.context() as patch:
        if rank == 1:
            patch.setattr(write_parts, "write_checkpoint", late.write)
        trained(folder / "late", *BEHIND, "guards.checkpoint.every_n_steps=3", extra=[late])
    dist.barrier()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write_parts, "write_checkpoint", write_slowly)
        number = stopped(folder / "stopped", 7, *BEHIND)
        left = read_checkpoint("it", folder / "stopped" / LAST, whole=())["global_step"]
        with pytest.raises(ArithmeticError):
            trained(folder / "broken", *BEHIND, "guards.checkpoint.every_n_steps=3", extra=[Broken()])
        broken = read_checkpoint("it", folder / "broken" / LAST, whole=())["global_step"]
    dist.barrier()
    trained(folder / "stopped", *BEHIND, ckpt_path=folder / "stopped" / LAST)
    threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("checkpoint")]
    seen = {"bytes": copied.bytes, "places": len({*map(tuple, copied.places)}), "files": late.files, "number": number}
    return seen | {"left": left, "broken": broken, "threads": threads}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("background")


@pytest.fixture(scope="module")
def two(folder: Path) -> list[dict[str, Any]]:
    return in_ranks(2, partial(check_two, folder=folder), folder)


@pytest.mark.usefixtures("two")
def test_they_hold_what_those_of_the_foreground_do(folder: Path) -> None:
    for name in ("last.ckpt", "previous.ckpt", "best.ckpt"):
        runs = [read_checkpoint("it", folder / run / "checkpoints" / name) for run in ("foreground", "background")]
        assert differences(*(run | NOWHERE for run in runs)) == []
    numbers = [{path.name for path in (folder / run / "checkpoints/parts").iterdir()} for run in ("foreground", "background")]
    assert numbers[0] == numbers[1]


def test_each_process_copies_its_part_into_the_memory_of_the_copy_before(two: list[dict[str, Any]], folder: Path) -> None:
    content = last(folder / "background")
    whole = sum(tensor.nbytes for key in ("state_dict", "current_model_state") for tensor in content[key].values())
    whole += sum(value.nbytes for state in content["optimizer_states"][0]["state"].values() for value in state.values())
    for rank in two:
        assert 0.4 * whole < rank["bytes"] < 0.6 * whole
        assert rank["places"] == 1


def test_a_checkpoint_is_there_when_all_have_written(two: list[dict[str, Any]], folder: Path) -> None:
    """Training has gone on for two steps by then; the next save, of step 6, waits."""
    assert [rank["files"] for rank in two] == [{"parts/0/0.ckpt"}] * 2
    steps = [
        read_checkpoint("it", folder / "late" / "checkpoints" / name)["global_step"] for name in ("previous.ckpt", "last.ckpt")
    ]
    assert steps == [9, 10]


def test_a_preempted_run_waits_for_it_and_goes_on_to_the_bit(two: list[dict[str, Any]], folder: Path) -> None:
    assert [(rank["number"], rank["left"], rank["threads"]) for rank in two] == [(signal.SIGTERM, 8, [])] * 2
    assert differences(last(folder / "stopped") | NOWHERE, last(folder / "foreground") | NOWHERE) == []


def test_a_run_that_breaks_down_waits_for_it(two: list[dict[str, Any]]) -> None:
    assert [rank["broken"] for rank in two] == [3, 3]
