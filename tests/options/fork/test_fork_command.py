"""`fork=RUN_DIR[@STEP]`: Hydra composes the source run's config with the new overrides, and the checkpoint with its step."""

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
    torch.save({"state_dict": {}, "global_step": step, "epoch": 2}, path)


def forked(run: Path, *new: str) -> tuple[dict[str, Any], list[Any], list[str]]:
    """Return the source's config, the defaults list, and the overrides."""
    flag, folder, name, saved, *overrides, pinned = command_to_fork([*new, f"fork={quote(str(run))}"], str(run))
    assert (flag, name, saved) == ("--config-path", "--config-name", "saved")
    assert pinned == f"fork={quote(f'{run}/checkpoints/last.ckpt@12')}"
    config, defaults = (yaml.safe_load((Path(folder) / name).read_text()) for name in ("config.yaml", "saved.yaml"))
    return config, defaults["defaults"], overrides


def test_a_group_s_option_replaces_the_source_run_s_values(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, defaults, overrides = forked(run, "model=cnn")
    assert (config["model"], defaults[-1], overrides) == (None, {"model": None}, ["model=cnn"])
    assert capsys.readouterr().out == f"Not kept of {run}, since model is chosen anew: model.optimizer.lr=0.1\n"
    config, defaults, overrides = forked(run, "+callbacks=ema", "~logger", "seed=3")
    assert (config["logger"], defaults[-1], overrides) == (None, {"logger": None}, ["+callbacks=ema", "~logger", "seed=3"])
    config, defaults, _ = forked(run, "model/optimizer=sgd")
    assert (config["model"], defaults[-1]) == ({"_target_": "M", "optimizer": None}, {"model/optimizer": None})


def test_a_step_is_found_in_any_file_of_the_folder(run: Path) -> None:
    assert find_checkpoint(f"{run}@4") == (run / "checkpoints" / "epoch=0.ckpt", 4)
    assert find_checkpoint(f"{run}/checkpoints/previous.ckpt") == (run / "checkpoints" / "previous.ckpt", 8)


@pytest.mark.parametrize(
    ("wanted", "line"),
    [
        ("none", "/checkpoints/last.ckpt: no such file"),
        ("run@9", "/checkpoints is of step 9"),
        ("alone.ckpt", "/alone.ckpt: is in no run's directory, with a .hydra/config.yaml; init_from= takes its weights alone"),
    ],
)
def test_other_files_are_refused(wanted: str, line: str, run: Path, tmp_path: Path) -> None:
    save(tmp_path / "alone.ckpt", 5)
    (tmp_path / "none").mkdir()
    (tmp_path / "run").symlink_to(run)
    with pytest.raises(ConfigError, match=r"^fork=") as refused:
        command_to_fork([f"fork={tmp_path / wanted}"], str(tmp_path / wanted))
    assert line in str(refused.value)
