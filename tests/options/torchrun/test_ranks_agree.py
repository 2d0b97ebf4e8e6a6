"""The ranks that torchrun has started have the same config, whichever of them is first, and what is there by then."""

import json
from pathlib import Path

import pytest
from commands import ROOT, python

pytestmark = pytest.mark.slow
# train.py, of which rank one begins when rank zero has: its imports took longer, say.
LATE = f"""
import os, runpy, sys, time
while os.environ["RANK"] == "1" and not os.path.exists("run/status.json"):
    time.sleep(0.02)
sys.argv[0] = {str(ROOT / "train.py")!r}
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_rank_that_comes_later_has_the_config_of_the_first(tmp_path: Path) -> None:
    """It took the config that rank zero had saved, with the run's id in it, for its own, and the run was refused."""
    (tmp_path / "late.py").write_text(LATE)
    meeting = ("--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--rdzv-id=late")
    options = ("model=mlp", "trainer=cpu", "trainer.devices=auto", "debug=fast", f"hydra.run.dir={tmp_path}/run")
    done = python("-m", "torch.distributed.run", *meeting, "late.py", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["world_size"] == 2
    assert json.loads((tmp_path / "run" / "status.json").read_text())["status"] == "finished"
    assert done.stdout.count("global batch") == 1
