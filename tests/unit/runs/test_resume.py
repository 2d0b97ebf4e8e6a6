"""`resume=RUN_DIR`: Hydra composes the saved config, with what is new."""

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from saved_run import save_run

from lockstep.config.construct import shown
from lockstep.config.overrides import quote
from lockstep.errors import ConfigError
from lockstep.runs import record, resume
from lockstep.runs.resume import check_unchanged, command_to_continue
from lockstep.runs.saved import read_config


@pytest.fixture(autouse=True)
def _nobody_has_started_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resume, "this_rank", lambda: None)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = save_run(tmp_path / "it's, a=run", "model=cnn", "trainer.max_epochs=5", global_batch_size=16)
    record.write_status(folder, "preempted")
    return folder


def new_overrides(run: Path, *arguments: str) -> list[str]:
    """Less the flags and the directory, which are checked here."""
    command = command_to_continue([f"resume={quote(str(run))}", *arguments])
    assert command is not None
    assert command[:4] == ["--config-path", str(run / ".hydra"), "--config-name", "saved"]
    assert command[-1] == f"hydra.run.dir={quote(str(run))}"
    return command[4:-1]


@pytest.mark.parametrize("new", [[], ["trainer.max_epochs=20", "test=false"]])
def test_a_run_goes_on_with_its_saved_config_and_what_is_new(new: list[str], run: Path) -> None:
    assert new_overrides(run, "model=cnn", *new) == new
    assert read_config(run).datamodule == {"batch_size": None, "global_batch_size": 16}


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("trainer=ddp", "trainer=ddp: a group is chosen once, when a run begins; give values in it, or begin a new run by fork="),
        ("-m", "resume={run}: is for one run; give a sweep its own command again"),
    ],
)
def test_what_a_resumption_can_not_change_is_refused(override: str, line: str, run: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        new_overrides(run, override)
    assert str(refused.value).startswith(line.format(run=run))


@pytest.mark.parametrize(
    ("key", "value", "was"),
    [
        ("seed", 3, "2"),
        ("model.optimizer.lr", 0.2, "0.1"),
    ],
)
def test_what_the_checkpoint_decides_can_not_change(key: str, value: Any, was: str, run: Path) -> None:
    saved, cfg = read_config(run), read_config(run)
    assert saved is not None
    assert cfg is not None
    cfg.trainer.max_epochs = 20
    check_unchanged(saved, cfg, run)
    OmegaConf.update(cfg, key, value, force_add=True)
    line = f"{key}={shown(value)}: is decided by the run's checkpoint, with {was}; begin a new run by fork={run}"
    with pytest.raises(ConfigError) as refused:
        check_unchanged(saved, cfg, run)
    assert str(refused.value) == line


def test_a_finished_run_has_nothing_to_continue_but_with_something_new(run: Path) -> None:
    record.write_status(run, "finished")
    assert new_overrides(run) == []  # its record is lost
    (run / "metrics.json").write_text('{"metrics": {}}')
    assert command_to_continue([f"resume={quote(str(run))}", "trainer.max_epochs=5"]) is None  # it has that end: its record stays
    assert new_overrides(run, "trainer.max_epochs=20") == ["trainer.max_epochs=20"]
