"""Check that a run can start here as it is configured, before any process is started."""

import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from lockstep import console
from lockstep.config.checks import check
from lockstep.config.overrides import override_key
from lockstep.config.plan import BATCH, GLOBAL_BATCH, Plan
from lockstep.errors import ConfigError, ExitCode, config_error
from lockstep.launchers.environment import this_rank


def validated(config: DictConfig, hydra: DictConfig | None = None, node_gpus: int | None = None) -> tuple[DictConfig, Plan]:
    """The config of the run less Hydra's own part, and its plan; raises ConfigError if the run can't start so.

    `node_gpus`: of each node that it is to run on, and will be started on, if that is not here.
    `hydra`: its own part, which says what was given and which options it has composed.
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
    """Set the values that follow from others: from `overrides`, those of the command line, and trainer.exact. Raise ConfigError
    for what does not go together."""
    _choose_batch_size(config, overrides)
    _apply_exact(config)


def _choose_batch_size(config: DictConfig, overrides: Iterable[str]) -> None:
    """Drop the batch_size of a file where the command line has the global one."""
    given = {override_key(item): item.partition("=")[2] for item in overrides if not item.startswith("~")}
    if given.get(GLOBAL_BATCH, "null") != "null":
        if given.get(BATCH, "null") != "null":
            accepted = f"is given beside {GLOBAL_BATCH}={given[GLOBAL_BATCH]}; use one of the two"
            raise config_error(BATCH, given[BATCH], accepted)
        if OmegaConf.select(config, BATCH) is not None:
            OmegaConf.update(config, BATCH, None)


def _apply_exact(config: DictConfig) -> None:
    """Replace trainer.exact, which no Trainer takes, by the values that follow from it."""
    if not OmegaConf.is_dict(OmegaConf.select(config, "trainer")) or "exact" not in config.trainer:
        return
    workers = config.trainer.exact
    with read_write(config), open_dict(config):
        del config.trainer.exact
        if workers is not None:
            get_object("lockstep.exact.settings.apply_exact")(config, workers)


def check_run_dir(config: DictConfig) -> None:
    """Raise ConfigError where `run_dir=DIR` takes the place of `hydra.run.dir=DIR`."""
    if not OmegaConf.is_interpolation(config, "run_dir"):
        raise config_error("run_dir", config.run_dir, f"is set by Hydra; give hydra.run.dir={config.run_dir}")


def _check_launch(plan: Plan) -> None:
    """Raises ConfigError where the processes that have been started, or can be started here, are not those planned."""
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
    """End the process by one line and code 2, or 1 for a bug: in Hydra's callbacks an exception would be a warning, and of one in
    a job Hydra prints lines of its own."""
    try:
        yield
    except (ConfigError, OmegaConfBaseException) as error:
        from lockstep.config.hydra_errors import explain

        console.say(explain(error) or str(error))
        raise SystemExit(ExitCode.REFUSED) from None
    except Exception:
        traceback.print_exc()
        raise SystemExit(ExitCode.FAILED) from None
