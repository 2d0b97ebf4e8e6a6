"""Can a run start as it is configured, here and now? Asked before any directory exists."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar, Self

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lockstep import console
from lockstep.config.checks import check
from lockstep.config.plan import Plan
from lockstep.errors import ConfigError, ExitCode, config_error
from lockstep.launchers.command_line import CommandLine
from lockstep.launchers.environment import this_rank
from lockstep.runs.directory import OWN_DIRECTORY, take_run_directory
from lockstep.runs.events import Subscribers


@dataclass(frozen=True)
class Prepared:
    """Holds what a process knows of its run before it begins. is_resumed: it goes on with what an earlier start has left."""

    plan: Plan
    command: CommandLine = field(default_factory=CommandLine)
    is_resumed: bool = False
    _by_hydra: ClassVar[Self | None] = None

    @classmethod
    def prepare(cls, config: DictConfig) -> None:
        """Called with what Hydra has composed, before it makes the run's directory or writes into it: takes the directory.
        Raises ConfigError, and has changed nothing then."""
        subscribers = Subscribers.compose(config)
        subscribers.derive(config)
        command = CommandLine.of(config)
        _, plan = validated(config, subscribers)
        cls._by_hydra = cls(plan, command, take_run_directory(config, command, plan.global_batch_size, subscribers))

    @classmethod
    def by_hydra(cls) -> Self:
        """Returns the latest, for `main`, to which Hydra gives the config alone."""
        assert cls._by_hydra is not None, "conf/hydra/default.yaml has ValidateConfig among its callbacks"
        return cls._by_hydra


def validated(
    config: DictConfig, subscribers: Subscribers | None = None, node_gpus: int | None = None
) -> tuple[DictConfig, Plan]:
    """The config of the run less Hydra's own part, and its plan; raises ConfigError if the run can't start so.

    `subscribers`: of this config, if they are composed already.
    `node_gpus`: of each node that it is to run on, and will be started on, if that is not here.
    """
    if "hydra" in config and not OmegaConf.is_interpolation(config, "run_dir"):
        raise config_error("run_dir", config.run_dir, f"is for scripts; accepted is hydra.run.dir={config.run_dir}")
    subscribers = subscribers or Subscribers.compose(config)
    subscribers.derive(config)
    cfg = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    check(cfg, OmegaConf.select(config, "hydra.runtime.choices") or ())
    rank = this_rank()
    plan = Plan.from_config(cfg, None if rank is None else rank.started, node_gpus)
    if node_gpus is None:
        _check_launch(plan)
    for subscriber in subscribers:
        subscriber.check(cfg, plan)
    return cfg, plan


def _check_launch(plan: Plan) -> None:
    """Raises ConfigError where the processes that have been started, or can be started here, are not those planned."""
    rank = this_rank()
    if rank is None and plan.num_nodes > 1:
        raise config_error(
            "trainer.num_nodes", plan.num_nodes, "torchrun, say, starts the processes of several nodes; accepted here is 1"
        )
    if rank is not None and rank.world_size != plan.world_size:
        raise ConfigError(
            f"trainer.devices={plan.devices} trainer.num_nodes={plan.num_nodes}: {rank.started_by} has started "
            f"{rank.world_size} process(es); accepted is a product of {rank.world_size}"
        )


@contextmanager
def refusing() -> Iterator[None]:
    """Ends the process in Hydra's callbacks, where an exception would be a warning: by one line and code 2, or 1 for a bug."""
    try:
        yield
    except (ConfigError, OmegaConfBaseException) as error:
        from lockstep.config.hydra_errors import explain

        console.say(line := explain(error) or str(error))
        OWN_DIRECTORY.end_unstarted(line)
        raise SystemExit(ExitCode.REFUSED) from None
    except Exception as error:
        traceback.print_exc()
        OWN_DIRECTORY.end_unstarted(f"{type(error).__name__}: {error}")
        raise SystemExit(ExitCode.FAILED) from None
