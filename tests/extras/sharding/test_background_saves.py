"""Sharded checkpoints that are written while training goes on: the same content, whole when all have written, and waited for."""

import signal
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from bitwise import differences
from faults import Poison
from in_parts import stopped
from in_process import become_rank, last, trained
from lightning import Callback, Trainer
from ranks import in_ranks
from test_sharded_checkpoints import FSDP, LAST, NOWHERE, SHARDED
from waiting import wait_for

from lockstep.checkpointing import read_checkpoint
from lockstep.extras.sharding import parts

pytestmark = pytest.mark.slow
TWO = (*FSDP, SHARDED, "trainer.devices=2")
BEHIND = (*TWO, "trainer.checkpoint_io.async=true")
write_now = parts._Writer.write_data


class Late(Callback):
    """The first part that rank one writes is written when it has made step 5. Notes the files that are there then."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.may_write = folder, threading.Event()
        self.files = set[str]()

    def write(self, writer: Any, *plans: Any) -> Any:
        assert self.may_write.wait(60)
        return write_now(writer, *plans)

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step == 5:
            wait_for(lambda: any(self.folder.rglob("shard-00001*")))  # rank zero's part
            self.files = {path.name for path in self.folder.rglob("*") if path.is_file()}
            self.may_write.set()


def check_two(rank: int, world_size: int, folder: Path) -> dict[str, Any]:
    become_rank(rank, world_size)
    late = Late(folder / "late" / "checkpoints")
    trained(folder / "foreground", *TWO, extra=[Poison((2,), ranks=(1,))])
    trained(folder / "background", *BEHIND, extra=[Poison((2,), ranks=(1,))])
    with pytest.MonkeyPatch.context() as patch:
        if rank == 1:
            patch.setattr(parts._Writer, "write_data", lambda *arguments: late.write(*arguments))
        trained(folder / "late", *BEHIND, "guards.checkpoint.every_n_steps=3", extra=[late])
    number = stopped(folder / "stopped", 7, *BEHIND)
    left = read_checkpoint("it", folder / "stopped" / LAST, whole=())["global_step"]
    dist.barrier()
    trained(folder / "stopped", *BEHIND, ckpt_path=folder / "stopped" / LAST)
    threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("checkpoint")]
    return {"files": late.files, "number": number, "left": left, "threads": threads}


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


def test_a_checkpoint_is_there_when_all_have_written(two: list[dict[str, Any]], folder: Path) -> None:
    """Training has gone on for two steps by then; the next save, of step 6, waits."""
    assert [rank["files"] for rank in two] == [{"shard-00001-model-00001-of-00001.safetensors"}] * 2
    steps = [
        read_checkpoint("it", folder / "late" / "checkpoints" / name)["global_step"] for name in ("previous.ckpt", "last.ckpt")
    ]
    assert steps == [9, 10]


def test_a_preempted_run_waits_for_it_and_goes_on_to_the_bit(two: list[dict[str, Any]], folder: Path) -> None:
    assert [(rank["number"], rank["left"], rank["threads"]) for rank in two] == [(signal.SIGTERM, 8, [])] * 2
    assert differences(last(folder / "stopped") | NOWHERE, last(folder / "foreground") | NOWHERE) == []
