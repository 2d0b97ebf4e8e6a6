"""Leaves a server running when a run has ended, by `warm=true`."""

import logging
import os
import subprocess
import sys
from pathlib import Path

from omegaconf import DictConfig

from lockstep.config.checks import check_rules
from lockstep.config.plan import Plan
from lockstep.config.rules import YES_NO, above
from lockstep.config.targets import buildable
from lockstep.extras.warm import client
from lockstep.launchers.environment import SWEPT_KEYS, this_rank
from lockstep.runs.events import RunEvents

log = logging.getLogger(__name__)
_SERVER = "from lockstep.extras.warm.server import main; main()"


@buildable
class LeaveServer(RunEvents):
    """`minutes`: without a command, after which the server ends."""

    settings = ("warm",)
    start_keys = ("warm",)

    def __init__(self, minutes: float = 15) -> None:
        self.minutes = minutes
        self._is_wanted = False

    def check(self, cfg: DictConfig, plan: Plan) -> None:
        check_rules(cfg, {"warm": YES_NO, "events.warm.minutes": above(0)})

    def begin(self, cfg: DictConfig, directory: Path) -> None:
        self._is_wanted = cfg.warm and SWEPT_KEYS not in os.environ and this_rank() is None
        if self._is_wanted and client.folder() is None:
            log.warning("warm=true: no server is left, for there is no XDG_RUNTIME_DIR; accepted is a folder of yours, mode 0700")

    def end(self, code: int) -> None:
        if self._is_wanted:
            leave_server(self.minutes)


def leave_server(minutes: float) -> None:
    """Starts a server for processes like this one as it was started, where there is none."""
    if client.is_served or client.folder() is None:
        return
    items = os.fsdecode(Path("/proc/self/environ").read_bytes()).split("\0")
    environment = dict(item.split("=", 1) for item in items if "=" in item)
    command, nowhere = [sys.executable, "-c", _SERVER, str(60 * minutes)], subprocess.DEVNULL
    subprocess.Popen(command, cwd="/", env=environment, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True)
