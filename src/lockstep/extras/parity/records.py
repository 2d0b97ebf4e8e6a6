"""What a training leaves for those that follow it: numbered files, of which at most two wait to be read by each."""

import contextlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from lockstep.launchers.heartbeat import HEARTBEAT

_MOST = 2  # a record holds the model's weights
_END = "end.pt"


class Records:
    """Written into all subfolders of a folder by one process of the leader; each is read by all processes of a follower."""

    def __init__(self, folder: Path, subfolder: str) -> None:
        self._folder, self._own, self.number = folder, folder / subfolder, 0

    def write(self, record: dict[str, Any]) -> None:
        """Waits for the slowest follower first."""
        _wait(lambda: not [*self._folder.glob(f"*/{self.number - _MOST}.pt")])
        partial = self._save(record)
        for follower in self._folder.glob("*/"):
            with contextlib.suppress(FileNotFoundError):  # it has left meanwhile
                os.link(partial, follower / f"{self.number}.pt")
        self.number += 1

    def write_end(self, record: dict[str, Any]) -> None:
        self._save(record).rename(self._folder / _END)

    def _save(self, record: dict[str, Any]) -> Path:
        partial = self._folder / "partial"
        partial.unlink(missing_ok=True)  # the followers have it under other names
        torch.save(record, partial)
        return partial

    def read(self) -> dict[str, Any] | None:
        """Returns the next record; None if the leader has ended instead."""
        path = self._own / f"{self.number}.pt"
        _wait(lambda: path.exists() or (self._folder / _END).exists())
        return _load(path) if path.exists() else None

    def read_end(self) -> dict[str, Any]:
        return _load(self._folder / _END)

    def remove(self) -> None:
        """Called by one process, once all have read it."""
        (self._own / f"{self.number}.pt").unlink()

    def leave(self) -> None:
        """Called by one process, once all have read what they wanted: the leader then waits for this follower no longer."""
        gone = self._own.rename(self._folder.with_name(f"{self._folder.name}-{self._own.name}"))
        shutil.rmtree(gone)


def _load(path: Path) -> dict[str, Any]:
    return torch.load(path, weights_only=True, mmap=True, map_location="cpu")


def _wait(condition: Callable[[], bool]) -> None:
    """Waits without an end of its own: if the other side fails, the parent ends this process."""
    HEARTBEAT.beat("waiting for the other side", float("inf"))
    while not condition():
        time.sleep(0.002)
