"""Two hosts with addresses of their own (benchmarks/two_hosts.py): a link that is cut, and mended."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from capabilities import is_there
from commands import ROOT
from lives import FIXED, JOURNAL, assert_none_lives, assert_same_training, held, hold, lives, release, status, undisturbed
from ranks import in_ranks
from two_hosts import ADDRESSES, Hosts, two_hosts, why_not
from waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.netns, pytest.mark.timeout(500)]
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
    overrides = (*OPTIONS, JOURNAL, f"hydra.run.dir={run}", hold(2, 0, 5))
    fixed = {
        "RUN_ID": "first",
        "MAX_RESTARTS": "0",
        "RDZV_CONF": "read_timeout=10",
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PYTHON": sys.executable,
    }

    def start() -> list[subprocess.Popen[bytes]]:
        return [hosts.launch(number, output[number], *overrides, **fixed) for number in (0, 1)]

    both = start()
    wait_for(held(run, 2).exists)
    hosts.cut()
    release(run, 2)
    since = time.monotonic()
    assert [process.wait(150) for process in both] == [1, 1], [path.read_text() for path in output]
    assert time.monotonic() - since < PATIENCE + 60
    assert (status(run)["status"], "trainer.strategy.timeout" in status(run)["reason"]) == ("failed", True)
    assert_none_lives(run)
    hosts.mend()
    assert [process.wait(150) for process in start()] == [0, 0], [path.read_text() for path in output]
    assert status(run)["status"] == "finished"
    assert lives(run) == [(0, 2, ADDRESSES[0]), (3, 2, ADDRESSES[0])]
    assert_same_training(run, tmp_path / "whole")
    assert_none_lives(run)
