"""Check that a run can start here with its config, before any process is started."""

import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from lockstep import console
from lockstep.config.checks import check
from lockstep.config.overrides import override_key
from lockstep.config.plan import BATCH, GLOBAL_BATCH, Plan
from lockstep.errors import ConfigError, ExitCode, config_error
from lockstep.launchers.environment import this_rank


def validated(config: DictConfig, hydra: DictConfig | None = None, node_gpus: int | None = None) -> tuple[DictConfig, Plan]:
    """Return the run's config without Hydra's part, and its plan. Raise ConfigError if the run can't start.

    `node_gpus`: GPUs of each node, if the run will be started on another machine.
    `hydra`: Hydra's part of the config, with the overrides and the chosen options.
    """
    derive(config, () if hydra is None else hydra.overrides.task)
    cfg = without_hydra(config)
    check(cfg, () if hydra is None else hydra.runtime.choices)
    rank = this_rank()
    plan = Plan.from_config(cfg, None if rank is None else rank.started, node_gpus)
    if node_gpus is None:
        _check_launch(plan)
    return cfg, plan


def without_hydra(config: DictConfig) -> DictConfig:
    return OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])


def derive(config: DictConfig, overrides: Iterable[str] = ()) -> None:
    """Set the values that follow from others: from the command line's `overrides`, and from trainer.exact. Raise ConfigError if
    values contradict each other."""
    _choose_batch_size(config, overrides)
    _apply_exact(config)


def _choose_batch_size(config: DictConfig, overrides: Iterable[str]) -> None:
    """Drop a config file's batch_size if the command line sets the global one."""
    given = {override_key(item): item.partition("=")[2] for item in overrides if not item.startswith("~")}
    if given.get(GLOBAL_BATCH, "null") != "null":
        if given.get(BATCH, "null") != "null":
            accepted = f"is given beside {GLOBAL_BATCH}={given[GLOBAL_BATCH]}; use one of the two"
            raise config_error(BATCH, given[BATCH], accepted)
        if OmegaConf.select(config, BATCH) is not None:
            OmegaConf.update(config, BATCH, None)


def _apply_exact(config: DictConfig) -> None:
    """Replace trainer.exact, which is no argument of the Trainer, by the values that follow from it."""
    if not OmegaConf.is_dict(OmegaConf.select(config, "trainer")) or "exact" not in config.trainer:
        return
    workers = config.trainer.exact
    with read_write(config), open_dict(config):
        del config.trainer.exact
        if workers is not None:
            get_object("lockstep.exact.settings.apply_exact")(config, workers)


def check_run_dir(config: DictConfig) -> None:
    """Raise ConfigError if `run_dir=DIR` was given instead of `hydra.run.dir=DIR`."""
    if not OmegaConf.is_interpolation(config, "run_dir"):
        raise config_error("run_dir", config.run_dir, f"is set by Hydra; give hydra.run.dir={config.run_dir}")


def _check_launch(plan: Plan) -> None:
    """Raise ConfigError if the processes that were started, or can be started here, are not those of the plan."""
    rank = this_rank()
    if rank is None and plan.num_nodes > 1:
        raise config_error(
            "trainer.num_nodes", plan.num_nodes, "torchrun, say, starts the processes of several nodes; use 1 here"
        )
    if rank is not None and rank.world_size != plan.world_size:
        raise ConfigError(
            f"trainer.devices={plan.devices} trainer.num_nodes={plan.num_nodes}: {rank.started_by} has started "
            f"{rank.world_size} process(es); use numbers whose product is {rank.world_size}"
        )


@contextmanager
def refusing() -> Iterator[None]:
    """Exit with one line and code 2, or 1 for a bug. Hydra would turn an exception in its callbacks into a warning, and print
    more lines for one in a job."""
    try:
        yield
    except Exception as error:
        from lockstep.config.hydra_errors import explain

        if (line := explain(error)) is None:
            traceback.print_exc()
            raise SystemExit(ExitCode.FAILED) from None
        console.say(line)
        raise SystemExit(ExitCode.REFUSED) from None
