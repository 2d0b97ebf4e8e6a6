"""scripts/parity.py: what it says, and its exit codes."""

from pathlib import Path

import pytest
from commands import ROOT, python
from in_process import composed_at_once, plain

from lockstep.parity.trainings import OTHER, SideFailed, Sides, train

pytestmark = pytest.mark.slow
SIZES = ("datamodule.shape=[1,4,4]", "datamodule.length=16", "datamodule.val_length=8", "datamodule.global_batch_size=16")
SMALL = ("trainer=cpu", "trainer.devices=2", "parity.steps=1", "datamodule=synthetic_images", *SIZES)


def test_not_equal_is_3_with_the_reason(tmp_path: Path) -> None:
    unsynchronised = ("model=cnn", "model.net.width=4", "trainer.sync_batchnorm=false")
    done = python(ROOT / "scripts" / "parity.py", *SMALL, *unsynchronised, cwd=tmp_path, code=3)
    assert done.stdout.startswith("2 CPU processes, DDP over gloo; global batch 16 (8 per process)")
    again = "Training again with this switched off: BatchNorm without synchronisation ...\n"
    assert done.stderr == f"Training both, one after the other ...\n{again}"
    assert "Not equal, first in step 1: gradients of net." in done.stdout
    assert "Why: BatchNorm without synchronisation." in done.stdout
    assert "set trainer.sync_batchnorm=true" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_what_can_not_be_compared_is_one_line_and_code_2(tmp_path: Path) -> None:
    for arguments, line in {
        (): "trainer.devices=1: one process is the reference; use 2 or more",
        ("parity.steps=0",): "parity.steps=0: trains nothing; use at least 1",
        ("parity.stps=1",): "parity.stps=1: unknown key; did you mean parity.steps?",
    }.items():
        done = python(ROOT / "scripts" / "parity.py", "trainer.accelerator=cpu", *arguments, cwd=tmp_path, code=2)
        assert done.stderr.startswith(line)
        assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_stacks_of_processes_that_wait_for_each_other_are_shown(tmp_path: Path) -> None:
    targets = ("model._target_=planted_plain.Plain", "+model.defect=branches", "datamodule._target_=planted_plain.Rows")
    few = ("datamodule.global_batch_size=4", "parity.steps=2", "parity.timeout=4")
    cfg = composed_at_once(*plain(*SMALL, *few, *targets), config_name="parity")
    (folder := tmp_path / OTHER).mkdir()
    with pytest.raises(SideFailed, match="no progress for 4 s, in training") as failure:
        train(Sides.of(cfg).config(OTHER, folder), folder)
    assert "planted_plain.py" in failure.value.traceback
