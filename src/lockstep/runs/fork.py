"""`fork=RUN_DIR[@STEP]`: a new run that goes on from a checkpoint of another one, with what the command changes changed."""

import atexit
import logging
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from lockstep.config.checks import OF_THE_WHOLE
from lockstep.config.overrides import chooses_group, flat, override_key, quote, split_flags
from lockstep.errors import ConfigError, config_error
from lockstep.runs.directory import absolute
from lockstep.runs.resume import arguments_for
from lockstep.runs.saved import FILE, RUN_DIR, RUN_ID, read_config, read_overrides, write_for_hydra

log = logging.getLogger(__name__)
KEY = "fork"
_OWN = {KEY, RUN_ID, "run_dir", "name", "forked_from", "overwrite"}  # keys in which any two runs differ
_FIRST = ("last.ckpt", "previous.ckpt", "best.ckpt")


class Origin(NamedTuple):
    """A checkpoint of another run that a run begins from, and how far training was."""

    path: Path
    step: int
    epoch: int


def command_to_fork(arguments: Sequence[str], wanted: str) -> list[str]:
    """Return the arguments with `fork=WANTED` among them as Hydra is to read them: the other run's config, with what is new, and
    the checkpoint with its step. The options of groups that are new are composed, in the place of what the other run had there.

    Raise ConfigError where there is no such checkpoint.
    """
    flags, overrides = split_flags(arguments)
    source, run_dir = _read_source(wanted), _run_dir(wanted)
    checkpoint = find_checkpoint(wanted)
    pinned = f"{KEY}={quote(f'{checkpoint.path}@{checkpoint.step}')}"
    new = [item for item in overrides if override_key(item) != KEY]
    if source is None:  # a checkpoint alone
        return [*flags, *new, pinned]
    of_groups = [item for item in new if chooses_group(item) and not item.startswith("+")]
    emptied = [item for item in of_groups if item.startswith("~")]  # logger=null
    _say_what_is_lost(run_dir, [*map(override_key, of_groups)])
    folder = _folder(source, [override_key(item) for item in of_groups if item not in emptied], [*map(override_key, emptied)])
    return [*flags, *arguments_for(folder, [item for item in new if item not in emptied]), pinned]


def split_step(value: str) -> tuple[Path, int | None]:
    """Return the absolute path and the optimizer step of `PATH@STEP`; None for the step of a path alone."""
    match = None if Path(value).exists() else re.fullmatch(r"(.+)@(\d+)", value)
    path = Path(value if match is None else match[1]).expanduser()
    return absolute(path), None if match is None else int(match[2])


def run_of(checkpoint: Path) -> Path:
    """Return the directory of the run that a checkpoint is of: the nearest one above with a run's config, for Lightning's own
    ModelCheckpoint saves in its logger's folder; where there is none, the one that the checkpoint's folder is in."""
    above = checkpoint.parents[1:4]
    return next((place for place in above if (place / FILE).is_file()), checkpoint.parent.parent)


