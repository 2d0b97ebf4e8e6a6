"""`fork=RUN_DIR[@STEP]`: a new run that goes on from a checkpoint of another one, with what the command changes changed."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from lockstep.config.checkpoint_file import refuse_url, run_of, split_step
from lockstep.config.overrides import override_key, quote, split_flags
from lockstep.errors import ConfigError, config_error
from lockstep.launchers.command_line import CommandLine
from lockstep.runs.events import Origin
from lockstep.runs.identity import Identity

log = logging.getLogger(__name__)
KEY = "fork"
_FIRST = ("last.ckpt", "previous.ckpt", "best.ckpt")


def command_to_fork(arguments: Sequence[str], wanted: str) -> list[str]:
    """The arguments with `fork=WANTED` among them spelled out: what the other run was started with, then what is new, and the
    checkpoint with its step.

    Done before Hydra starts, as for `resume`. Raises ConfigError where there is no such checkpoint.
    """
    flags, overrides = split_flags(arguments)
    _refuse_several(flags, overrides, wanted)
    source = _read_identity(wanted)
    if source is not None:
        new = [item for item in overrides if override_key(item) != KEY]
        arguments = [*source.flags, *flags, *_without_checkpoint(source.with_changes(new)), f"{KEY}="]
    checkpoint = find_checkpoint(wanted)
    pinned = f"{KEY}={quote(f'{checkpoint.path}@{checkpoint.step}')}"
    return [pinned if override_key(item) == KEY else item for item in arguments]


def _refuse_several(flags: Sequence[str], overrides: Sequence[str], wanted: str) -> None:
    """Raises ConfigError for a sweep over runs to fork: all its jobs have the settings of one."""
    if not {"-m", "--multirun"} & {*flags} or split_step(wanted)[0].exists():
        return
    given = next(item for item in reversed(overrides) if override_key(item) == KEY)
    with suppress(HydraException):  # of a path that Hydra does not read as it is
        if OverridesParser.create().parse_override(given).is_sweep_override():
            accepted = "all jobs of a sweep have the settings of one run; accepted is a sweep for each of them, with fork=RUN_DIR"
            raise config_error(KEY, wanted, accepted)


def _without_checkpoint(overrides: Sequence[str]) -> list[str]:
    return [item for item in overrides if override_key(item) != "ckpt_path"]  # as `fork` was called before


def _read_identity(wanted: str) -> Identity | None:
    """What the run is that the checkpoint is of; None for a file that is in no run's directory, or in one that has lost it."""
    path, run_dir = split_step(wanted)[0], _run_dir(wanted)
    refuse_url(KEY, path)
    try:
        identity = Identity.read(run_dir)
    except ConfigError:
        if not path.is_file():
            raise
        identity = None
    if identity is None and path.is_dir():
        accepted = f"has no run.json; accepted is the directory of a run, or a checkpoint, {path}/checkpoints/last.ckpt say"
        raise config_error(KEY, wanted, accepted)
    return identity


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
    raise config_error(KEY, wanted, f"has no checkpoint of step {step}; accepted are {there}")


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


def describe_origin(checkpoint: str, command: CommandLine) -> dict[str, Any]:
    """Returns for run.json and metrics.json which run was forked, where, and the keys of the overrides that are not that
    run's."""
    path, step = split_step(checkpoint)
    source = _read_identity(checkpoint)
    if source is None:
        from lockstep.checkpointing.files import run_id_in

        run, known = run_id_in(_read(path)), []
    else:
        run, known = source.id, source.overrides
    overrides = Identity.new(command, None, [KEY]).overrides
    changed = sorted({override_key(item) for item in overrides if item not in known})
    return {"run": run, "step": step, "checkpoint": checkpoint, "changed": changed}
