"""Two hosts with addresses of their own (benchmarks/two_hosts.py): a link that is cut, and mended."""

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from agents import torchrun
from capabilities import is_there
from commands import ROOT
from ranks import in_ranks
from restarted_runs import (
    FIXED,
    JOURNAL,
    assert_none_lives,
    assert_same_training,
    held,
    hold,
    lives,
    release,
    status,
    undisturbed,
)
from two_hosts import ADDRESSES, PORT, Hosts, two_hosts, why_not
from waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.netns, pytest.mark.timeout(500)]
RENDEZVOUS = (
    *("--nnodes=2", "--nproc-per-node=1", "--max-restarts=0", "--rdzv-backend=c10d"),
    *(f"--rdzv-endpoint={ADDRESSES[0]}:{PORT}", "--rdzv-id=first"),
)
AUTO = ("trainer.devices=auto", "trainer.num_nodes=auto")
PATIENCE = 15  # seconds that a collective waits
DATA = ROOT.parent / "shared" / "data"
HAS_MNIST = is_there("images") and (DATA / "MNIST" / "raw").is_dir()
IMAGES = ("datamodule=mnist", f"datamodule.data_dir={DATA}") if HAS_MNIST else ("datamodule=digits",)
OPTIONS = (
    *FIXED,
    *IMAGES,
    "datamodule.global_batch_size=128",
    "trainer.max_epochs=1",
    "trainer.limit_train_batches=10",
    "trainer.limit_val_batches=2",
    f"trainer.strategy.timeout={PATIENCE}",
)


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with two_hosts(retries=5) as both:  # TCP gives up after 13 seconds instead of 51
        yield both


def test_a_link_is_cut_and_mended(hosts: Hosts, tmp_path: Path) -> None:
    """The run ends by itself and says why; the same command goes on with it, and it ends as if nothing had happened."""
    in_ranks(2, partial(undisturbed, run=tmp_path / "whole", options=OPTIONS), tmp_path)
    run, output = tmp_path / "run", [tmp_path / f"host{number}.txt" for number in (0, 1)]
    overrides = (*AUTO, *OPTIONS, JOURNAL, f"hydra.run.dir={run}", hold(2, 0, 5))

    def agent(number: int) -> Any:
        """As scripts/torchrun_multinode.sh starts it."""
        options = [f"--rdzv-conf=read_timeout=10,is_host={int(number == 0)}", f"--local-addr={ADDRESSES[number]}"]
        where = {"interface": "link0", "namespace": hosts.names[number]}
        return torchrun(*RENDEZVOUS, *options, overrides=overrides, output=output[number], **where)

    def ended(agents: list[Any]) -> list[int]:
        for process in agents:
            process.join(150)
        return [process.exitcode for process in agents]

    both = [agent(0), agent(1)]
    wait_for(held(run, 2).exists)
    hosts.cut()
    release(run, 2)
    since = time.monotonic()
    assert ended(both) == [1, 1], [path.read_text() for path in output]
    assert time.monotonic() - since < PATIENCE + 60
    assert (status(run)["status"], "trainer.strategy.timeout" in status(run)["reason"]) == ("failed", True)
    assert_none_lives(run)
    hosts.mend()
    assert ended([agent(0), agent(1)]) == [0, 0], [path.read_text() for path in output]
    assert status(run)["status"] == "finished"
    assert lives(run) == [(0, 2, ADDRESSES[0]), (3, 2, ADDRESSES[0])]
    assert_same_training(run, tmp_path / "whole")
    assert_none_lives(run)
