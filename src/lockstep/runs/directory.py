"""Directories of runs and sweeps: opened and locked before anything is written into them, and found below a folder."""

import atexit
import os
import shutil
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.utils import get_object
from omegaconf import DictConfig

from lockstep.atomic_files import read_json
from lockstep.errors import config_error
from lockstep.launchers.environment import can_resume, restarts, this_rank
from lockstep.runs.locks import Lock, is_held
from lockstep.runs.record import COULD_NOT_START
from lockstep.runs.run import Run
from lockstep.runs.saved import FILE, RUN_ID, fix_times, is_queued, read_overrides, read_run_id, write_config
from lockstep.runs.validation import check_run_dir, check_single, refusing, validated

SWEEP_FILE = "multirun.yaml"  # marks the directory of a sweep
_RECORDS = ("status.json", "metrics.json")
_RUN_FILES = (FILE, *_RECORDS, "checkpoints")  # any of them marks the directory of a run


@refusing()
def open_run(cfg: DictConfig) -> Run:
    """Open the run that Hydra has composed: lock its directory and write its config there. Resume the directory's run instead if
    the config is that run's, or if a launcher restarts the ranks of the command that started it.

    Raise SystemExit with one line and code 2, and change nothing, if the run can't start.
    """
    hydra: Any = HydraConfig.get()
    overrides = list(hydra.overrides.task)
    if cfg.get(RUN_ID) is None:  # neither a resumed run nor a sweep's job
        check_single([*overrides, *hydra.overrides.hydra])
    check_run_dir(cfg)
    fix_times(cfg)
    directory, rank = absolute(cfg.run_dir), this_rank()
    goes_on = cfg.get(RUN_ID) is not None or has_begun(directory, overrides)
    run_id = read_run_id(directory) if goes_on else None
    is_resumed = run_id is not None and not is_queued(directory)
    if cfg.forked_from is None and cfg.get("fork") is not None:
        from lockstep.runs.fork import describe_origin

        cfg.forked_from = describe_origin(cfg)
    run = Run(*validated(cfg.copy(), hydra), is_resumed=is_resumed)  # which sets values that follow from others
    if rank is not None and rank.global_rank > 0:
        return run
    if run_id is None:
        if cfg.get("mirror") is not None:
            get_object("lockstep.mirror.check_new")(cfg.mirror, directory)
        run.lock, run_id = lock_new_run(directory, cfg.overwrite), uuid.uuid4().hex
    else:
        run.lock = Lock(directory, "resume")
    if is_resumed:
        from lockstep.runs.resume import check_resumable  # only resumed runs need it

        check_resumable(directory, cfg)
        run.before = {file: file.read_text() for name in (".hydra/*.yaml", *_RECORDS) for file in directory.glob(name)}
    write_config(directory, cfg, hydra, run_id, run.plan.global_batch_size)
    return run


def has_begun(directory: Path, overrides: list[str]) -> bool:
    """Return whether the same command has started the directory's run, so that these ranks were restarted or have joined its
    rendezvous again. The answer is the same on every rank, before and after rank zero resumes the run."""
    if not can_resume() or not (directory / FILE).is_file() or read_overrides(directory) != overrides:
        return False
    return restarts() > 0 or (read_json(directory / "status.json") or {}).get("status") != "finished"


def lock_new_run(directory: Path, overwrite: bool) -> Lock:
    """Create and lock the directory of a new run; rename that of an earlier run if `overwrite` is true. Raise ConfigError, with
    nothing changed, if the directory belongs to a sweep, or to an earlier run and `overwrite` is false."""
    if not is_held(directory):
        _check_new(directory, overwrite)
    lock = Lock(directory, "hydra.run.dir")
    _check_new(directory, overwrite)  # another process may have used the directory meanwhile
    if has_run(directory):
        lock.close()
        directory.rename(directory.with_name(f"{directory.name}.before-{time.strftime('%Y-%m-%d_%H-%M-%S')}"))
        lock = Lock(directory, "hydra.run.dir")
    return lock


def _check_new(directory: Path, overwrite: bool) -> None:
    if (directory / SWEEP_FILE).exists():
        raise config_error("hydra.run.dir", directory, "belongs to a sweep; name another directory")
    if has_run(directory) and not overwrite:
        words = f"belongs to an earlier run; name another directory, resume={directory} to go on with that run, or "
        raise config_error("hydra.run.dir", directory, f"{words}overwrite=true to set it aside and start over")


def lock_sweep(directory: Path) -> None:
    """Create and lock the directory of a sweep until this process ends; a new one is then removed if it has no jobs. Raise
    ConfigError if the directory belongs to a run."""
    if has_run(directory) and not (directory / SWEEP_FILE).exists():
        raise config_error("hydra.sweep.dir", directory, "belongs to a run; name another directory")
    is_new = not directory.exists()
    Lock(directory, "hydra.sweep.dir")
    if is_new:
        atexit.register(_remove_without_jobs, directory)


def _remove_without_jobs(directory: Path) -> None:
    if Lock.is_here(directory) and not any(directory.glob("[!.]*/status.json")):
        shutil.rmtree(directory, ignore_errors=True)


def has_run(directory: Path) -> bool:
    """Return whether the directory belongs to an earlier run, which was able to start."""
    could_not_start = (read_json(directory / "status.json") or {}).get(COULD_NOT_START)
    return not could_not_start and any((directory / name).exists() for name in _RUN_FILES)


def run_directories(folder: Path, depth: int = sys.maxsize) -> Iterator[Path]:
    """Yield the directories of runs and sweep jobs at most `depth` levels below a folder. Follow links to folders, because logs/
    may be a link to a larger disk, but not links to runs."""
    for name, folders, _ in os.walk(folder, followlinks=True):
        path = Path(name)
        is_run = (path / FILE).is_file()
        if is_run and not path.is_symlink():
            yield path
        if is_run or len(path.relative_to(folder).parts) == depth:
            folders.clear()
        folders[:] = sorted(name for name in folders if not name.startswith("."))


def absolute(path: str | Path) -> Path:
    """Return the absolute path as Hydra writes it: `..` is resolved, links are not."""
    return Path(os.path.abspath(path))  # noqa: PTH100
