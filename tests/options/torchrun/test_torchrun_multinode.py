"""scripts/torchrun_multinode.sh: what it starts, with `echo` in the place of Python, and what it refuses."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from commands import ROOT

SCRIPT = ROOT / "scripts" / "torchrun_multinode.sh"
HOST = {"RENDEZVOUS": "10.0.0.1:29500", "HOST_INDEX": "1", "RUN_ID": "first", "ADDRESS": "127.0.0.1", "PYTHON": "echo"}


def launch(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"]} | variables
    return subprocess.run([SCRIPT, *arguments], env=env, capture_output=True, text=True, timeout=30, check=False)


def test_each_host_starts_torchrun_with_what_they_share() -> None:
    done = launch("seed=1", **HOST, HOSTS="1:4", PROCESSES="8", RDZV_CONF="join_timeout=60")
    assert done.stdout.split() == [
        *("-m", "torch.distributed.run", "--nnodes=1:4", "--nproc-per-node=8", "--max-restarts=3", "--rdzv-backend=c10d"),
        *("--rdzv-endpoint=10.0.0.1:29500", "--rdzv-id=first", "--rdzv-conf=is_host=0,join_timeout=60"),
        *("--local-addr=127.0.0.1", str(ROOT / "train.py"), "trainer.devices=auto", "trainer.num_nodes=auto", "seed=1"),
    ]


def test_the_address_is_the_one_that_reaches_the_first_host(tmp_path: Path) -> None:
    """Asked of Python itself, before the stand-in shows what it is started with."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ntest "$1" = -c && exec {sys.executable} "$@"\necho "$GLOO_SOCKET_IFNAME" "$@"\n')
    python.chmod(0o755)
    done = launch(**HOST | {"RENDEZVOUS": "127.0.0.1:29500", "ADDRESS": "", "PYTHON": str(python)})
    assert {"--local-addr=127.0.0.1", "--rdzv-endpoint=127.0.0.1:29500"} <= set(done.stdout.split())
    if shutil.which("ip", path=f"{os.environ['PATH']}:/usr/sbin:/sbin"):
        assert done.stdout.split()[0] == "lo"


def test_what_is_wrong_is_one_line() -> None:
    done = launch(**HOST | {"HOST_INDEX": "first"})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "HOST_INDEX=first: use 0 on the host of RENDEZVOUS; 1, 2, ... on the others\n"
