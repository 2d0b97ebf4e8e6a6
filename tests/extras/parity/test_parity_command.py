"""scripts/parity.py: what it says, and its exit codes."""

from pathlib import Path

import pytest
from capabilities import requires
from commands import ROOT, python

pytestmark = [pytest.mark.slow, requires("synthetic")]
SIZES = ("datamodule.shape=[1,4,4]", "datamodule.length=16", "datamodule.val_length=8", "datamodule.global_batch_size=16")
AS_OF_SIDES = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}  # which the command sets for them: one import server then serves both
SMALL = ("trainer=cpu", "trainer.devices=2", "parity.steps=1", "datamodule=synthetic_images", *SIZES)


def test_not_equal_is_3_with_the_reason(tmp_path: Path) -> None:
    unsynchronised = ("model=cnn", "model.net.width=4", "trainer.sync_batchnorm=false")
    done = python(ROOT / "scripts" / "parity.py", *SMALL, *unsynchronised, cwd=tmp_path, **AS_OF_SIDES)
    assert done.returncode == 3, done.stderr
    assert done.stdout.startswith("2 CPU processes, DDP over gloo; global batch 16 (8 per process)")
    assert done.stderr == "Comparing step by step ...\nComparing without BatchNorm without synchronisation ...\n"
    assert "Not equal, first in step 0: gradients of net." in done.stdout
    assert "Why: BatchNorm without synchronisation." in done.stdout
    assert "set trainer.sync_batchnorm=true" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_what_can_not_be_compared_is_one_line_and_code_2(tmp_path: Path) -> None:
    for arguments, line in {
        (): "trainer.devices=1: one process is the reference; accepted is 2 or more",
        ("parity.steps=0",): "parity.steps=0: accepted is an integer of at least 1",
        ("parity.against=one two",): "parity.against=one two: accepted is one, ddp, or overrides as 'key=value key=value'",
        ("parity.stps=1",): "parity.stps=1: unknown key; did you mean parity.steps?",
        ("trainer.devices=2", "parity.against=trainer.devices=1"): "parity.against=trainer.devices=1: the sides take 128 and 64",
        ("trainer.precision=7",): "trainer.precision=7: accepted is",
    }.items():
        done = python(ROOT / "scripts" / "parity.py", "trainer.accelerator=cpu", *arguments, cwd=tmp_path)
        assert done.returncode == 2, done.stderr
        assert done.stderr.startswith(line)
        assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_equal_is_0_where_loaders_alone_know_their_batch_size_too(tmp_path: Path) -> None:
    plain = (f"hydra.searchpath=[file://{ROOT / 'tests' / 'support' / 'plain_conf'}]", "trainer=cpu", "trainer.devices=2")
    own = ("model=own_loaders", "datamodule=null", "optimized_metric=val_loss", "test=false", "parity.steps=2")
    done = python(ROOT / "scripts" / "parity.py", *plain, *own, cwd=tmp_path, **AS_OF_SIDES)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("\nEqual up to step 1, in epoch 0; what comes later was not compared.\n")
    assert list(tmp_path.iterdir()) == []
