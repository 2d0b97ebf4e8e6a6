"""Open a run: lock its directory, and write its config there or read it."""

import os
import uuid
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.utils import get_object
from omegaconf import DictConfig

from lockstep.atomic_files import read_json
from lockstep.launchers.environment import SWEPT_KEYS, can_resume, restarts, this_rank
from lockstep.runs.directory import OwnDirectory, absolute, take_new
from lockstep.runs.run import Run
from lockstep.runs.saved import FILE, RUN_ID, fix_times, is_queued, propose_config, read_config, read_overrides, write_config
from lockstep.runs.validation import check_run_dir, check_single, refusing, validated


@refusing()
def open_run(cfg: DictConfig) -> Run:
    """Open the run that Hydra has composed: lock its directory and write its config there. Resume the directory's run instead if
    the config is that run's, or if a launcher restarts the ranks of the command that started it.

    Raise SystemExit with one line and code 2 if the run can't start. The directory of a new run then records the reason; an
    earlier run's directory is unchanged.
    """
    hydra: Any = HydraConfig.get()
    overrides = list(hydra.overrides.task)
    if SWEPT_KEYS not in os.environ:
        check_single([*overrides, *hydra.overrides.hydra])
    check_run_dir(cfg)
    fix_times(cfg)
    directory, rank = absolute(cfg.run_dir), this_rank()
    goes_on = cfg.get(RUN_ID) is not None or has_begun(directory, overrides)
    saved = read_config(directory) if goes_on else None
    if saved is not None:
        from lockstep.runs.resume import check_unchanged  # only resumed runs need it

        check_unchanged(saved, cfg, directory)
    if cfg.forked_from is None and cfg.get("fork") is not None:
        from lockstep.runs.fork import describe_origin

        cfg.forked_from = describe_origin(cfg)
    is_resumed = goes_on and not is_queued(directory)
    if rank is not None and rank.global_rank > 0:
        return Run(*validated(cfg.copy(), hydra), is_resumed=is_resumed)
    own = OwnDirectory(directory, "resume") if goes_on else take_new(directory, cfg.overwrite)
    try:
        run = Run(*validated(cfg.copy(), hydra), is_resumed=is_resumed, own=own)
        # as it was composed: `validated` has set the values that follow from others in a copy
        size = run.plan.global_batch_size
        if saved is not None:
            propose_config(directory, cfg, saved.run_id, size, overrides)
        else:
            if cfg.get("mirror") is not None:
                get_object("lockstep.mirror.check_new")(cfg.mirror, directory)
            write_config(directory, cfg, hydra, uuid.uuid4().hex, size)
    except BaseException as error:
        own.end_unstarted(str(error) or type(error).__name__)
        raise
    return run


def has_begun(directory: Path, overrides: list[str]) -> bool:
    """Return whether the same command has started the directory's run, so that these ranks were restarted or have joined its
    rendezvous again. The answer is the same on every rank, before and after rank zero resumes the run."""
    if not can_resume() or not (directory / FILE).is_file() or read_overrides(directory) != overrides:
        return False
    return restarts() > 0 or (read_json(directory / "status.json") or {}).get("status") != "finished"
