"""Which rank torchrun's environment describes, and the names that follow from it."""

import subprocess
import sys
from collections.abc import Callable

import pytest
from environments import PARENT, TORCHRUN

from lockstep.errors import ConfigError
from lockstep.launchers.environment import Launcher, Rank, can_resume, rank_in, run_id

Started = Callable[[dict[str, str]], None]
TORCHRUN_TWO_NODES = {
    "TORCHELASTIC_RUN_ID": "job7",
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
}


@pytest.mark.parametrize(
    ("env", "rank"),
    [
        (TORCHRUN, Rank(Launcher(), global_rank=1, local_rank=1, world_size=2, num_nodes=1)),
        (TORCHRUN_TWO_NODES, Rank(Launcher(), global_rank=5, local_rank=1, world_size=8, num_nodes=2)),
    ],
)
def test_rank_of_an_environment(env: dict[str, str], rank: Rank) -> None:
    assert rank_in(env) == rank


def test_run_id_under_torchrun_is_the_rendezvous_however_many_nodes_there_are(started: Started) -> None:
    started(TORCHRUN_TWO_NODES)
    assert run_id() == "torchrun-job7"
    assert can_resume()
    started(TORCHRUN | {"TORCHELASTIC_RUN_ID": "job7"})
    assert run_id() == "torchrun-job7"
    assert can_resume()
    started(TORCHRUN)
    assert not can_resume()
    started(PARENT | {"TORCHELASTIC_RUN_ID": "job7"})  # a command inside a rank
    assert not can_resume()


def test_torchrun_on_several_nodes_needs_a_rendezvous_id(started: Started) -> None:
    started(TORCHRUN_TWO_NODES | {"TORCHELASTIC_RUN_ID": "none"})
    with pytest.raises(ConfigError, match=r"^torchrun --rdzv-id=none: on several nodes give an id of your own"):
        run_id()


FOLLOWS = """
import time
from lockstep.launchers.processes import attach_to_parent
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
