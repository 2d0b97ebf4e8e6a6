"""`mirror=URL` copies a run while it trains."""

from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from lockstep.runs.events import RunEvents

if TYPE_CHECKING:
    from lockstep.extras.mirror.mirror import Mirror


class MirrorEvents(RunEvents):
    """Start the mirror with the run, and end it after the run."""

    settings = ("mirror",)

    def __init__(self) -> None:
        self._mirror: Mirror | None = None

    def claim(self, cfg: DictConfig, directory: Path, run_id: str, is_new: bool) -> None:
        if cfg.mirror is not None:
            from lockstep.extras.mirror.mirror import claim

            claim(cfg.mirror, directory, is_new)

    def begin(self, cfg: DictConfig, directory: Path) -> None:
        if cfg.mirror is not None:
            from lockstep.extras.mirror.mirror import Mirror

            self._mirror = Mirror(directory)

    def end(self, code: int) -> None:
        if self._mirror is not None:
            self._mirror.finish()
