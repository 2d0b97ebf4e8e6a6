"""The ranks that torchrun has started have the same config, whichever of them is first, and what is there by then."""

import json
from pathlib import Path

import late_rank
import pytest
from commands import python

pytestmark = pytest.mark.slow

SMALL = ("model=mlp", "trainer=cpu", "datamodule.batch_size=256", "test=false")


def test_a_rank_that_comes_later_has_the_config_of_the_first(tmp_path: Path) -> None:
    """It took the config that rank zero had saved, with the run's id in it, for its own, and the run was refused."""
    meeting = ("--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--rdzv-id=late")
    options = (*SMALL, "trainer.devices=auto", "trainer.max_epochs=1", f"hydra.run.dir={tmp_path}/run")
    command = ("-m", "torch.distributed.run", "--nproc-per-node=2", *meeting, late_rank.__file__, *options)
    done = python(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["world_size"] == 2
    assert json.loads((tmp_path / "run" / "status.json").read_text())["status"] == "finished"
    assert done.stdout.count("global batch") == 1
