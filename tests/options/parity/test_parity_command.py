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
    done = python(ROOT / "scripts" / "parity.py", *SMALL, *unsynchronised, cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    assert done.stdout.startswith("2 CPU processes, DDP over gloo; global batch 16 (8 per process)")
    assert done.stderr == "Training both, one after the other ...\nTraining without BatchNorm without synchronisation ...\n"
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
        done = python(ROOT / "scripts" / "parity.py", "trainer.accelerator=cpu", *arguments, cwd=tmp_path)
        assert done.returncode == 2, done.stderr
        assert done.stderr.startswith(line)
        assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


ENDS = {
    "killed": ("rank 1 was killed by SIGKILL", "over gloo"),
    "branches": ("no progress for 4 s, in training", "planted_plain.py"),
}


@pytest.mark.parametrize("defect", ENDS)
def test_what_a_side_has_ended_with_is_said(defect: str, tmp_path: Path) -> None:
    """Of processes that wait for each other the stacks are shown."""
    targets = ("model._target_=planted_plain.Plain", f"+model.defect={defect}", "datamodule._target_=planted_plain.Rows")
    few = ("datamodule.global_batch_size=4", "parity.steps=2", "parity.timeout=4")
    cfg = composed_at_once(*plain(*SMALL, *few, *targets), config_name="parity")
    (folder := tmp_path / OTHER).mkdir()
    reason, said = ENDS[defect]
    with pytest.raises(SideFailed, match=reason) as failure:
        train(Sides.of(cfg).config(OTHER, folder), folder)
    assert said in failure.value.traceback
