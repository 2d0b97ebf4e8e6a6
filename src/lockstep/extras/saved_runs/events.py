"""What a person may do next with a run that has finished."""

from pathlib import Path

from omegaconf import DictConfig

from lockstep.atomic_files import read_json
from lockstep.config.targets import buildable
from lockstep.console import command_line
from lockstep.runs.events import RunEvents


@buildable
class OfferEvaluation(RunEvents):
    """Prints the command that tests the checkpoint of a run that has trained, below those that its end has named."""

    _directory: Path | None = None

    def begin(self, cfg: DictConfig, directory: Path) -> None:
        self._directory = directory

    def end(self, code: int) -> None:
        if code or self._directory is None or not any(self._directory.glob("checkpoints/*.ckpt")):
            return
        result = read_json(self._directory / "metrics.json") or {}
        if result.get("train_time") and result.get("has_test", True):
            print(f"  {command_line('scripts/evaluate.py', self._directory)}", flush=True)
