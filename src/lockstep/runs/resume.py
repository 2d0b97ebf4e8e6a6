"""`resume=RUN_DIR`: resume an interrupted run in its own directory, with the config that is saved there."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lockstep.atomic_files import read_json
from lockstep.config.construct import shown
from lockstep.config.overrides import chooses_group, flat, override_key, quote, split_flags, values_by_key
from lockstep.config.plan import Plan, rate_key
from lockstep.errors import config_error
from lockstep.launchers.environment import this_rank
from lockstep.runs.directory import SWEEP_FILE, absolute, run_directories
from lockstep.runs.record import actual_status
from lockstep.runs.saved import FILE, FOLDER, read_overrides

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
    if {"-m", "--multirun"} & {*flags}:
        raise config_error("resume", wanted, "is for one run; give a sweep its own command again, or lockstep sweep resume")
    run_dir = locate_run(wanted)
    if not (run_dir / FILE).is_file():
        raise config_error("resume", wanted, f"no run is there, since it has no {FILE}; use the directory of a run")
    known = read_overrides(run_dir)
    new = [item for item in overrides if override_key(item) not in _NOT_OF_THE_RUN]
    new = [item for item in new if not (item in known and chooses_group(item))]
    latest = {override_key(item): item for item in known}
    has_finished = actual_status(run_dir) == "finished" and (run_dir / "metrics.json").is_file()
    if has_finished and all(latest.get(override_key(item)) == item for item in new):
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
        words = f"{rank.started_by}'s ranks would each look for themselves; name the run's directory"
        raise config_error("resume", wanted, words)
    return newest_unfinished(Path.cwd())


def newest_unfinished(folder: Path) -> Path:
    """Return the run below a folder whose status was written last, among runs that have neither finished nor are running. Prefer
    runs that did not fail before their first checkpoint.

    Jobs of sweeps are excluded, because a sweep is resumed as a whole.
    """
    runs = (run for run in run_directories(folder, _DEPTH) if not (run.parent / SWEEP_FILE).exists())
    candidates = [run for run in runs if actual_status(run) not in ("finished", "running")]
    if not candidates:
        sweeps = "a sweep goes on by its own command, or by lockstep sweep resume"
        raise config_error("resume", "last", f"there is no unfinished run below {folder}; {sweeps}")
    return max(candidates, key=_resumability)


def _resumability(run: Path) -> tuple[bool, str]:
    status = read_json(run / "status.json") or {}
    can_resume = status.get("status") != "failed" or any(run.glob("checkpoints/*"))
    return can_resume, str(status.get("updated", ""))


def check_unchanged(saved: DictConfig, cfg: DictConfig, run_dir: Path) -> None:
    """Raise ConfigError if a resumed run's config changes a value that the checkpoint decides."""
    before, now = _fixed_values(saved), _fixed_values(cfg)
    for key in (key for key in before | now if before.get(key) != now.get(key)):
        words = f"is decided by the run's checkpoint, with {shown(before.get(key))}; begin a new run by fork={run_dir}"
        raise config_error(key, shown(now.get(key)), words)


def _fixed_values(cfg: DictConfig) -> dict[str, Any]:
    content: Any = OmegaConf.to_container(cfg)
    return {key: value for key, value in flat(content).items() if f"{key}.".startswith(_FIXED)}


def check_length(cfg: DictConfig, epoch: int, checkpoint: Path) -> None:
    """Raise ConfigError if the checkpoint's epoch is larger than trainer.max_epochs."""
    epochs = cfg.trainer.max_epochs
    if 0 < (epochs or -1) < epoch:
        raise config_error("trainer.max_epochs", epochs, f"{checkpoint} is of epoch {epoch}; use {epoch} or more, or -1")


def check_rate(cfg: DictConfig, plan: Plan, content: Mapping[str, Any], checkpoint: Path) -> None:
    """Raise ConfigError if lr_scaling gives another learning rate than the checkpoint was trained with."""
    rate = content.get("callbacks", {}).get("SteppedRate", {}).get("trained_with", {}).get("lr", plan.lr)
    if rate != plan.lr:
        key = rate_key(cfg.model)
        words = f"{checkpoint} was trained with {rate}, and goes on with it; use {rate}, or a new run, by fork={checkpoint}"
        raise config_error("lr_scaling" if key is None else f"model.{key}", plan.lr, words)
