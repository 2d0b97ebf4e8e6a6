"""`datamodule.batch_size=auto`: the largest batch per process that fits the device, found before a run begins.

Each size is tried by a few optimizer steps of fresh ranks in a folder that is thrown away: on all of them together, so that they
agree, and one that is out of memory leaves nothing behind for the next. Beside `datamodule.global_batch_size` it is the largest
divisor of a process's share that fits, and gradients are accumulated over the rest.
"""

import math
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from lockstep.atomic_files import read_json, write_json
from lockstep.config.overrides import as_given, with_values
from lockstep.config.plan import Plan
from lockstep.console import say
from lockstep.errors import ConfigError, EpochTooShort, ExitCode, config_error
from lockstep.extras.batch_size.halving import ACCUMULATE, GLOBAL, HALVES, KEY, can_halve, in_smaller_batches, is_out_of_memory
from lockstep.launchers.environment import is_rank_zero, this_rank
from lockstep.launchers.rank import leave_process_group
from lockstep.launchers.supervisor import supervise
from lockstep.runs.run import Run
from lockstep.runs.validation import Prepared, validated

AUTO = "auto"
_TRY = Path(__file__).with_name("try_batch.py")  # what a rank runs: PROGRAM CONFIG
FIRST = 16  # samples that are tried first
STEPS = 3  # optimizer steps of a try: from the second on, the optimizer has its state
CLOSE = 16  # found is the largest size but for a part in so many
SPARE = 0.1  # of a GPU's memory: steps of a longer training are not all alike
FULL = "out of memory"
PARTS = 2  # that a try accumulates where the run does: more take no more memory
# What the search does without: it takes no memory on the device, or acts on what is trained.
_TAKEN_OUT = ("guards.checkpoint", "guards.nonfinite", "callbacks.best_checkpoint", "callbacks.early_stopping")


class Found(NamedTuple):
    """size: the most samples that a process has at once; accumulate: how many such batches make a step; too_large: the smallest
    size seen that does not fit, None where a step has no more samples."""

    size: int
    accumulate: int
    too_large: int | None


def find_batch_size(config: DictConfig) -> None:
    """Sets it in what Hydra has composed and in the overrides that this was composed of, so that it is recorded
    and passed on like a number that was given.

    Raises ConfigError where it can't be searched for, SystemExit where a try fails otherwise than for want of memory.
    """
    cfg, plan = validated(config, unfilled=True)
    found = search(cfg, plan)
    limit = cfg.memory_per_process
    within = f"{SPARE:.0%} of the device's memory is left spare" if limit is None else f"of {limit:g} GiB of memory each"
    given = OmegaConf.select(cfg, GLOBAL)
    parts = "" if given is None or found.accumulate == 1 else f", {found.accumulate} accumulated"
    more = "an epoch has no more than one such step" if given is None else f"that is the share of one in {GLOBAL}={given}"
    why = f"{found.too_large} do not fit" if found.too_large else more
    print(f"{KEY}={AUTO}: {found.size} per process{parts}; {why}; {within}", flush=True)
    values: dict[str, Any] = {KEY: found.size}
    if given is not None and found.accumulate > 1:
        values |= {ACCUMULATE: found.accumulate} | in_smaller_batches(cfg, found.accumulate)
    if cfg.halve_batch_size is None and can_halve(cfg):
        values[HALVES] = True
    with read_write(config), open_dict(config), read_write(config.hydra):
        for key, value in values.items():
            OmegaConf.update(config, key, value)
        config.hydra.overrides.task = with_values(as_given(config.hydra.overrides.task), values)


