"""Who has a directory, before anything is written into it; and how it becomes again what it was if the run can't start."""

import contextlib
import itertools
import logging
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from lockstep.atomic_files import read_json
from lockstep.errors import ConfigError, config_error
from lockstep.launchers.cluster import queue
from lockstep.launchers.command_line import CommandLine
from lockstep.launchers.environment import can_resume, launcher, restarts, this_rank
from lockstep.launchers.stop_signals import STOP_SIGNALS
from lockstep.runs.events import Subscribers, first
from lockstep.runs.identity import FILE, Identity, check_are_files, check_files
from lockstep.runs.locks import Lock

_RUN_FILES = (FILE, "status.json", "metrics.json", "checkpoints")  # any of them shows that a directory is a run's
SWEEP_FILES = ("manifest.json", "multirun.yaml")  # the same for a sweep
_MORE = ("lock", ".hydra", "progress.json", "tensorboard", "code.patch")  # what a run or a sweep makes besides
_SMALL = 2**20  # bytes; we write no larger file beside the folders and the logs


@dataclass
class _Before:
    """Keeps what a directory was before this process took it."""

    existed: bool
    missing: list[Path]  # folders above it that did not exist
    is_shared: bool = False  # with what is no run's: others may be writing there, hydra.run.dir=. say
    paths: frozenset[Path] = frozenset()
    contents: dict[str, bytes] = field(default_factory=dict)  # of small files
    sizes: dict[str, int] = field(default_factory=dict)  # of logs, which only grow
    set_aside: Path | None = None  # where the run is that was in it

    @classmethod
    def read(cls, directory: Path) -> "_Before":
        before = cls(directory.is_dir(), [folder for folder in directory.parents if not folder.exists()])
        if before.existed:
            before.paths = _inside(directory)
            is_known = any((directory / name).exists() for name in (*_RUN_FILES, *SWEEP_FILES))
            is_here = Path.cwd().is_relative_to(directory.resolve())
            before.is_shared = bool(before.paths) and (is_here or not is_known)
            before.sizes = {path.name: path.stat().st_size for path in directory.glob("train*.log")}
            files = [path for path in directory.iterdir() if path.is_file() and path.suffix != ".log" and path.name != "lock"]
            before.contents = {path.name: path.read_bytes() for path in files if path.stat().st_size <= _SMALL}
        return before

    def restore(self, directory: Path) -> None:
        if not self.existed:
            shutil.rmtree(directory, ignore_errors=True)
            for folder in self.missing:
                with contextlib.suppress(OSError):  # another run has come to be there
                    folder.rmdir()
            return
        for path in _inside(directory) - self.paths:
            if self.is_shared and not (path.parent == directory and _is_own(path.name)):
                continue
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
        for name, size in self.sizes.items():
            os.truncate(directory / name, size)
        for name, content in self.contents.items():
            path = directory / name
            if (_is_own(name) or not self.is_shared) and (not path.is_file() or path.read_bytes() != content):
                path.write_bytes(content)


def _is_own(name: str) -> bool:
    return name in (*_RUN_FILES, *SWEEP_FILES, *_MORE) or (name.startswith("train") and name.endswith(".log"))


def _inside(directory: Path) -> frozenset[Path]:
    """Returns what is in it, and in those of its folders that are no job's, which may be running, and no links."""
    below = (path for path in directory.glob("*/*") if not (path.parent.is_symlink() or (path.parent / "lock").exists()))
    return frozenset([*directory.iterdir(), *below])


class OwnDirectory:
    """The directory that this process has, for its run or its sweep: made where there was none, and held until the process ends.
    What it was before is known until there is something in it."""

    def __init__(self) -> None:
        self.path: Path | None = None
        self.has_begun = False  # what has begun in it can be continued
        self.is_kept = False  # the optimizer has made a step, say
        self._lock: Lock | None = None
        self._before: _Before | None = None

    def take(self, directory: Path, key: str) -> None:
        """Raises ConfigError, naming `key`, where the directory can't be made or another process has it."""
        if Lock.is_here(directory):
            return
        assert self.path is None, f"{self.path} is this process's directory already"
        with STOP_SIGNALS.deferring(), _writing(directory, key):
            self.path, self._before, self.is_kept = directory, self._before or _Before.read(directory), False
            directory.mkdir(parents=True, exist_ok=True)
            try:
                self._lock = Lock(directory, key)
            except ConfigError:
                self.leave()  # it is the other one's
                raise

    def set_aside(self, key: str) -> None:
        """Moves the whole directory of an earlier run, and takes it anew."""
        assert self.path is not None
        directory, earlier = self.path, aside(self.path)
        with STOP_SIGNALS.deferring():
            self.leave()
            with _writing(directory, "overwrite"):
                directory.rename(earlier)
            self._before = _Before(existed=False, missing=[], set_aside=earlier)
            self.take(directory, key)

    def keep(self) -> None:
        """Remembers that there is something in it from here on. A rank does so too, whose parent has the directory."""
        self._before, self.has_begun, self.is_kept = None, True, True

    def leave(self) -> None:
        """Somebody else may take it, as it is now."""
        if self._lock is not None:
            self._lock.close()
        self.path = self._lock = self._before = None
        self.has_begun = self.is_kept = False

    def give_back(self) -> None:
        """Makes it what it was before: for a run that could not start."""
        if self.path is None or self._before is None:
            return
        STOP_SIGNALS.leave()
        logging.shutdown()
        directory, before = self.path, self._before
        with contextlib.suppress(OSError):
            before.restore(directory)
        self.leave()
        if before.set_aside is not None:
            before.set_aside.rename(directory)


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
    check_files(directory, key)
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
    names = [name for name in _RUN_FILES if (directory / name).exists()]
    return bool(names) and not (names == ["status.json"] and queue().has_written(read_json(directory / "status.json") or {}))


def _check_no_sweep(directory: Path) -> None:
    """Raises ConfigError for a directory that a sweep has: overwrite=true sets aside runs alone."""
    if any((directory / name).exists() for name in SWEEP_FILES) or any(directory.glob("*/job.json")):
        raise config_error("hydra.run.dir", directory, "belongs to a sweep; accepted is another directory")


def take_sweep_directory(config: DictConfig) -> None:
    """Takes the directory of a sweep before Hydra's sweeper writes into it. Raises ConfigError for a run's directory."""
    directory = read_folder(config, "hydra.sweep.dir")
    is_run_s = any((directory / name).exists() for name in _RUN_FILES) and not (directory / "manifest.json").exists()
    if is_run_s:
        raise config_error("hydra.sweep.dir", directory, "belongs to a run; accepted is another directory")
    check_are_files(directory, "hydra.sweep.dir", (directory / "multirun.yaml", *directory.glob("*/output.log")))
    OWN_DIRECTORY.take(directory, "hydra.sweep.dir")


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
