"""`python train.py fork=...`, as a user types it: unchanged, at other rates in a sweep, in other batches on two processes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from bitwise import differences, state
from commands import ROOT, python, train

from lockstep.runs.saved import read_run_id

pytestmark = pytest.mark.slow

# two epochs of eight steps; checkpoints of the 8th and the 16th
OPTIONS = ("trainer.max_epochs=2", "datamodule.batch_size=160", "model=mlp", "model.net.dropout=0.2", "++callbacks.pictures=null")
RATE = "model.optimizer.lr"


def read(run: Path, name: str) -> dict[str, Any]:
    return json.loads((run / name).read_text())


def test_forks_of_a_run(tmp_path: Path) -> None:
    source = tmp_path / "source"
    assert train(*OPTIONS, f"{RATE}=0.002", "hydra.run.dir=source", cwd=tmp_path).returncode == 0

    done = train("-m", "fork=source@8", f"{RATE}=0.002,0.001", "hydra.sweep.dir=sweep", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    same, lower = sorted(tmp_path.glob("sweep/lr=*"), key=lambda run: -float(run.name.split("=")[1].split("_")[0]))
    assert not differences(state(source), state(same))
    assert differences(state(source)["state_dict"], state(lower)["state_dict"])
    for run, is_said in ((same, False), (lower, True)):
        assert ("The learning rate continues at 0.001; the checkpoint has 0.002" in (run / "train.log").read_text()) == is_said
    origin = {"run": read_run_id(source), "step": 8, "checkpoint": f"{source}/checkpoints/previous.ckpt@8"}
    for run, rate, changed in ((same, 0.002, []), (lower, 0.001, [RATE])):
        record = read(run, "metrics.json")
        assert (record["lr"], record["steps"], record["epochs"]) == (rate, 16, 2)
        assert record["forked_from"] == origin | {"changed": changed}

    done = train("-m", "fork=source", "trainer.max_epochs=4,1", "hydra.sweep.dir=short", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("job 1 (")
    assert done.stderr.endswith("last.ckpt is of epoch 2; use more than 2, or -1\n")

    # killed before its first checkpoint, then after it: it goes on, and is not forked again
    fault = "+callbacks.fault={{_target_:faults.Fault,rank:0,how:kill,epoch:1,batch:{},once:true}}"
    options = ("fork=source@8", f"{RATE}=0.001", "hydra.run.dir=killed", "guards.checkpoint.every_n_steps=1")
    assert train(*options, fault.format(0), cwd=tmp_path).returncode == -9
    killed = tmp_path / "killed"
    (source / "checkpoints" / "previous.ckpt").rename(source / "checkpoints" / "moved.ckpt")
    for path in killed.glob("*fault*"):
        path.unlink()
    assert train("resume=killed", fault.format(3).replace("+callbacks", "++callbacks"), cwd=tmp_path).returncode == -9
    (source / "checkpoints" / "moved.ckpt").unlink()
    done = train("resume=killed", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not differences(state(lower), state(killed))
    changed = read(killed, "metrics.json")["forked_from"]["changed"]
    assert [key for key in changed if "fault" not in key] == ["guards.checkpoint.every_n_steps", RATE]
    done = python(ROOT / "scripts" / "evaluate.py", killed, cwd=tmp_path)  # though what it was forked from is gone
    assert done.returncode == 0, done.stderr


def test_another_batch_on_another_number_of_processes(tmp_path: Path) -> None:
    options = (*OPTIONS, "model/lr_scheduler=cosine", "trainer.max_epochs=1")
    assert train(*options, "hydra.run.dir=source", cwd=tmp_path).returncode == 0
    for ranks in (1, 2):
        new = ("trainer.max_epochs=2", "datamodule.global_batch_size=240", f"trainer.devices={ranks}", f"hydra.run.dir={ranks}")
        done = train("fork=source", *new, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    one, two = (state(tmp_path / name) for name in ("1", "2"))
    assert one["global_step"] == two["global_step"] == 8 + 5
    for name, weight in one["state_dict"].items():
        torch.testing.assert_close(two["state_dict"][name], weight, rtol=1e-4, atol=1e-5)
