"""A rank of a run, in the process that its parent has started for it, before the run begins."""

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import configure_log, setup_globals
from omegaconf import DictConfig

from lockstep import console
from lockstep.launchers.environment import log_plainly, register_resolvers
from lockstep.places import import_from_project
from lockstep.runs.locks import Lock


def set_up_rank(hydra: DictConfig | None) -> None:
    """Set up what Hydra and the command line set up in the parent, whose part of the config is `hydra`; a script's has none."""
    console.survive_lost_output()
    import_from_project()
    setup_globals()
    register_resolvers()
    Lock.forget()  # the parent's, where the rank is a fork of it
    if hydra is None:
        log_plainly()
    else:
        HydraConfig.instance().cfg = hydra  # pyright: ignore[reportAttributeAccessIssue]
        configure_log(hydra.hydra.job_logging, hydra.hydra.verbose)
