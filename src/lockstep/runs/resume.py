"""`resume=RUN_DIR`: the command line of a run that was broken off, to go on in its own directory."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from lockstep.atomic_files import read_json, replace_text
from lockstep.config.overrides import config_flags, key_of, last_of_each, of_each_run, quote, split_flags, unquote
from lockstep.errors import ConfigError, config_error
from lockstep.launchers.environment import this_rank
from lockstep.runs.locks import check_free

ADDED = "resumed.yaml"  # the overrides that resumptions have added; .hydra/ stays as the first start has written it
_CHANGES_THE_WORLD = {"trainer", "trainer.devices", "trainer.num_nodes", "trainer.accumulate_grad_batches"}
_IN_THE_CHECKPOINT = ("model.optimizer", "model/optimizer", "model.lr_scheduler", "model/lr_scheduler")
_IN_THE_CHECKPOINT += ("seed", "lr_scaling", "base_batch_size")
_SAYS_THE_BATCH = {"datamodule", "datamodule.batch_size", "datamodule.global_batch_size"}


def command_to_continue(arguments: Sequence[str]) -> list[str] | None:
    """The arguments with a `resume=` among them spelled out: what the run was started with, its directory, then what is
    new. Without one as they are; None where the run has finished and nothing new is asked of it.

    Done before Hydra starts: inside it a new directory exists already, and ranks are started with the command line.
    Raises ConfigError where there is no such run, or where it is still running.
    """
    flags, new = split_flags(arguments)
    wanted = next((unquote(item.removeprefix("resume=")) for item in new if item.startswith("resume=")), "null")
    rank = this_rank()
    if wanted == "null" or (rank is not None and rank.started_by == "parent"):  # whose arguments are spelled out
        return list(arguments)
    if {"-m", "--multirun"} & set(flags):
        raise config_error("resume", wanted, "is for one run; a sweep goes on by its own command, or by scripts/sweep.py resume")
    if wanted == "last" and rank is not None:
        raise config_error("resume", wanted, f"{rank.started_by}'s ranks look for themselves; accepted is the run's directory")
    run_dir = newest_unfinished() if wanted == "last" else Path(wanted).expanduser().absolute()
    if not (run_dir / ".hydra" / "overrides.yaml").is_file():
        raise config_error("resume", wanted, "has no .hydra/overrides.yaml; accepted is the directory of a run, or last")
    if rank is None or rank.global_rank == 0:
        check_free(run_dir, "resume")
    new = [item for item in new if not item.startswith(("resume=", "hydra.run.dir="))]
    status = read_json(run_dir / "status.json") or {}
    if status.get("status") == "finished" and not new:
        return None
    first: Any = OmegaConf.load(run_dir / ".hydra" / "hydra.yaml")
    saved = [*OmegaConf.load(run_dir / ".hydra" / "overrides.yaml"), *of_each_run(first.hydra), *added(run_dir)]
    saved = [item for item in saved if not item.startswith("resume=")]
    changed = [item for item in new if item not in saved]
    _check(changed)
    keys = {key_of(item) for item in changed}
    if "global_batch_size" in status and keys & _CHANGES_THE_WORLD and not keys & _SAYS_THE_BATCH and _takes_global(run_dir):
        saved.append(f"datamodule.global_batch_size={status['global_batch_size']}")  # whatever the number of processes
    where = [f"hydra.run.dir={quote(str(run_dir))}", f"resume={quote(str(run_dir))}"]
    return [*config_flags(first.hydra), *flags, *last_of_each([*saved, *new]), *where]


def _check(changed: Sequence[str]) -> None:
    """Raises ConfigError for what a resumption can't change: it is in the checkpoint, or it is another run."""
    for item in changed:
        key, _, value = item.partition("=")
        if key.lstrip("+~").startswith(_IN_THE_CHECKPOINT):
            raise config_error(
                key, value, "comes from the checkpoint on resumption; accepted is a new run, with init_from=CHECKPOINT"
            )
        if key in ("ckpt_path", "init_from") and value != "null":
            raise config_error(key, value, "a run is resumed from its own checkpoint; accepted is a new run, without resume")


def _takes_global(run_dir: Path) -> bool:
    """Has the datamodule a global_batch_size? One of the user's own may not."""
    path = run_dir / ".hydra" / "config.yaml"
    cfg: Any = OmegaConf.load(path) if path.is_file() else {}
    return "global_batch_size" in cfg.get("datamodule", {})


def newest_unfinished() -> Path:
    """The run below logs/ that was written to last, of those that have not finished and are not running."""

    def written(path: Path) -> float:
        files = [path, path.with_name("progress.json"), *path.parent.glob("checkpoints/*.ckpt")]
        return max(file.stat().st_mtime for file in files if file.is_file())

    for path in sorted(Path("logs").glob("*/*/status.json"), key=written, reverse=True):
        if (read_json(path) or {}).get("status") != "finished" and _is_free(path.parent):
            return path.parent.absolute()
    raise config_error("resume", "last", f"there is no unfinished run in {Path('logs').absolute()}")


def _is_free(run_dir: Path) -> bool:
    try:
        check_free(run_dir, "resume")
    except ConfigError:
        return False
    return True


def added(run_dir: Path) -> list[str]:
    """What resumptions have changed so far."""
    path = run_dir / ADDED
    return list(OmegaConf.load(path)) if path.is_file() else []


def note_added(run_dir: Path, overrides: Sequence[str]) -> None:
    """Writes down what this resumption has changed of the first start, for the next one."""
    first = list(OmegaConf.load(run_dir / ".hydra" / "overrides.yaml"))
    changed = [item for item in overrides if item not in first and not item.startswith("resume=")]
    if changed:
        replace_text(run_dir / ADDED, OmegaConf.to_yaml(OmegaConf.create(changed)))
