"""What the ranks of one side tell those of another, through files."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch


@dataclass
class Exchange:
    """Numbered messages from a leader to its followers through files; at most two wait to be read."""

    folder: Path
    followers: tuple[str, ...]
    me: str = ""
    number: int = field(default=0)

    def send(self, message: dict[str, Any]) -> None:
        self._wait(lambda: all(self._is_read(self.number - 2, follower) for follower in self.followers))
        self._file(self.number - 2).unlink(missing_ok=True)
        self._write(message, self._file(self.number))
        self.number += 1

    def receive(self) -> dict[str, Any] | None:
        """The next message; None where the leader has ended instead."""
        path, end = self._file(self.number), self.folder / "end.pt"
        self._wait(lambda: path.exists() or end.exists())
        if not path.exists():
            return None
        return torch.load(path, weights_only=True, mmap=True, map_location="cpu")

    def acknowledge(self) -> None:
        (self.folder / f"{self.number}.{self.me}").touch()

    def end(self, message: dict[str, Any]) -> None:
        self._write(message, self.folder / "end.pt")

    def ended(self) -> dict[str, Any]:
        return torch.load(self.folder / "end.pt", weights_only=True, mmap=True, map_location="cpu")

    def leave(self) -> None:
        (self.folder / f"left.{self.me}").touch()

    def _file(self, number: int) -> Path:
        return self.folder / f"{number}.pt"

    def _is_read(self, number: int, follower: str) -> bool:
        return number < 0 or any((self.folder / name).exists() for name in (f"{number}.{follower}", f"left.{follower}"))

    @staticmethod
    def _write(message: dict[str, Any], path: Path) -> None:
        partial = path.with_suffix(".partial")
        torch.save(message, partial)
        partial.rename(path)

    @staticmethod
    def _wait(condition: Callable[[], bool]) -> None:
        """Without an end of its own: where the other side fails, the parent ends this process."""
        while not condition():
            time.sleep(0.002)