def search(cfg: DictConfig, plan: Plan) -> Found:
    """Tries sizes by short runs of the config, whose batch size is `auto`. Raises ConfigError where not even one sample fits."""
    given = OmegaConf.select(cfg, GLOBAL)
    with tempfile.TemporaryDirectory(prefix="lockstep-batch-") as folder:
        if given is None:
            accumulate = cfg.trainer.accumulate_grad_batches
            size, too_large = largest_that_fits(lambda size: _tried(cfg, plan, size, accumulate, Path(folder)))
        else:
            share = -(-given // plan.data_parallel_size)  # of the process that has most
            size, too_large = largest_part_that_fits(
                lambda size: _tried(cfg, plan, size, min(PARTS, share // size), Path(folder)), share
            )
            accumulate = share // max(1, size)
    if not size:
        raise config_error(KEY, AUTO, "not even one sample per process fits; accepted is a smaller model, or more memory")
    return Found(size, accumulate, too_large)


def check_search(cfg: DictConfig, plan: Plan) -> None:
    """Raises ConfigError where the batch size can't be searched for."""
    if OmegaConf.select(cfg, GLOBAL) is not None and plan.accumulate_grad_batches > 1:
        accepted = f"follows from {KEY}={AUTO} where {GLOBAL} is given; accepted is 1"
        raise config_error(ACCUMULATE, plan.accumulate_grad_batches, accepted)
    rank = this_rank()
    if rank is not None:
        why = f"needs fresh processes for every size, which {rank.started_by} does not start; accepted under it is a number"
        raise config_error(KEY, AUTO, why)
    if plan.accelerator == "mps" or (plan.accelerator == "cpu" and not Path("/proc/self/status").is_file()):
        raise config_error(KEY, AUTO, "is for GPUs, and CPUs under Linux; accepted here is a number")
    if plan.accelerator == "cpu" and cfg.memory_per_process is None:
        why = "a CPU has no memory of its own to fill; accepted is a number, or memory_per_process=GIB beside auto"
        raise config_error(KEY, AUTO, why)


def largest_that_fits(tried: Callable[[int], float | None]) -> tuple[int, int | None]:
    """The largest size that fits, but for one part in CLOSE, and the smallest seen that does not: by doubling, then by halving
    the distance. 0 where none fits; None where there are no more samples.

    `tried` returns the most samples that a process can have in a step, None where the size does not fit. Where there are fewer
    than `size`, the size was not tried.
    """
    fits, too_large, most, size = 0, None, 0.0, FIRST
    while True:
        if (samples := tried(size)) is None:
            too_large = size
        elif samples < size:
            size = int(samples)
            if not size:
                accepted = "an epoch has no sample for each process and batch of a step; accepted is more data, or fewer of them"
                raise config_error(KEY, AUTO, accepted)
            continue
        else:
            fits, most = size, max(most, samples)
        if too_large is None and fits >= most:
            return fits, None
        if too_large is not None and too_large - fits <= max(1, fits // CLOSE):
            return fits, too_large
        size = (fits + too_large) // 2 if too_large is not None else int(min(2 * fits, most))


def largest_part_that_fits(tried: Callable[[int], float | None], share: int) -> tuple[int, int | None]:
    """The largest divisor of a process's share of a step that fits, and the smallest one seen that does not: the share itself, or
    by halving the range. 0 where none fits; None where the share does."""
    if (samples := tried(share)) is not None:
        if samples < share:
            accepted = f"an epoch has no {share} samples for each process; accepted is a smaller {GLOBAL}, or more data"
            raise config_error(KEY, AUTO, accepted)
        return share, None
    sizes = [size for size in range(1, share) if share % size == 0]
    low, high = 0, len(sizes)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if tried(sizes[middle]) is None else (middle + 1, high)
    return sizes[low - 1] if low else 0, [*sizes, share][low]


def _tried(cfg: DictConfig, plan: Plan, size: int, accumulate: int, folder: Path) -> float | None:
    """Fresh ranks with that size; see `largest_that_fits`."""
    place = folder / str(size)
    place.mkdir()
    file = place / "config.yaml"
    OmegaConf.save(_shortened(cfg, size, accumulate, place), file, resolve=True)
    command = [sys.executable, str(_TRY), str(Path(sys.argv[0]).absolute()), str(file)]
    outcome = supervise(command, plan.world_size, place / "train.log", fresh=cfg.fresh_processes, quiet=True)
    is_full = is_out_of_memory(outcome) or (outcome.is_silent and plan.accelerator == "cpu")  # without memory to say so
    if not outcome.code or is_full:
        most = (read_json(place / "tried.json") or {}).get("most")
        most = math.inf if most is None else most
        print(f"{KEY}={size}: {FULL if is_full else 'fits' if size <= most else 'more than an epoch has'}", flush=True)
        return None if is_full else most
    if outcome.code == ExitCode.REFUSED:
        raise ConfigError(outcome.reason or "")
    if outcome.traceback:
        print(outcome.traceback, file=sys.stderr)
    how = "the search was" if outcome.code == ExitCode.PREEMPTED else f"with {size} samples a try failed, not for want of memory:"
    say(f"{KEY}={AUTO}: {how} {outcome.reason}")
    raise SystemExit(outcome.code)


def _shortened(cfg: DictConfig, size: int, accumulate: int, place: Path) -> DictConfig:
    """The run of a few steps that has a run's memory on the device, validation's too, and leaves nothing outside `place`."""
    short: Any = OmegaConf.create(OmegaConf.to_container(cfg, resolve=False))  # pyright: ignore[reportArgumentType]
    short.run_dir, short.datamodule.batch_size, short.test = str(place), size, False
    short.fork = short.init_from = short.resume = None
    short.trainer.accumulate_grad_batches = accumulate
    if OmegaConf.select(cfg, GLOBAL) is not None:
        short.datamodule.global_batch_size = None
    short.events = {}
    short.logger = {"csv": {"_target_": "lockstep.trainer.loggers.CSVLogger", "save_dir": str(place)}}
    steps = {"max_steps": STEPS, "max_epochs": -1, "limit_train_batches": STEPS * accumulate}
    validation = {"num_sanity_val_steps": 1, "limit_val_batches": int(short.trainer.get("limit_val_batches") != 0)}
    whole_epochs = {"val_check_interval": 1.0, "check_val_every_n_epoch": 1}  # an interval may be longer than the try
    short.trainer.update({**steps, **validation, **whole_epochs, "enable_progress_bar": False})
    for key in _TAKEN_OUT:
        if OmegaConf.select(short, key) is not None:
            OmegaConf.update(short, key, None)
    return short


def try_batch(file: Path) -> None:
    """In a rank: the run of that config."""
    cfg: Any = OmegaConf.load(file)
    with Run(cfg, Prepared(Plan.from_config(cfg))) as run:
        from lockstep.build import build  # torch and Lightning

        _limit_memory(run.plan, cfg.memory_per_process)
        try:
            datamodule, model, trainer = build(cfg, run.plan)
            trainer.fit(model, datamodule)
            most = _most_samples(trainer, cfg.datamodule.batch_size)
        except EpochTooShort as error:
            most = error.most
        except Exception:
            if run.plan.accelerator == "cpu":
                _set_limit(-1)  # saying why takes memory too
            raise
        if is_rank_zero():
            write_json(file.with_name("tried.json"), {"most": most})
        leave_process_group()


def _limit_memory(plan: Plan, limit: float | None) -> None:
    """Of this process: `limit` in GiB, beyond what a process on CPUs has when it begins; null leaves SPARE of a GPU."""
    if plan.accelerator == "cpu":
        assert limit is not None, "asked of the config when the search began"
        now = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmData:"))
        _set_limit(int(now.split()[1]) * 1024 + int(limit * 2**30))
        return
    import torch

    rank = this_rank()
    local = rank.local_rank if rank else 0
    device = plan.device_ids[local] if plan.device_ids else local
    part = 1 - SPARE if limit is None else min(1.0, limit * 2**30 / torch.cuda.get_device_properties(device).total_memory)
    torch.cuda.set_per_process_memory_fraction(part, device)


def _set_limit(size: int) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_DATA, (size, -1))


def _most_samples(trainer: Any, size: int) -> float | None:
    """Of one process in one batch: as many as it has in an epoch, which without drop_last may be less than a step; None where
    an epoch has no length."""
    try:
        return max(1, len(trainer.train_dataloader) // trainer.accumulate_grad_batches) * size
    except TypeError:
        return None
