"""Check that a run can start here with its config, before any process is started."""

import signal
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from hydra.core.hydra_config import HydraConfig
from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from lockstep import console
from lockstep.config.construct import check_type
from lockstep.config.overrides import is_group, override_key
from lockstep.config.plan import BATCH, GLOBAL_BATCH, Plan
from lockstep.errors import ConfigError, ExitCode, config_error
from lockstep.launchers.environment import this_rank
from lockstep.launchers.stop_signals import STOP_SIGNALS, Preempted
from lockstep.metrics import check_metrics

OF_THE_WHOLE = ("experiment", "debug", "sweep")  # groups whose options set keys of the whole config
_OF_SWEEPS = ("hydra.sweep", "hydra.launcher", "hydra/launcher", "hydra/sweeper")
# The types of keys that are read before a class is constructed with them; whole numbers among the second are at least 1.
_TYPES: dict[str, Any] = {
    "seed": int,
    "lr_scaling": Literal["none", "linear", "sqrt"],
    "trainer.accelerator": Literal["auto", "cpu", "gpu", "cuda", "mps"],
    "trainer.devices": int | Literal["auto"] | Sequence[int],
    **dict.fromkeys(("guards.preemption.deadline", "guards.watchdog.seconds_to_first_batch"), float | None),
    "trainer.max_epochs": int | None,
}
_COUNTS: dict[str, Any] = {
    "trainer.num_nodes": int | Literal["auto"],
    "trainer.accumulate_grad_batches": int,
    **dict.fromkeys((BATCH, GLOBAL_BATCH), int | None),
}


def validated(config: DictConfig, hydra: DictConfig | None = None, node_gpus: int | None = None) -> tuple[DictConfig, Plan]:
    """Return the run's config without Hydra's part, and its plan. Raise ConfigError if the run can't start.

    `node_gpus`: GPUs of each node, if the run will be started on another machine.
    `hydra`: Hydra's part of the config, with the overrides and the chosen options.
    """
    derive(config, () if hydra is None else hydra.overrides.task)
    cfg = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    check(cfg, () if hydra is None else hydra.runtime.choices)
    rank = this_rank()
    plan = Plan.from_config(cfg, None if rank is None else rank.started, node_gpus)
    if node_gpus is None:
        _check_launch(plan)
    return cfg, plan


def check(cfg: DictConfig, chosen: Iterable[str] = ()) -> None:
    """Raise ConfigError for the first thing that is wrong in the composed config. `chosen`: the groups whose options Hydra has
    composed."""
    for group in ("model", "datamodule", "trainer", *OF_THE_WHOLE, *chosen):
        key = group.replace("/", ".")
        node = OmegaConf.select(cfg, key)
        if group in OF_THE_WHOLE and OmegaConf.is_dict(node):
            accepted = f"nothing reads what is under {key}; use a file that begins with `# @package _global_`"
            raise config_error(key, f"{{{', '.join(map(str, node))}}}", accepted)
        if isinstance(node, str) and is_group(group) and group not in OF_THE_WHOLE:
            raise config_error(key, node, f"a group of values; use {group}={node}")
    for key in sorted(OmegaConf.missing_keys(cfg)):
        raise config_error(key, "???", "a value is required")
    check_metrics(cfg)
    check_types(cfg, _TYPES | _COUNTS)
    for key in _COUNTS:
        if isinstance(value := OmegaConf.select(cfg, key), int) and value < 1:
            raise config_error(key, value, "is less than 1; use at least 1")
    if not 0 <= cfg.seed < 2**32:
        raise config_error("seed", cfg.seed, "is outside numpy's range; use 0 to 4294967295")
    is_begun = cfg.get("run_id") is not None and any(Path(cfg.run_dir).glob("checkpoints/*.ckpt"))
    if cfg.init_from is not None and cfg.fork is None and not is_begun and not Path(cfg.init_from).is_file():
        accepted = f"no such file: {Path(cfg.init_from).absolute()}; use a checkpoint, RUN_DIR/checkpoints/best.ckpt for example"
        raise config_error("init_from", cfg.init_from, accepted)


