"""`resume=RUN_DIR`: a run that was broken off goes on in its own directory, by the config that is saved there."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from lockstep.atomic_files import read_json
from lockstep.config.arguments import shown
from lockstep.config.overrides import chooses_group, flat, is_group, override_key, quote, split_flags, values_by_key
from lockstep.errors import config_error
from lockstep.launchers.environment import this_rank
from lockstep.places import config_file
from lockstep.runs.directories import newest_unfinished
from lockstep.runs.directory import absolute
from lockstep.runs.locks import TAKING, check_free
from lockstep.runs.record import actual_status
from lockstep.runs.saved import FOLDER, RUN_ID, read_config, read_overrides

_IN_THE_CHECKPOINT = ("model.optimizer.", "model.lr_scheduler.", "seed.", "lr_scaling.", "base_batch_size.")
_OF_ITS_OWN = ("init_from", "fork")
_NOT_OF_THE_RUN = ("resume", "overwrite", "hydra.run.dir")
_SHOWN = 5  # values of a group, in a message


def command_to_continue(arguments: Sequence[str]) -> list[str] | None:
    """Return the arguments with a `resume=` among them as Hydra is to read them: the saved config, with what is new. Without one
    as they are; None where the run has finished and nothing new is asked of it.

    Raise ConfigError where there is no such run, where it is still running, or for what a resumption can't change.
    """
    flags, overrides = split_flags(arguments)
    values, rank = values_by_key(overrides), this_rank()
    wanted = values.get("resume", "null")
    if wanted == "null":
        return list(arguments)
    if {"-m", "--multirun"} & {*flags}:
        raise config_error("resume", wanted, "is for one run; give a sweep its own command again, or lockstep sweep resume")
    run_dir = locate_run(wanted)
    saved = read_config(run_dir, "resume")
    if saved is None:
        raise config_error("resume", wanted, f"has no {FOLDER}/config.yaml; name the directory of a run")
    if saved.get(RUN_ID) is None:
        words = f"is of an earlier version; begin a new run by fork={run_dir}/checkpoints/last.ckpt"
        raise config_error("resume", wanted, words)
    if rank is None or rank.global_rank == 0:
        check_free(run_dir, "resume", TAKING)
    known = read_overrides(run_dir)
    new = [item for item in overrides if override_key(item) not in _NOT_OF_THE_RUN]
    new = [item for item in new if not (item in known and chooses_group(item))]  # chosen once and for all
    changed = [pair for item in new for pair in _changes(saved, item)]
    if not changed and actual_status(run_dir) == "finished" and read_json(run_dir / "metrics.json") is not None:
        return None
    for key, value in changed:
        _check(key, value, run_dir)
    return [*flags, *arguments_for(run_dir / FOLDER, new), f"hydra.run.dir={quote(str(run_dir))}"]


def arguments_for(folder: Path, overrides: Sequence[str]) -> list[str]:
    """Return what has Hydra compose a saved config and override it."""
    return ["--config-path", str(folder), "--config-name", "saved", *overrides]


def locate_run(wanted: str) -> Path:
    """Return the directory that `resume=WANTED` names; `last` is the newest unfinished run below the working directory."""
    if wanted != "last":
        return absolute(Path(wanted).expanduser())
    if (rank := this_rank()) is not None:
        words = f"{rank.started_by}'s ranks would each look for themselves; name the run's directory"
        raise config_error("resume", wanted, words)
    return newest_unfinished(Path.cwd())


def _changes(saved: DictConfig, item: str) -> list[tuple[str, str]]:
    """Return the keys that an override gives another value than the saved config's. Hydra refuses what it can't read."""
    override, key = OverridesParser.create().parse_override(item), override_key(item)
    if override.is_delete() or override.is_sweep_override() or chooses_group(item):
        return [(key, item.partition("=")[2])]
    values = flat({key: override.value()})
    return [(name, shown(value)) for name, value in values.items() if value != _value(saved, name)]


def _value(saved: DictConfig, key: str) -> Any:
    """Return the value of a key in plain containers; the config itself where there is no such key."""
    value: Any = OmegaConf.select(saved, key, default=saved)
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) and value is not saved else value


def _check(key: str, value: str, run_dir: Path) -> None:
    """Raise ConfigError for what a resumption can't change: a group, what is in the checkpoint, what makes another run."""
    if f"{key.replace('/', '.')}.".startswith(_IN_THE_CHECKPOINT):
        raise config_error(key, value, f"comes from the checkpoint; begin a new run by fork={run_dir}")
    if key in _OF_ITS_OWN and value != "null":
        raise config_error(key, value, "a run goes on from its own checkpoint; begin a new run, without resume")
    if is_group(key):
        words = f"a group is chosen once, when a run begins; give its values{_values(key, value)}, or begin a new run"
        raise config_error(key, value or "null", f"{words} by fork={run_dir}")


def _values(group: str, option: str) -> str:
    path = config_file(f"{group}/{option}.yaml")
    if not path.is_file():
        return ""
    content: Any = OmegaConf.to_container(OmegaConf.load(path))
    values = [(name, value) for name, value in flat(content).items() if not name.startswith(("defaults", "_target_"))]
    shown = ", ".join(f"{group.replace('/', '.')}.{name}={value}" for name, value in values[:_SHOWN])
    return f" ({shown}{', ...' if len(values) > _SHOWN else ''})" if shown else ""
