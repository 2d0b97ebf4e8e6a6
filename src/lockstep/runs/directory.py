"""Lock a run's or a sweep's directory before anything is written into it."""

import contextlib
import itertools
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from lockstep.atomic_files import read_json, replacing
from lockstep.errors import config_error
from lockstep.launchers.cluster import queue
from lockstep.launchers.command_line import CommandLine
from lockstep.launchers.environment import can_resume, launcher, restarts, this_rank
from lockstep.launchers.stop_signals import STOP_SIGNALS
from lockstep.runs.events import Subscribers, first
from lockstep.runs.identity import FILE, Identity
from lockstep.runs.locks import Lock, check_free
from lockstep.runs.record import write_status

_RUN_FILES = (FILE, "status.json", "metrics.json", "checkpoints")  # any of them shows that a directory is a run's
SWEEP_FILES = ("manifest.json", "multirun.yaml")  # the same for a sweep
_SAID = (FILE, "status.json", "metrics.json")  # what a refused resumption must leave as it was
_SWEEP = "hydra.sweep.dir"
COULD_NOT_START = "could_not_start"  # in status.json: no step was taken, so that another run may take the directory


class OwnDirectory:
    """The directory of this process's run or sweep: made where there is none, and locked until the process ends.

    Attributes:
        path: None while no directory is locked.
        has_begun: status.json says that the run runs: it can be continued.
        has_stepped: the optimizer has made a step, so that an error is a failure and no refusal.
    """

    def __init__(self) -> None:
        self._lock: Lock | None = None
        self._key = ""
        self.leave()

    def take(self, directory: Path, key: str) -> None:
        """Raise ConfigError, naming `key`, where the directory can't be made or another process has it."""
        if Lock.is_here(directory):
            return
        assert self.path is None, f"{self.path} is this process's directory already"
        with STOP_SIGNALS.deferring(), _writing(directory, key):
            self._is_new, self._holds_run = not directory.exists(), _has_run(directory)
            directory.mkdir(parents=True, exist_ok=True)
            self._lock, self.path, self._key = Lock(directory, key), directory, key
            self._earlier = {path: path.read_bytes() for name in _SAID if (path := directory / name).is_file()}

    def set_aside(self, key: str) -> None:
        """Move the whole directory of an earlier run, and take it anew."""
        assert self.path is not None
        directory = self.path
        with STOP_SIGNALS.deferring():
            self.leave()
            with _writing(directory, "overwrite"):
                directory.rename(aside(directory))
            self.take(directory, key)

    def keep(self) -> None:
        """Note that there may be something in it that was trained. A rank does so too, whose parent has the directory."""
        self.has_begun = self.has_stepped = True

    def leave(self) -> None:
        """Let other processes take it, as it is now."""
        if self._lock is not None:
            self._lock.close()
        self.path: Path | None = None
        self._lock = None
        self.has_begun = self.has_stepped = self._is_new = self._holds_run = False
        self._earlier: dict[Path, bytes] = {}

    def end_unstarted(self, reason: str) -> None:
        """Note why the run could not start. Put back what status and record said of an earlier start. Remove a directory that was
        made for a sweep, in which there is no job."""
        if self.path is None or self.has_stepped:
            return
        with contextlib.suppress(OSError):  # the disk is full
            if self._key == _SWEEP:
                if self._is_new:
                    shutil.rmtree(self.path, ignore_errors=True)
            elif self._holds_run:
                for path, content in self._earlier.items():
                    with replacing(path, "wb") as file:
                        file.write(content)
            else:
                write_status(self.path, "failed", reason, **{COULD_NOT_START: True})
        self.leave()


OWN_DIRECTORY = OwnDirectory()


def aside(directory: Path) -> Path:
    """The next free name for what was in a directory."""
    names = (directory.with_name(f"{directory.name}.before-{number}") for number in itertools.count(1))
    return next(name for name in names if not name.exists())


