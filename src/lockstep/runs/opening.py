"""Open a run: check its config, lock its directory, and write the config there."""

import uuid
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.utils import get_object
from omegaconf import DictConfig

from lockstep.atomic_files import read_json
from lockstep.launchers.environment import can_resume, restarts, this_rank
from lockstep.runs.directory import absolute, lock_new_run
from lockstep.runs.locks import Lock
from lockstep.runs.run import Run
from lockstep.runs.saved import FILE, FOLDER, RUN_ID, fix_times, is_queued, read_overrides, read_run_id, write_config
from lockstep.runs.validation import check_run_dir, check_single, refusing, validated


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
            names = (f"{FOLDER}/*.yaml", "status.json", "metrics.json")
            run.before = {file: file.read_text() for name in names for file in directory.glob(name)}
        elif {*overrides} <= {*read_overrides(directory)}:  # its sweep has written this config
            return run
    write_config(directory, cfg, hydra, run_id, run.plan.global_batch_size)
    return run


def has_begun(directory: Path, overrides: list[str]) -> bool:
    """Return whether the same command has started the directory's run, so that these ranks were restarted or have joined its
    rendezvous again. The answer is the same on every rank, before and after rank zero resumes the run."""
    if not can_resume() or not (directory / FILE).is_file() or read_overrides(directory) != overrides:
        return False
    return restarts() > 0 or (read_json(directory / "status.json") or {}).get("status") != "finished"
