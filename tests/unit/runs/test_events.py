"""Subscribers to the events of a run: what they are told, and what becomes of the run when they fail."""

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest
from omegaconf import DictConfig

from lockstep.config.plan import Plan
from lockstep.errors import ConfigError
from lockstep.runs.events import RunEvents
from lockstep.runs.run import Run
from lockstep.runs.validation import validated


class Diary(RunEvents):
    """Write down what it is told."""

    pages: ClassVar[list[str]] = []

    def _write(self, event: str) -> None:
        self.pages.append(event)

    def check(self, cfg: DictConfig, plan: Plan) -> None:
        if cfg.seed == 13:
            raise ConfigError("seed=13: accepted is a luckier one")
        self._write("check")

    def begin(self, cfg: DictConfig, directory: Path) -> None:
        self._write("begin")

    def end(self, code: int) -> None:
        self._write(f"end {code}")


@pytest.fixture
def run(tmp_path: Path, compose: Callable[..., DictConfig]) -> Run:
    Diary.pages.clear()
    cfg = compose("trainer.accelerator=cpu", "+events.diary={_target_: test_events.Diary}", run_dir=tmp_path / "run")
    cfg, plan = validated(cfg)
    return Run(cfg, plan)


def fail(run: Run) -> None:
    with run:
        raise RuntimeError("a bug")


def test_a_subscriber_is_told_from_the_beginning_to_the_end(run: Run) -> None:
    with pytest.raises(SystemExit):
        fail(run)
    assert Diary.pages == ["check", "begin", "end 1"]