def _folder(source: DictConfig, groups: Sequence[str], emptied: Sequence[str]) -> Path:
    """Write the source's config, less the groups to be composed anew, where Hydra finds it; it goes when this process ends."""
    config: Any = OmegaConf.to_container(source)
    config |= {"run_dir": RUN_DIR, RUN_ID: None, "forked_from": None, "overwrite": False}
    for group in (one for one in groups if one not in OF_THE_WHOLE):
        *above, name = group.partition("@")[0].split("/")
        node = config
        for part in above:
            node = node.get(part) or {}
        node.pop(name, None)
    config |= {group: {} for group in emptied}
    folder = Path(tempfile.mkdtemp(prefix="lockstep-fork-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    merged: Any = OmegaConf.create(config)
    write_for_hydra(folder, merged, groups)
    return folder


def _say_what_is_lost(run_dir: Path, groups: Sequence[str]) -> None:
    places = tuple(f"{group.replace('/', '.')}." for group in groups)
    lost = [item for item in read_overrides(run_dir) if override_key(item).startswith(places)] if places else []
    if lost:
        print(f"Not kept of {run_dir}, since {', '.join(groups)} is chosen anew: {' '.join(lost)}", flush=True)


def _read_source(wanted: str) -> DictConfig | None:
    """Return the config of the run that the checkpoint is of; None for a file that is in no run's directory, or in one that has
    lost it."""
    path = split_step(wanted)[0]
    try:
        source = read_config(_run_dir(wanted), KEY)
    except ConfigError:
        if not path.is_file():
            raise
        source = None
    if source is None and path.is_dir():
        raise config_error(KEY, wanted, f"has no {FILE}; name the directory of a run, or a checkpoint")
    return source if source is None or RUN_ID in source else None


def _run_dir(wanted: str) -> Path:
    path = split_step(wanted)[0]
    return path if path.is_dir() else run_of(path)


def find_checkpoint(wanted: str) -> Origin:
    """The file that `fork=WANTED` names. A step that is named is looked for in the other files of the folder too: a run that goes
    on replaces its last.ckpt. Raises ConfigError, with the steps that there are, where none has it."""
    path, step = split_step(wanted)
    if step is None and not path.is_dir():
        return _opened(path)
    folder = path / "checkpoints" if path.is_dir() else path.parent
    files = sorted(_files(folder), key=lambda file: file != path)  # the one that is named first
    if not files:
        raise config_error(KEY, wanted, f"there is no checkpoint in {folder}")
    if step is None:
        return _opened(files[0])
    steps: dict[int, str] = {}
    for checkpoint in _readable(files):
        if checkpoint.step == step:
            return checkpoint
        steps[checkpoint.step] = checkpoint.path.name
    there = ", ".join(f"{number} ({name})" for number, name in sorted(steps.items())) or "none that is whole"
    raise config_error(KEY, wanted, f"has no checkpoint of step {step}; use {there}")


def _files(folder: Path) -> list[Path]:
    names = {path.name: path for path in sorted(folder.glob("*.ckpt"))}
    return [names[name] for name in (*_FIRST, *(name for name in names if name not in _FIRST)) if name in names]


def _readable(files: Sequence[Path]) -> Iterator[Origin]:
    for file in files:
        try:
            yield _opened(file)
        except ConfigError as error:
            log.warning(error)


def _opened(file: Path) -> Origin:
    content = _read(file)
    return Origin(file, content.get("global_step", 0), content.get("epoch", 0))


def _read(file: Path) -> dict[str, Any]:
    from lockstep.checkpointing import read_checkpoint  # torch

    checkpoint = read_checkpoint(KEY, file, whole=())
    if not isinstance(checkpoint, dict):
        raise config_error(KEY, file, "not a Lightning checkpoint: it has no state_dict")
    return checkpoint


def origin_of(cfg: DictConfig) -> Origin | None:
    """Return the checkpoint of another run that a run begins from, None where it begins anew."""
    return None if cfg.get(KEY) is None else find_checkpoint(cfg.fork)


def describe_origin(cfg: DictConfig) -> dict[str, Any] | None:
    """Return for metrics.json which run was forked, where, and the keys that have other values than in that run."""
    if (checkpoint := cfg.get(KEY)) is None:
        return None
    path, step = split_step(checkpoint)
    source = _read_source(checkpoint)
    if source is None:
        from lockstep.checkpointing import run_id_in

        return {"run": run_id_in(_read(path)), "step": step, "checkpoint": checkpoint, "changed": _given()}
    before, now = (flat(OmegaConf.to_container(one)) for one in (source, cfg))  # pyright: ignore[reportArgumentType]
    changed = [key for key in {**before, **now} if before.get(key) != now.get(key) and key.partition(".")[0] not in _OWN]
    return {"run": source[RUN_ID], "step": step, "checkpoint": checkpoint, "changed": sorted(changed)}


def _given() -> list[str]:
    """Return the keys of the command: what the run of a checkpoint alone was configured as is not known."""
    return sorted({override_key(item) for item in HydraConfig.get().overrides.task} - {KEY})
