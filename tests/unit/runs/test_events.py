"""Subscribers to the events of a run: what they are told, and what becomes of the run when they fail."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from omegaconf import DictConfig, OmegaConf
from waiting import wait_for

from lockstep.config.plan import Plan
from lockstep.config.targets import buildable
from lockstep.errors import ConfigError
from lockstep.runs import events
from lockstep.runs.events import RunEvents, Subscribers
from lockstep.runs.run import Run
from lockstep.runs.validation import Prepared, validated


@buildable
class Diary(RunEvents):
    """Writes down what it is told, and fails in what `faults` names."""

    pages: ClassVar[list[str]] = []
    faults: ClassVar[set[str]] = set()

    def _write(self, event: str) -> None:
        self.pages.append(event)
        if event in self.faults:
            raise RuntimeError("no ink")

    def check(self, cfg: DictConfig, plan: Plan) -> None:
        if cfg.seed == 13:
            raise ConfigError("seed=13: accepted is a luckier one")
        self._write("check")

    def begin(self, cfg: DictConfig, directory: Path) -> None:
        self._write("begin")

    def checkpoint_written(self) -> None:
        self._write("checkpoint_written")

    def end(self, code: int) -> None:
        self._write(f"end {code}")


@pytest.fixture
def run(tmp_path: Path, compose: Callable[..., DictConfig], monkeypatch: pytest.MonkeyPatch) -> Run:
    Diary.pages.clear()
    Diary.faults = set()
    monkeypatch.setattr(events, "POLL", 0.02)
    cfg = compose("trainer.accelerator=cpu", "+events.diary={_target_: test_events.Diary}", run_dir=tmp_path / "run")
    cfg, plan = validated(cfg)
    return Run(cfg, Prepared(plan))


def fail_after_checkpoints(run: Run) -> None:
    with run:
        folder = run.directory / "checkpoints"
        folder.mkdir()
        for size in (1, 2):
            (folder / "last.ckpt").write_bytes(b"a" * size)
            wait_for(lambda size=size: Diary.pages.count("checkpoint_written") == size)
        raise RuntimeError("a bug")


def test_a_subscriber_is_told_from_the_beginning_to_the_end(run: Run) -> None:
    with pytest.raises(SystemExit):
        fail_after_checkpoints(run)
    assert Diary.pages == ["check", "begin", "checkpoint_written", "checkpoint_written", "end 1"]


def test_one_that_fails_is_said_once_and_ends_nothing(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    Diary.faults = {"begin", "checkpoint_written", "end 1"}
    with pytest.raises(SystemExit):
        fail_after_checkpoints(run)
    said = [line for line in caplog.messages if "events.diary" in line]
    assert said == [
        f"events.diary has failed in {event} (RuntimeError: no ink); the run goes on"
        for event in ("begin", "checkpoint_written", "end")
    ]


def test_one_that_refuses_a_config_names_the_key(compose: Callable[..., DictConfig]) -> None:
    with pytest.raises(ConfigError, match=r"^seed=13"):
        validated(compose("seed=13", "+events.diary={_target_: test_events.Diary}"))


def test_what_is_no_group_is_refused_by_its_key() -> None:
    with pytest.raises(ConfigError, match=r"^events.diary=5: accepted is a group with a _target_, or null$"):
        Subscribers.compose(OmegaConf.create({"events": {"diary": 5}}))


def test_a_config_that_was_saved_before_there_were_events_has_no_subscribers(compose: Callable[..., DictConfig]) -> None:
    cfg: Any = compose()
    OmegaConf.set_struct(cfg, False)
    del cfg["events"]
    assert [*Subscribers.compose(cfg)] == []


def test_the_config_in_a_directory_may_not_name_other_code(compose: Callable[..., DictConfig], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^events.own._target_=os.system: a directory's config may not name that"):
        compose("+events.own={_target_: os.system, command: 'touch ran'}", "allow=[]", f"resume={tmp_path}")


def test_shipped_subscribers_set_no_class_variable_that_nobody_reads(compose: Callable[..., DictConfig]) -> None:
    for subscriber in Subscribers.compose(compose()):
        names = {name for name, value in vars(type(subscriber)).items() if isinstance(value, tuple) and not name.startswith("_")}
        assert names <= {"settings", "start_keys"}, type(subscriber).__name__
