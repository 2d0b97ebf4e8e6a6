"""What the arguments of the guard accept, and what going back needs."""

from omegaconf import DictConfig, OmegaConf

from lockstep.config.plan import Plan
from lockstep.config.rules import above, integer, one_of
from lockstep.errors import config_error

RULES = {"Spikes": {"action": one_of("skip", "rewind"), "sigmas": above(0), "window": integer(4), "limit": integer(1)}}


def _check_restarts(cfg: DictConfig, key: str, _plan: Plan) -> None:
    """A run of one process has a parent that starts it again only where it may be restarted."""
    if OmegaConf.select(cfg, f"{key}.action") == "rewind" and not cfg.max_restarts:
        raise config_error("max_restarts", 0, f"{key}.action=rewind starts the ranks again; accepted is 1 or more")


CHECKS = {"Spikes": _check_restarts}
