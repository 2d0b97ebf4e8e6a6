"""Slots that jobs of different widths are packed onto."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar


class Wide(Protocol):
    @property
    def width(self) -> int: ...


W = TypeVar("W", bound=Wide)


@dataclass
class Pool:
    """Slots by name (GPU ids, say); each is handed out to one job at a time."""

    slots: tuple[str, ...]
    taken: dict[str, int] = field(default_factory=dict)  # slot to the width of the job that has it

    @property
    def free(self) -> list[str]:
        return [slot for slot in self.slots if slot not in self.taken]

    def take(self, width: int) -> tuple[str, ...]:
        assert width <= len(self.free)
        given = tuple(self.free[:width])
        self.taken |= dict.fromkeys(given, width)
        return given

    def give_back(self, slots: Sequence[str]) -> None:
        for slot in slots:
            del self.taken[slot]

    def choose(self, waiting: Sequence[W]) -> W | None:
        """The job to start now: the widest that waits, the earliest of its width. A narrower one may overtake it only
        where that can't delay it: narrower jobs together never hold slots that the widest needs to fit."""
        if not waiting:
            return None
        widest = max(job.width for job in waiting)
        narrower = sum(1 for width in self.taken.values() if width < widest)
        for job in sorted(waiting, key=lambda job: -job.width):  # a stable sort: the earliest of each width first
            if job.width > len(self.free):
                continue
            if job.width == widest or narrower + job.width <= len(self.slots) - widest:
                return job
        return None
