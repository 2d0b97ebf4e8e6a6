"""`resume=RUN_DIR`: the command line of a run that was broken off, to go on in its own directory."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from lockstep.atomic_files import read_json
from lockstep.config.overrides import override_key, quote, split_flags
from lockstep.config.read import Given, check_flags, check_overrides
from lockstep.errors import config_error
from lockstep.launchers.environment import this_rank
from lockstep.runs.directory import absolute
from lockstep.runs.events import Subscribers, first, values_by_key
from lockstep.runs.identity import FILE, START_KEYS, Identity, how_else
from lockstep.runs.locks import check_free
from lockstep.runs.record import actual_status

_IN_THE_CHECKPOINT = ("model.optimizer", "model/optimizer", "model.lr_scheduler", "model/lr_scheduler")
_IN_THE_CHECKPOINT += ("seed", "lr_scaling", "base_batch_size")
_OF_ITS_OWN = "a run is resumed from its own checkpoint; accepted is a new run, without resume"


def command_to_continue(arguments: Sequence[str]) -> list[str] | None:
    """The arguments with a `resume=` among them spelled out: what the run was started with, its directory, then what is
    new. Without one as they are; None where the run has finished and nothing new is asked of it.

    Done before Hydra starts: inside it a new directory exists already, and ranks are started with the command line.
    Raises ConfigError where there is no such run, where it is still running, can't be continued so, or names what a directory may
    not. Changes nothing.
    """
    flags, overrides = split_flags(arguments)
    values, rank = values_by_key(overrides), this_rank()
    wanted = values.get("resume", "null")
    if wanted == "null":
        return list(arguments)
    if {"-m", "--multirun"} & set(flags):
        raise config_error("resume", wanted, "is for one run; a sweep goes on by its own command, or by scripts/sweep.py resume")
    subscribers = Subscribers.before_composition()
    run_dir = locate_run(wanted, values, subscribers)
    left_out = {*START_KEYS, *subscribers.start_keys}
    new = [item for item in overrides if override_key(item) not in left_out]
    if any(override_key(item) == "overwrite" and not item.endswith("=false") for item in overrides):
        raise config_error("resume", wanted, "goes on with what overwrite=true would set aside; accepted is one of them")
    saved = _read_identity(run_dir, wanted)
    if rank is None or rank.global_rank == 0:
        check_free(run_dir, "resume")
    is_same = {*new} <= {*saved.overrides} and values_by_key(new).items() <= values_by_key(saved.overrides).items()
    if is_same and actual_status(run_dir) == "finished" and read_json(run_dir / "metrics.json") is not None:
        return None
    given = Given.from_arguments(arguments)
    check_flags(run_dir, saved.flags, given)
    check_overrides(
        run_dir, saved.overrides, saved.flags, given, lambda key, value: subscribers.objection(key, value, run_dir, wanted)
    )
    _check([item for item in new if item not in saved.overrides])
    where = [f"hydra.run.dir={quote(str(run_dir))}", f"resume={quote(str(run_dir))}"]
    spelled_out = [*saved.flags, *flags, *saved.with_changes(new), given.override, *where]
    return subscribers.arguments(spelled_out, values, saved)


def locate_run(wanted: str, values: Mapping[str, str], subscribers: Subscribers) -> Path:
    return first(one.locate(wanted, values) for one in subscribers) or absolute(Path(wanted).expanduser())


def _read_identity(run_dir: Path, wanted: str) -> Identity:
    identity = Identity.read(run_dir)
    if identity is not None:
        return identity
    if any(run_dir.glob("checkpoints/*.ckpt")):
        raise config_error("resume", wanted, f"has lost its {FILE}, which says what the run is; {how_else(run_dir)}")
    raise config_error("resume", wanted, f"has no {FILE}; accepted is the directory of a run")


def _check(changed: Sequence[str]) -> None:
    """Raises ConfigError for what a resumption can't change: it is in the checkpoint, or it is another run."""
    for item in changed:
        key, value = override_key(item), item.partition("=")[2]
        if key.startswith(_IN_THE_CHECKPOINT):
            raise config_error(key, value, "comes from the checkpoint on resumption; accepted is a new run, by fork=RUN_DIR")
        if key == "init_from" and value != "null":
            raise config_error(key, value, _OF_ITS_OWN)
