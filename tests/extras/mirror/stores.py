"""Places that a run is copied to: file systems of fsspec's own kind that fail, hang, or kill."""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import fsspec
from fsspec.implementations.local import LocalFileSystem
from saved_run import save_run

from lockstep.checkpointing import write_checkpoint
from lockstep.extras.mirror import mirror
from lockstep.runs import record


class Store(LocalFileSystem):
    """planted:///PATH, as file:///PATH. `fault` is called with the name of each file when half of it is there."""

    protocol = ("planted",)
    fault: ClassVar[Callable[[str], None]]
    done: ClassVar[list[str]] = []

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.removeprefix("planted://"))

    def put_file(self, path1: str, path2: str, *_: Any, **__: Any) -> None:
        name, half = Path(path2).name.removeprefix(".").removesuffix(".partial"), Path(path1).stat().st_size // 2
        Path(path2).write_bytes(Path(path1).read_bytes()[:half])
        Store.fault(name)
        with Path(path2).open("ab") as file:
            file.write(Path(path1).read_bytes()[half:])
        self.done.append(name)


fsspec.register_implementation("planted", Store, clobber=True)
RELEASED = threading.Event()


def well(_: str) -> None:
    pass


def refuse_checkpoints(name: str) -> None:
    if name.endswith(".ckpt"):
        raise OSError("the bucket is on holiday")


def hang(_: str) -> None:
    RELEASED.wait(60)


Store.fault = well


def copy_until_killed(run: Path, url: str) -> None:
    """In a process of its own: dies in the middle of the second checkpoint that it copies."""
    seen = list[str]()

    def kill(name: str) -> None:
        seen.append(name)
        if seen.count("last.ckpt") == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    Store.fault = kill
    copy = mirror.Mirror(url, run, wait=20)
    copy.start()
    for step in range(2, 1000):
        save(run, step)
        copy.copy_soon()
        time.sleep(0.05)


def run_in(folder: Path, run_id: str = "its id") -> Path:
    """A run's directory as far as copying it is concerned, with a checkpoint of step 1."""
    save_run(folder, "model=mlp", run_id=run_id)
    (folder / "train.log").write_text("epoch 1\n")
    record.write_status(folder, "running")
    save(folder, 1)
    return folder


def save(folder: Path, step: int) -> None:
    write_checkpoint({"global_step": step, "state_dict": {}}, folder / "checkpoints" / "last.ckpt", keep_as="previous.ckpt")
