"""Set up a rank's process, which the parent has started, before the run begins."""

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import configure_log, setup_globals
from omegaconf import DictConfig

from lockstep import console
from lockstep.launchers.environment import log_plainly, register_resolvers
from lockstep.places import import_from_project
from lockstep.runs.locks import Lock


def set_up_rank(hydra: DictConfig | None) -> None:
    """Repeat the set-up that Hydra and the command line did in the parent. `hydra` is Hydra's part of the config, if any."""
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
