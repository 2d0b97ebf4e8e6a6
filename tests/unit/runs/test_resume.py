"""`resume=RUN_DIR`: Hydra composes the saved config with the new overrides."""

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from saved_run import save_run

from lockstep.config.overrides import quote
from lockstep.errors import ConfigError
from lockstep.runs import record
from lockstep.runs.resume import check_resumable, command_to_continue
from lockstep.runs.saved import read_config


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = save_run(tmp_path / "it's, a=run", "model=cnn", "trainer.max_epochs=5", global_batch_size=16)
    record.write_status(folder, "preempted")
    return folder


def new_overrides(run: Path, *arguments: str) -> list[str] | None:
    """Return the overrides of the command for Hydra, or None if the run has finished."""
    command = command_to_continue([f"resume={quote(str(run))}", *arguments])
    if command is None:
        return None
    assert command[:4] == ["--config-path", str(run / ".hydra"), "--config-name", "saved"]
    assert command[-1] == f"hydra.run.dir={quote(str(run))}"
    return command[4:-1]


def test_a_run_goes_on_with_its_saved_config_and_new_values_but_no_new_group(run: Path) -> None:
    new = ["trainer.max_epochs=20", "test=false"]
    assert new_overrides(run, "model=cnn", *new) == new
    with pytest.raises(ConfigError, match=r"^trainer=ddp: a group is chosen once, when a run begins; .* a new run by fork="):
        new_overrides(run, "trainer=ddp")


@pytest.mark.parametrize(
    ("key", "value", "was", "root"),
    [
        ("model.optimizer.lr", 0.2, "0.1", {}),
        ("model.lr", 0.2, "0.1", {"model": {"_target_": "M", "lr": 0.1}}),  # the user's own LightningModule
        ("datamodule.batch_size", 16, "8", {"lr_scaling": "linear"}),  # which would change the rate
    ],
)
def test_values_that_the_checkpoint_decides_can_not_change(key: str, value: Any, was: str, root: Any, tmp_path: Path) -> None:
    cfg: Any = read_config(run := save_run(tmp_path / "run", **root))
    cfg.trainer.max_epochs = 20
    check_resumable(run, cfg)
    OmegaConf.update(cfg, key, value, force_add=True)
    line = f"^{key}={value}: can't change in a resumed run, whose checkpoint has {was}; use fork={run} for a new run$"
    with pytest.raises(ConfigError, match=line):
        check_resumable(run, cfg)


def test_a_finished_run_goes_on_only_with_something_new(run: Path) -> None:
    record.write_status(run, "finished")
    assert new_overrides(run) == []  # its record is lost
    (run / "metrics.json").write_text('{"metrics": {}}')
    assert new_overrides(run, "trainer.max_epochs=5") is None  # as it was, so its record stays
    assert new_overrides(run, "trainer.max_epochs=20") == ["trainer.max_epochs=20"]
