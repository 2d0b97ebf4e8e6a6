"""Which rank torchrun's environment describes, the names that follow from it, and the end of torchrun."""

import subprocess
import sys
from collections.abc import Callable

import pytest
from environments import PARENT, TORCHRUN

from lockstep.errors import ConfigError
from lockstep.launchers.environment import Launcher, Rank, can_resume, run_id, this_rank

Started = Callable[[dict[str, str]], None]
TWO_NODES = {"TORCHELASTIC_RUN_ID": "job7", "RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}


def test_a_rendezvous_names_the_run_however_many_nodes_there_are(started: Started) -> None:
    started(TWO_NODES)
    assert this_rank() == Rank(Launcher(), global_rank=5, local_rank=1, world_size=8, num_nodes=2)
    assert (run_id(), can_resume()) == ("torchrun-job7", True)
    started(TORCHRUN | {"TORCHELASTIC_RUN_ID": "job7"})
    assert (run_id(), can_resume()) == ("torchrun-job7", True)
    started(TORCHRUN)
    assert run_id().startswith("torchrun-")
    assert not can_resume()
    started(PARENT | {"TORCHELASTIC_RUN_ID": "job7"})  # a command inside a rank
    assert not can_resume()


def test_torchrun_on_several_nodes_needs_a_rendezvous_id(started: Started) -> None:
    started(TWO_NODES | {"TORCHELASTIC_RUN_ID": "none"})
    with pytest.raises(ConfigError, match=r"^torchrun --rdzv-id=none: on several nodes give an id of your own"):
        run_id()


FOLLOWS = """
import time
from lockstep.launchers.rank import attach_to_parent
attach_to_parent()
print("up", flush=True)
time.sleep(60)
"""
AGENT = """
import os, subprocess, sys
environment = os.environ | {"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
subprocess.Popen([sys.executable, "-c", sys.argv[1]], env=environment, start_new_session=True)
os.wait()
"""


def test_a_rank_ends_with_its_torchrun() -> None:
    with subprocess.Popen([sys.executable, "-c", AGENT, FOLLOWS], stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == "up\n"
        agent.kill()
        assert agent.stdout.read() == ""  # the rank, too, has closed it
