"""`resume=RUN_DIR`: resume an interrupted run in its own directory, with the config that is saved there."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lockstep.atomic_files import read_json
from lockstep.config.construct import shown
from lockstep.config.overrides import chooses_group, flat, override_key, quote, split_flags, values_by_key
from lockstep.config.plan import BATCH, GLOBAL_BATCH, rate_key
from lockstep.console import relative, say
from lockstep.errors import config_error
from lockstep.launchers.environment import this_rank
from lockstep.runs.directory import SWEEP_FILE, absolute, has_run, run_directories
from lockstep.runs.record import actual_status
from lockstep.runs.saved import FILE, FOLDER, read_config, read_overrides
from lockstep.runs.validation import check_single

_FIXED = ("model.optimizer.", "model.lr_scheduler.", "seed.", "lr_scaling.", "base_batch_size.", "init_from.", "fork.")
_DEPTH = 4  # levels of folders below the working directory; logs/NAME/RUN has 3
_NOT_OF_THE_RUN = ("resume", "overwrite", "hydra.run.dir")


def command_to_continue(arguments: Sequence[str]) -> list[str] | None:
    """Translate a command with `resume=` into Hydra's arguments: the saved config and the command's overrides. Return None if the
    run has finished and nothing is overridden.

    Raise ConfigError if there is no such run, or if the command chooses a group's option.
    """
    flags, overrides = split_flags(arguments)
    wanted = values_by_key(overrides)["resume"]
    run_dir = locate_run(wanted)
    if not (run_dir / FILE).is_file():
        raise config_error("resume", wanted, f"is not the directory of a run (it has no {FILE})")
    known = read_overrides(run_dir)
    new = [item for item in overrides if override_key(item) not in _NOT_OF_THE_RUN and item not in known]
    check_single(new)
    has_finished = actual_status(run_dir) == "finished" and (run_dir / "metrics.json").is_file()
    if has_finished and not new:
        return None
    for key, value in ((override_key(item), item.partition("=")[2]) for item in new if chooses_group(item)):
        words = f"a group is chosen once, when a run begins; give values in it, or begin a new run by fork={run_dir}"
        raise config_error(key, value or "null", words)
    return [*flags, *arguments_for(run_dir / FOLDER, new), f"hydra.run.dir={quote(str(run_dir))}"]


def arguments_for(folder: Path, overrides: Sequence[str]) -> list[str]:
    """Return the arguments with which Hydra composes a saved config with overrides."""
    return ["--config-path", str(folder), "--config-name", "saved", *overrides]


def locate_run(wanted: str) -> Path:
    """Return the directory that `resume=WANTED` names; `last` is the newest unfinished run below the working directory."""
    if wanted != "last":
        return absolute(Path(wanted).expanduser())
    if (rank := this_rank()) is not None:
        words = f"{rank.launcher.name}'s ranks would each look for themselves; name the run's directory"
        raise config_error("resume", wanted, words)
    return newest_unfinished(Path.cwd())


def newest_unfinished(folder: Path) -> Path:
    """Return the run below a folder whose status was written last, among runs that were able to start, and have neither finished
    nor are running. Jobs of sweeps are excluded, because a sweep is resumed as a whole."""
    runs = [run for run in run_directories(folder, _DEPTH) if has_run(run) and not (run.parent / SWEEP_FILE).exists()]
    candidates = [run for run in runs if actual_status(run) not in ("finished", "running")]
    if not candidates:
        sweeps = "a sweep goes on by its own command, or by lockstep sweep resume"
        raise config_error("resume", "last", f"there is no unfinished run below {folder}; {sweeps}")
    newest = max(candidates, key=lambda run: str((read_json(run / "status.json") or {}).get("updated", "")))
    say(f"resume=last: {relative(newest)}, which is {actual_status(newest)}")
    return newest


def check_resumable(run_dir: Path, cfg: DictConfig) -> None:
    """Raise ConfigError if the directory's run can't be resumed with a config: it changes a value that the checkpoint decides, or
    the checkpoint is of a later epoch."""
    before, now = _fixed_values(read_config(run_dir)), _fixed_values(cfg)
    for key in (key for key in before | now if before.get(key) != now.get(key)):
        words = f"can't change in a resumed run, whose checkpoint has {shown(before.get(key))}; use fork={run_dir} for a new run"
        raise config_error(key, shown(now.get(key)), words)
    from lockstep.checkpointing import latest_valid_checkpoint  # torch

    if (checkpoint := latest_valid_checkpoint(run_dir / "checkpoints")) is not None:
        read_start(cfg, "resume", checkpoint)


def _fixed_values(cfg: Any) -> dict[str, Any]:
    content: Any = OmegaConf.to_container(cfg)
    fixed = (*_FIXED, f"model.{rate_key(content['model'])}.", *((BATCH, GLOBAL_BATCH) if cfg.lr_scaling != "none" else ()))
    return {key: value for key, value in flat(content).items() if f"{key}.".startswith(fixed)}


def read_start(cfg: DictConfig, key: str, checkpoint: Path) -> dict[str, Any]:
    """Return the content of the checkpoint from which a run is to start. Raise ConfigError if its epoch is larger than
    trainer.max_epochs, or as large in a fork, which would train nothing."""
    from lockstep.checkpointing import read_checkpoint  # torch

    content = read_checkpoint(key, checkpoint, whole=())
    epoch, epochs = content.get("epoch", 0), cfg.trainer.max_epochs
    average = content.get("callbacks", {}).get("StochasticWeightAveraging", {})
    if 0 <= average.get("latest_update_epoch", -1) < epoch - 1:  # the callback has appended an epoch for BatchNorm
        epoch -= 1
    if 0 < (epochs or -1) < epoch + (key == "fork"):
        raise config_error("trainer.max_epochs", epochs, f"{checkpoint} is of epoch {epoch}; use more than {epoch}, or -1")
    return content
