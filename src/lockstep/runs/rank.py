"""One rank of a run, in the process that its parent has started for it."""

from collections.abc import Callable, Sequence
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import configure_log
from omegaconf import DictConfig

from lockstep import console
from lockstep.launchers.environment import log_plainly
from lockstep.launchers.outcome import Report
from lockstep.places import import_from_project
from lockstep.runs.directory import OWN_DIRECTORY
from lockstep.runs.run import Run
from lockstep.runs.validation import Prepared


def run_rank(
    report: Report,
    function: Callable[..., Any],
    arguments: Sequence[Any],
    cfg: DictConfig,
    hydra: DictConfig | None,
    prepared: Prepared,
) -> None:
    """Call `function(run, *arguments)` with the config that the parent has composed and checked."""
    console.survive_lost_output()
    import_from_project()
    OWN_DIRECTORY.leave()  # the parent's, where the rank is a fork of it
    if hydra is None:
        log_plainly()
    else:
        HydraConfig.instance().cfg = hydra  # pyright: ignore[reportAttributeAccessIssue]
        configure_log(hydra.hydra.job_logging, hydra.hydra.verbose)
    with Run(cfg, prepared, report) as run:
        function(run, *arguments)
