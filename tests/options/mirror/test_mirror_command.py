"""`mirror=URL` and scripts/fetch.py, as a user types them: the machine that a run was on is gone, the run is not."""

import json
import shutil
from pathlib import Path

import pytest
from bitwise import differences
from commands import ROOT, python, train

from lockstep.checkpointing import read_checkpoint

pytestmark = pytest.mark.slow

# three epochs of four steps
OPTIONS = ("trainer.max_epochs=3", "datamodule.batch_size=160", "model=mlp", "model.net.dropout=0.2", "test=false", "logger=csv")
OPTIONS += ("trainer.devices=2", "guards.checkpoint.every_n_steps=1", "callbacks.pictures=null")


def test_a_run_of_two_processes_goes_on_bit_for_bit_from_its_copy(tmp_path: Path) -> None:
    """A rank is killed with -9 in the middle of the second epoch."""
    for name in ("whole", "killed", "elsewhere"):
        (tmp_path / name).mkdir()
    assert train(*OPTIONS, "hydra.run.dir=logs/digits/run", cwd=tmp_path / "whole").returncode == 0
    fault = "+callbacks.fault={_target_:faults.Fault,rank:1,how:kill,epoch:1,batch:2,once:true}"
    mirror, url = f"mirror=file://{tmp_path}/store", f"file://{tmp_path}/store/logs/digits/run"
    done = train(*OPTIONS, mirror, fault, "hydra.run.dir=logs/digits/run", cwd=tmp_path / "killed", code=1)
    assert f"Copied to {url}" in done.stdout
    shutil.rmtree(tmp_path / "killed")

    python(ROOT / "scripts" / "fetch.py", url, "logs/digits/run", cwd=tmp_path / "elsewhere", code=0)
    train("resume=logs/digits/run", cwd=tmp_path / "elsewhere", code=0)
    whole, run = (
        read_checkpoint("last", tmp_path / name / "logs" / "digits" / "run" / "checkpoints" / "last.ckpt")
        for name in ("whole", "elsewhere")
    )
    assert whole["global_step"] == 12
    assert not differences(whole | {"callbacks": None}, run | {"callbacks": None})
    copied = json.loads((tmp_path / "store" / "logs" / "digits" / "run" / "status.json").read_text())
    assert copied["status"] == "finished"