@contextlib.contextmanager
def _writing(directory: Path, key: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        words = f"can't be made or written to ({error.strerror or error}); accepted is a folder, there or not there yet"
        raise config_error(key, directory, words) from error


def take_run_directory(config: DictConfig, command: CommandLine, global_batch_size: int | None, subscribers: Subscribers) -> bool:
    """Take the directory of a run that is composed and checked, in the process that holds it, and write what the run is.

    Return whether it goes on with what an earlier start has left there; all ranks decide alike.

    Raises ConfigError for a directory that is another run's, unless that is to be set aside.
    """
    directory, is_named, rank = read_folder(config, "hydra.run.dir"), config.resume is not None, this_rank()
    takes_global = "global_batch_size" in (config.get("datamodule") or {})
    new = Identity.new(command, global_batch_size if takes_global else None, subscribers.start_keys)
    if rank is not None and rank.global_rank > 0:
        return _saved_identity(directory, new, is_named) is not None
    if is_named and absolute(config.resume) != directory:
        raise config_error("resume", config.resume, f"accepted on the command line alone, as resume={config.resume}")
    key = "resume" if is_named else "hydra.run.dir"
    if not is_named:
        _check_no_sweep(directory)
    if _has_run(directory) and _saved_identity(directory, new, is_named) is None:
        check_free(directory, key)
        _check_overwrite(directory, command, is_wanted=config.overwrite)
    OWN_DIRECTORY.take(directory, key)
    saved = _saved_identity(directory, new, is_named)
    if saved is None and _has_run(directory):
        _check_overwrite(directory, command, is_wanted=config.overwrite)
        OWN_DIRECTORY.set_aside("hydra.run.dir")
    if saved is None:
        current = replace(new, forked_from=first(one.describe_origin(config, command) for one in subscribers))
    else:
        current = replace(new, id=saved.id, forked_from=saved.forked_from)
    for subscriber in subscribers:
        subscriber.claim(config, directory, current.id, saved is None)
    with _writing(directory, "hydra.run.dir"):
        current.write(directory)
    return saved is not None


def _saved_identity(directory: Path, new: Identity, is_named: bool) -> Identity | None:
    """Returns the identity of the run in a directory where this start resumes it: because `resume` names it, or because the same
    command has begun it, whose ranks are started again or meet again at their rendezvous. Each rank reads it for itself, before
    or after rank zero has written it anew: the answer is the same."""
    saved = Identity.read(directory) if is_named or can_resume() else None
    if saved is None or is_named:
        return saved
    is_over = not restarts() and (read_json(directory / "status.json") or {}).get("status") == "finished"
    return None if is_over or saved.overrides != new.overrides else saved


def _has_run(directory: Path) -> bool:
    """Returns whether an earlier run has the directory. A status alone, of this very job in a queue, is what a rank has left that
    was asked to stop while rank zero had not begun."""
    names, status = [name for name in _RUN_FILES if (directory / name).exists()], read_json(directory / "status.json") or {}
    return bool(names) and not (status.get(COULD_NOT_START) or (names == ["status.json"] and queue().has_written(status)))


def _check_no_sweep(directory: Path) -> None:
    """Raises ConfigError for a directory that a sweep has: overwrite=true sets aside runs alone."""
    if any((directory / name).exists() for name in SWEEP_FILES) or any(directory.glob("*/job.json")):
        raise config_error("hydra.run.dir", directory, "belongs to a sweep; accepted is another directory")


def take_sweep_directory(config: DictConfig) -> None:
    """Takes the directory of a sweep before Hydra's sweeper writes into it. Raises ConfigError for a run's directory."""
    directory = read_folder(config, _SWEEP)
    is_run_s = any((directory / name).exists() for name in _RUN_FILES) and not (directory / "manifest.json").exists()
    if is_run_s:
        raise config_error(_SWEEP, directory, "belongs to a run; accepted is another directory")
    OWN_DIRECTORY.take(directory, _SWEEP)


def read_folder(config: DictConfig, key: str) -> Path:
    """The absolute path that a key names, as Hydra will spell it. Raises ConfigError where it names none, or one that those who
    are started with it would read as another."""
    where = OmegaConf.select(config, key)
    if not isinstance(where, str) or not where:
        raise config_error(key, "null" if where is None else repr(where), "accepted is a folder")
    if "${" in str(path := absolute(where)):
        raise config_error(key, path, "has ${, which stands for the value of a key; accepted is a folder without it in its path")
    return path


def absolute(path: str | Path) -> Path:
    """Returns the path as Hydra spells it: links are kept, `..` is not."""
    return Path(os.path.abspath(path))  # noqa: PTH100


def _check_overwrite(directory: Path, command: CommandLine, *, is_wanted: bool) -> None:
    """An earlier run's directory is set aside with overwrite=true alone."""
    if not is_wanted:
        words = "belongs to an earlier run; accepted is another directory"
        if command.gives_run_dir:
            words += f", resume={directory} to go on with that run, or overwrite=true to set it aside and start over"
        elif (rendezvous := launcher().rendezvous()) is not None:
            words += f", or another torchrun --rdzv-id than {rendezvous}"
        raise config_error("hydra.run.dir", directory, words)
    if Path.cwd().is_relative_to(directory):
        raise config_error("overwrite", "true", f"{directory} is the working directory; accepted is one apart from it")