def check_types(cfg: DictConfig, types: Mapping[str, Any]) -> None:
    """Raise ConfigError for the first key, of those that the config has, whose value is of another type."""
    for key, annotation in types.items():
        value = OmegaConf.select(cfg, key, default=types)
        if value is not types:
            check_type(key, OmegaConf.to_container(value) if OmegaConf.is_config(value) else value, annotation)


def derive(config: DictConfig, overrides: Iterable[str] = ()) -> None:
    """Set the values that follow from others: drop a config file's batch_size if the command line's `overrides` set the global
    one, and replace trainer.exact, which is no argument of the Trainer. Raise ConfigError if values contradict each other."""
    given = {override_key(item): item.partition("=")[2] for item in overrides if not item.startswith("~")}
    if (size := given.get(GLOBAL_BATCH, "null")) != "null":
        if given.get(BATCH, "null") != "null":
            raise config_error(BATCH, given[BATCH], f"is given beside {GLOBAL_BATCH}={size}; use one of the two")
        if OmegaConf.select(config, BATCH) is not None:
            OmegaConf.update(config, BATCH, None)
    if OmegaConf.is_dict(config.get("trainer")) and "exact" in config.trainer:
        with read_write(config), open_dict(config):
            workers = config.trainer.pop("exact")
            if workers is not None:
                get_object("lockstep.exact.settings.apply_exact")(config, workers)


def check_single(overrides: Sequence[str]) -> None:
    """Raise ConfigError for an override of a sweep or of its jobs, which a single run would ignore."""
    for key, value in ((override_key(item), item.partition("=")[2]) for item in overrides):
        if key.startswith(_OF_SWEEPS) or (key == "sweep" and value != "null"):
            raise config_error(key, value, "is for sweeps; use -m")


def check_run_dir(config: DictConfig) -> None:
    """Raise ConfigError if `run_dir=DIR` was given instead of `hydra.run.dir=DIR`."""
    if not OmegaConf.is_interpolation(config, "run_dir"):
        raise config_error("run_dir", config.run_dir, f"is set by Hydra; give hydra.run.dir={config.run_dir}")


def _check_launch(plan: Plan) -> None:
    """Raise ConfigError if the processes that were started, or can be started here, are not those of the plan."""
    rank = this_rank()
    if rank is None and plan.num_nodes > 1:
        raise config_error("trainer.num_nodes", plan.num_nodes, "several nodes need torchrun or srun, which start the processes")
    if rank is not None and rank.world_size != plan.world_size:
        given = f"trainer.devices={plan.devices} trainer.num_nodes={plan.num_nodes}"
        started = f"{rank.launcher.name} has started {rank.world_size} process(es)"
        raise ConfigError(f"{given}: {started}; use numbers whose product is {rank.world_size}")


@contextmanager
def refusing() -> Iterator[None]:
    """Exit with one line: code 2 for an error in the config, 75 for a stop request before a run has begun. Print the stack trace
    of a bug; code 1. Hydra turns exceptions in its callbacks into warnings, and adds lines to those of a job."""
    try:
        yield
    except (Preempted, Exception) as error:
        reason = STOP_SIGNALS.raised or error
        if isinstance(reason, Preempted):  # runs and sweeps that have started report it themselves
            console.say(f"Stopped by {signal.Signals(reason.number).name}. The same command starts it.")
            raise SystemExit(ExitCode.PREEMPTED) from None
        from lockstep.config.hydra_errors import explain

        if (line := explain(reason)) is None:
            traceback.print_exc()
            raise SystemExit(ExitCode.FAILED) from None
        console.say(line)
        with suppress(Exception):  # Hydra has made it; what is not empty stays
            Path(HydraConfig.get().runtime.output_dir).rmdir()
        raise SystemExit(ExitCode.REFUSED) from None
