"""Ranks that torchrun has started: which ones, with which config, by which script, and their end."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import ROOT, python, record, status
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


# train.py, of which rank one begins when rank zero has: its imports took longer, say.
LATE = f"""
import os, runpy, sys, time
while os.environ["RANK"] == "1" and not os.path.exists("run/status.json"):
    time.sleep(0.02)
sys.argv[0] = {str(ROOT / "train.py")!r}
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.slow
def test_a_rank_that_comes_later_has_the_config_of_the_first(tmp_path: Path) -> None:
    """It took the config that rank zero had saved, with the run's id in it, for its own, and the run was refused."""
    (tmp_path / "late.py").write_text(LATE)
    meeting = ("--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--rdzv-id=late")
    options = ("model=mlp", "trainer=cpu", "trainer.devices=auto", "debug=fast", f"hydra.run.dir={tmp_path}/run")
    done = python("-m", "torch.distributed.run", *meeting, "late.py", *options, cwd=tmp_path, code=0)
    assert (record(tmp_path / "run")["world_size"], status(tmp_path / "run")["status"]) == (2, "finished")
    assert done.stdout.count("global batch") == 1


SCRIPT = ROOT / "scripts" / "torchrun_multinode.sh"
HOST = {"RENDEZVOUS": "10.0.0.1:29500", "HOST_INDEX": "1", "RUN_ID": "first", "ADDRESS": "127.0.0.1", "PYTHON": "echo"}


def launch(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"]} | variables
    return subprocess.run([SCRIPT, *arguments], env=env, capture_output=True, text=True, timeout=30, check=False)


def test_each_host_starts_torchrun_with_what_they_share_and_what_is_wrong_is_one_line() -> None:
    done = launch("seed=1", **HOST, HOSTS="1:4", PROCESSES="8", RDZV_CONF="join_timeout=60")
    assert done.stdout.split() == [
        *("-m", "torch.distributed.run", "--nnodes=1:4", "--nproc-per-node=8", "--max-restarts=3", "--rdzv-backend=c10d"),
        *("--rdzv-endpoint=10.0.0.1:29500", "--rdzv-id=first", "--rdzv-conf=is_host=0,join_timeout=60"),
        *("--local-addr=127.0.0.1", str(ROOT / "train.py"), "trainer.devices=auto", "trainer.num_nodes=auto", "seed=1"),
    ]
    done = launch(**HOST | {"HOST_INDEX": "first"})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "HOST_INDEX=first: use 0 on the host of RENDEZVOUS; 1, 2, ... on the others\n"
