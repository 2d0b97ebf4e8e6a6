"""`fork=RUN_DIR[@STEP]`: start a new run from a checkpoint of another run, with its config and the command's overrides."""

import atexit
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lockstep.config.overrides import chooses_group, flat, override_key, quote, split_flags
from lockstep.errors import config_error
from lockstep.runs.directory import absolute
from lockstep.runs.resume import arguments_for
from lockstep.runs.saved import FILE, RUN_DIR, RUN_ID, read_config, read_overrides, write_for_hydra
from lockstep.runs.validation import OF_THE_WHOLE

KEY = "fork"
_OWN = {KEY, RUN_ID, "run_dir", "name", "forked_from", "overwrite"}  # keys that differ between any two runs


def command_to_fork(arguments: Sequence[str], wanted: str) -> list[str]:
    """Translate a command with `fork=WANTED` into Hydra's arguments: the source run's config, the command's overrides, and the
    checkpoint with its step. A group that the command chooses replaces the source run's values of that group.

    Raise ConfigError if there is no such checkpoint.
    """
    flags, overrides = split_flags(arguments)
    checkpoint, step = find_checkpoint(wanted)
    run_dir, source = _read_source(checkpoint)
    new = [item for item in overrides if override_key(item) != KEY]
    groups = [override_key(item) for item in new if chooses_group(item) and not item.startswith("+")]
    _print_lost_values(run_dir, groups)
    folder = _write_source(source, groups)
    return [*flags, *arguments_for(folder, new), f"{KEY}={quote(f'{checkpoint}@{step}')}"]


def find_checkpoint(wanted: str) -> tuple[Path, int]:
    """Return the checkpoint that `fork=WANTED` names, and its step. Search all files of the folder for a given step, because a
    resumed run replaces its last.ckpt. Raise ConfigError if there is none."""
    match = None if Path(wanted).exists() else re.fullmatch(r"(.+)@(\d+)", wanted)
    path = absolute(Path(wanted if match is None else match[1]).expanduser())
    if path.is_dir():
        path = path / "checkpoints" / "last.ckpt"
    if match is None:
        return path, _read_step(path)
    for file in sorted(path.parent.glob("*.ckpt"), key=lambda file: file != path):
        if _read_step(file) == int(match[2]):
            return file, int(match[2])
    raise config_error(KEY, wanted, f"no checkpoint in {path.parent} is of step {match[2]}")


def _read_step(file: Path) -> int:
    from lockstep.checkpointing import read_checkpoint  # torch

    return read_checkpoint(KEY, file, whole=()).get("global_step", 0)


def _read_source(checkpoint: Path) -> tuple[Path, DictConfig]:
    """Return the directory and the config of the run that saved a checkpoint. Search up to three folders above the file, because
    Lightning's own ModelCheckpoint saves in its logger's folder."""
    for run_dir in checkpoint.parents[1:4]:
        if (source := read_config(run_dir)) is not None:
            return run_dir, source
    raise config_error(KEY, checkpoint, f"is in no run's directory, with a {FILE}; init_from= takes its weights alone")


def _write_source(source: DictConfig, groups: Sequence[str]) -> Path:
    """Write the source's config, without the groups that the command chooses, to a folder that is removed at exit."""
    source.update({"run_dir": RUN_DIR, RUN_ID: None, "forked_from": None, "overwrite": False})
    for group in {*groups}.difference(OF_THE_WHOLE):
        OmegaConf.update(source, group.partition("@")[0].replace("/", "."), None)
    folder = Path(tempfile.mkdtemp(prefix="lockstep-fork-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    write_for_hydra(folder, source, groups)
    return folder


def _print_lost_values(run_dir: Path, groups: Sequence[str]) -> None:
    places = tuple(f"{group.replace('/', '.')}." for group in groups)
    lost = [item for item in read_overrides(run_dir) if override_key(item).startswith(places)] if places else []
    if lost:
        print(f"Not kept of {run_dir}, since {', '.join(groups)} is chosen anew: {' '.join(lost)}", flush=True)


def describe_origin(cfg: DictConfig) -> dict[str, Any]:
    """Return, for metrics.json, the source run, its checkpoint and step, and the keys whose values differ from that run's."""
    checkpoint, step = find_checkpoint(cfg.fork)
    source: Any = _read_source(checkpoint)[1]
    before, now = (flat(OmegaConf.to_container(one)) for one in (source, cfg))  # pyright: ignore[reportArgumentType]
    changed = [key for key in before | now if before.get(key) != now.get(key) and key.partition(".")[0] not in _OWN]
    return {"run": source[RUN_ID], "step": step, "checkpoint": cfg.fork, "changed": sorted(changed)}
