"""What the ranks of one side tell those of another, through files."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch


@dataclass
class Exchange:
    """Numbered messages from a leader to its followers; at most two wait to be read. The last one says how it has ended."""

    folder: Path
    followers: tuple[str, ...]
    me: str
    number: int = 0

    def send(self, message: dict[str, Any]) -> None:
        before = self.number - 2
        _wait(lambda: before < 0 or all(self._is_read(before, follower) for follower in self.followers))
        (self.folder / f"{before}.pt").unlink(missing_ok=True)
        self._write(message, f"{self.number}.pt")
        self.number += 1

    def receive(self) -> dict[str, Any] | None:
        """The next message; None where the leader has ended instead."""
        path, end = self.folder / f"{self.number}.pt", self.folder / "end.pt"
        _wait(lambda: path.exists() or end.exists())
        return _read(path) if path.exists() else None

    def acknowledge(self) -> None:
        (self.folder / f"{self.number}.{self.me}").touch()

    def end(self, message: dict[str, Any]) -> None:
        self._write(message, "end.pt")

    def ended(self) -> dict[str, Any]:
        return _read(self.folder / "end.pt")

    def leave(self) -> None:
        (self.folder / f"left.{self.me}").touch()

    def _is_read(self, number: int, follower: str) -> bool:
        return any((self.folder / name).exists() for name in (f"{number}.{follower}", f"left.{follower}"))

    def _write(self, message: dict[str, Any], name: str) -> None:
        torch.save(message, self.folder / "partial")
        (self.folder / "partial").rename(self.folder / name)


def _read(path: Path) -> dict[str, Any]:
    return torch.load(path, weights_only=True, mmap=True, map_location="cpu")


def _wait(condition: Callable[[], bool]) -> None:
    """Without an end of its own: where the other side fails, the parent ends this process."""
    while not condition():
        time.sleep(0.002)
