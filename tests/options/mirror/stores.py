"""Places that a run is copied to: a file system of fsspec's own kind that fails, or hangs."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import fsspec
from fsspec.implementations.local import LocalFileSystem
from saved_run import save_run

from lockstep.checkpointing import read_checkpoint, write_checkpoint
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
        name, content = Path(path2).name.removeprefix(".").removesuffix(".partial"), Path(path1).read_bytes()
        Path(path2).write_bytes(content[: len(content) // 2])
        Store.fault(name)
        Path(path2).write_bytes(content)
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


def run_in(folder: Path) -> Path:
    """A run's directory as far as copying it is concerned, with a checkpoint of step 1."""
    save_run(folder, "model=mlp")
    (folder / "train.log").write_text("epoch 1\n")
    record.write_status(folder, "running")
    save(folder, 1)
    return folder


def save(folder: Path, step: int) -> None:
    write_checkpoint({"global_step": step, "state_dict": {}}, folder / "checkpoints" / "last.ckpt", keep_as="previous.ckpt")


def step_at(folder: Path) -> int:
    """Return the step of the checkpoint, 0 where there is none."""
    path = folder / "checkpoints" / "last.ckpt"
    return read_checkpoint("last", path)["global_step"] if path.exists() else 0
