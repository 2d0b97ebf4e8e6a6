"""What a run that is out of memory while it trains goes on with: half the samples of a process at once, and accumulation.

The global batch stays, and with it the samples of each step. Imports no torch: the parent of the ranks asks.
"""

import json
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lockstep.atomic_files import replace_text
from lockstep.config.class_checks import check_classes, is_plain
from lockstep.config.overrides import override_key, with_values
from lockstep.config.plan import Plan
from lockstep.errors import ConfigError, config_error
from lockstep.extras.batch_size import HALVED
from lockstep.launchers.environment import this_rank
from lockstep.launchers.outcome import Outcome
from lockstep.runs.events import Remedy

log = logging.getLogger(__name__)
KEY, GLOBAL, ACCUMULATE = "datamodule.batch_size", "datamodule.global_batch_size", "trainer.accumulate_grad_batches"
HALVES = "halve_batch_size"
# What Lightning counts in batches, where it is a whole number.
_IN_BATCHES = ("limit_train_batches", "limit_val_batches", "limit_test_batches", "overfit_batches", "val_check_interval")
# Of CUDA, cuBLAS, cuDNN, torch's CPU allocator, C++ and Python, in what a rank has said last.
_FULL = re.compile(r"[Oo]ut of memory|(OutOf)?MemoryError|[Cc]an(no|')t allocate memory|std::bad_alloc|ALLOC(ATION)?_FAILED")
_CUDNN_FULL = "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED"


def is_out_of_memory(outcome: Outcome) -> bool:
    reason = outcome.reason or ""
    return _FULL.search(reason) is not None or _CUDNN_FULL in reason


def can_halve(cfg: DictConfig) -> bool:
    """Is it data whose batches are counted in samples, so that a run goes on within an epoch with smaller ones."""
    return not is_plain(cfg, "datamodule")


def check_halving(cfg: DictConfig) -> None:
    """Raises ConfigError where nobody would start the ranks again, or batches are not counted in samples."""
    rank = this_rank()
    if rank is not None and rank.started_by != "parent":
        why = f"starts the ranks again with other settings, which {rank.started_by} does not; accepted under it is null"
        raise config_error(HALVES, "true", why)
    if not can_halve(cfg):
        why = "needs data that counts its batches in samples, a lockstep.datamodules.DataModule; accepted is null"
        raise config_error(HALVES, "true", why)


def halve(cfg: DictConfig, plan: Plan, outcome: Outcome, was_killed: bool) -> Remedy | None:
    """Returns None for another failure, and where a process has one sample at once or gradients can't be accumulated.

    was_killed: the kernel has killed a process meanwhile; a rank on CPUs that it has killed has said nothing."""
    is_killed = was_killed and outcome.is_silent and plan.accelerator == "cpu"
    size = plan.batch_size or 1
    if size == 1 or not (is_killed or is_out_of_memory(outcome)):
        return None
    parts = next(parts for parts in range(2, size + 1) if size % parts == 0)
    before = OmegaConf.select(cfg, HALVED) or ()
    values: dict[str, Any] = {KEY: size // parts, ACCUMULATE: plan.accumulate_grad_batches * parts, HALVED: [*before, size]}
    values |= in_smaller_batches(cfg, parts)
    changed = cfg.copy()
    for key, value in values.items():
        OmegaConf.update(changed, key, value)
    try:
        check_classes(changed, Plan.from_config(changed))
    except ConfigError as error:
        log.warning(f"{HALVES}=true: {error}")
        return None
    said = f"rank {outcome.rank or 0} is out of memory with {size} samples at once: the run goes on from its last checkpoint "
    return Remedy(f"{said}with {values[KEY]}, and {values[ACCUMULATE]} such batches a step", values)


def in_smaller_batches(cfg: DictConfig, parts: int) -> dict[str, int]:
    """Returns the trainer's settings that are numbers of batches, for batches of which `parts` are one of those before."""
    counts = {f"trainer.{name}": cfg.trainer.get(name) for name in _IN_BATCHES}
    return {key: count * parts for key, count in counts.items() if isinstance(count, int) and not isinstance(count, bool)}


def with_smaller_batches(arguments: list[str], given: Mapping[str, str], overrides: Sequence[str]) -> list[str]:
    """Returns the arguments of a command that resumes a run of these overrides, with the run's own values where the command
    repeats those from before batches became smaller: a sweep continues a job by the command that has begun it."""
    own = {override_key(item): item for item in overrides}
    now = {key: int(value) for key, item in own.items() if (value := item.partition("=")[2]).isdigit()}
    if given.get(KEY) == "auto":
        parts = now.get(ACCUMULATE, 1)
    elif HALVED in own and KEY in now:
        parts = json.loads(own[HALVED].partition("=")[2])[0] // now[KEY]
    else:
        return arguments
    counts = (ACCUMULATE, *(f"trainer.{name}" for name in _IN_BATCHES))
    before = {key: str(now[key] // parts) for key in counts if key in now} | {KEY: str(now.get(KEY, 0) * parts)}
    repeated = {key for key, value in before.items() if key in own and given.get(key) == value}
    return [own[key] if (key := override_key(item)) in repeated else item for item in arguments]


def change_saved_config(directory: Path, values: Mapping[str, Any]) -> None:
    """Says in what Hydra has saved of the run, where it has, what run.json says of it."""
    config, overrides = directory / ".hydra" / "config.yaml", directory / ".hydra" / "overrides.yaml"
    if config.is_file() and overrides.is_file():
        saved: Any = OmegaConf.load(config)
        for key, value in values.items():
            OmegaConf.update(saved, key, value)
        replace_text(config, OmegaConf.to_yaml(saved))
        replace_text(overrides, OmegaConf.to_yaml(with_values(OmegaConf.load(overrides), values)))


def kernel_kills() -> int:
    """Returns how many processes the kernel of this machine has killed for want of memory; 0 where it does not say (proc(5))."""
    file = Path("/proc/vmstat")
    lines = file.read_text().splitlines() if file.is_file() else []
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
