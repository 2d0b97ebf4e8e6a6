"""The ranks that torchrun has started have the same config, whichever of them is first, and what is there by then."""

import json
import subprocess
import sys
from pathlib import Path

import late_rank
import pytest
from commands import TIMEOUT, environment, train

pytestmark = pytest.mark.slow

SMALL = ("model=mlp", "trainer=cpu", "datamodule.batch_size=256", "test=false")


def torchrun(*arguments: str, cwd: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", *arguments]
    done = subprocess.run(command, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_rank_that_comes_later_has_the_config_of_the_first(tmp_path: Path) -> None:
    """It took the config that rank zero had saved, with the run's id in it, for its own, and the run was refused."""
    meeting = ("--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--rdzv-id=late")
    options = (*SMALL, "trainer.devices=2", "trainer.max_epochs=1", f"hydra.run.dir={tmp_path}/run")
    torchrun(*meeting, late_rank.__file__, *options, cwd=tmp_path)
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["world_size"] == 2


def test_a_fork_says_in_all_ranks_of_what(tmp_path: Path) -> None:
    """Rank zero alone did, and the run was refused."""
    done = train(*SMALL, "trainer.max_epochs=1", "hydra.run.dir=source", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    options = ("fork=source", "trainer.devices=2", "trainer.max_epochs=2", "hydra.run.dir=run")
    torchrun(str(late_rank.TRAIN), *options, cwd=tmp_path)
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["forked_from"]["step"] > 0
