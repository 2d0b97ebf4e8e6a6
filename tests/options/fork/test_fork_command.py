"""`fork=RUN_DIR[@STEP]`: Hydra composes the other run's config, with what is new, and the checkpoint with its step."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from saved_run import save_run

from lockstep.config.overrides import quote
from lockstep.errors import ConfigError
from lockstep.runs.fork import command_to_fork, find_checkpoint

OVERRIDES = ["model=mlp", "trainer.devices=2", "model.optimizer.lr=0.1"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's directory with checkpoints of three steps."""
    folder = save_run(tmp_path / "it's, a=run", *OVERRIDES, global_batch_size=48, name="digits_mlp")
    (folder / "checkpoints").mkdir()
    for name, step in (("last", 12), ("previous", 8), ("epoch=0", 4)):
        save(folder / "checkpoints" / f"{name}.ckpt", step)
    return folder


def save(path: Path, step: int) -> None:
    torch.save({"state_dict": {}, "global_step": step, "epoch": 2, "callbacks": {"LastCheckpoint": {"run_id": "saved"}}}, path)


def forked(run: Path, *new: str) -> tuple[dict[str, Any], list[Any], list[str]]:
    """The config that is to be composed, what is composed with it, and the overrides."""
    flag, folder, name, saved, *overrides, pinned = command_to_fork([*new, f"fork={quote(str(run))}"], str(run))
    assert (flag, name, saved) == ("--config-path", "--config-name", "saved")
    assert pinned == f"fork={quote(f'{run}/checkpoints/last.ckpt@12')}"
    texts = ((Path(folder) / name).read_text() for name in ("config.yaml", "saved.yaml"))
    config, defaults = map(yaml.safe_load, texts)
    return config, defaults["defaults"], overrides


def test_a_group_s_option_replaces_what_the_other_run_had_there(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, defaults, overrides = forked(run, "model=cnn")
    assert config["model"] is None
    assert defaults[-1] == {"model": None}
    assert overrides == ["model=cnn"]
    assert capsys.readouterr().out == f"Not kept of {run}, since model is chosen anew: model.optimizer.lr=0.1\n"
    config, defaults, overrides = forked(run, "+callbacks=ema", "~logger", "seed=3")
    assert (defaults[-1], config["logger"], overrides[1]) == ({"logger": None}, None, "~logger")
    config, defaults, _ = forked(run, "model/optimizer=sgd")
    assert config["model"] == {"_target_": "M", "optimizer": None}
    assert defaults[-1] == {"model/optimizer": None}


@pytest.mark.parametrize(("wanted", "name", "step"), [("@4", "epoch=0", 4), ("/checkpoints/previous.ckpt", "previous", 8)])
def test_a_step_is_looked_for_whatever_the_file_is_called_by_now(wanted: str, name: str, step: int, run: Path) -> None:
    assert find_checkpoint(f"{run}{wanted}") == (run / "checkpoints" / f"{name}.ckpt", step)


@pytest.mark.parametrize(
    ("wanted", "line"),
    [
        ("none", "/checkpoints/last.ckpt: no such file"),
        ("run@9", "/checkpoints is of step 9"),
        ("alone.ckpt", "/alone.ckpt: is in no run's directory, with a .hydra/config.yaml; init_from= takes its weights alone"),
    ],
)
def test_what_is_no_checkpoint_of_a_run_is_refused(wanted: str, line: str, run: Path, tmp_path: Path) -> None:
    save(tmp_path / "alone.ckpt", 5)
    (tmp_path / "none").mkdir()
    (tmp_path / "run").symlink_to(run)
    with pytest.raises(ConfigError, match=r"^fork=") as refused:
        command_to_fork([f"fork={tmp_path / wanted}"], str(tmp_path / wanted))
    assert line in str(refused.value)
