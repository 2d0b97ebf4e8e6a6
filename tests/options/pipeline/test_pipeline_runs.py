"""`python train.py trainer=pipeline`, as a user types it: killed, and continued by another number of stages."""

from pathlib import Path

import pytest
from commands import train
from in_process import last, trained
from test_pipeline import EXACT, assert_equal

pytestmark = pytest.mark.slow
VIT = ("datamodule=synthetic_images", "datamodule.shape=[1,8,8]", "datamodule.num_classes=3", "datamodule.length=21")
VIT += ("model=vit", "model.net.width=16", "model.net.heads=2", "model.net.depth=3", "model.net.registers=1", *EXACT)
# the bias of attention's keys has no gradient but rounding, of which Adam makes steps
VIT += ("datamodule.val_length=11", "datamodule.test_length=4", "model/optimizer=sgd", "datamodule.global_batch_size=12")
OPTIONS = (*VIT, "test=false", "model/lr_scheduler=constant", "guards.checkpoint.every_n_steps=1", "logger=csv")
KILLED = "+callbacks.fault={_target_:faults.Fault,rank:1,how:kill,batch:1,epoch:1,once:true}"


def test_a_killed_run_goes_on_with_another_number_of_stages(tmp_path: Path) -> None:
    command = ("trainer=pipeline", "trainer.strategy.stages=2", *OPTIONS, "hydra.run.dir=run")
    done = train(*command, KILLED, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert 2 <= last(tmp_path / "run")["global_step"] <= 3  # of four
    done = train("resume=run", "trainer.strategy.stages=3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "3 CPU processes, 3 with the same samples, Pipeline over gloo" in (tmp_path / "run" / "train.log").read_text()
    one, _ = trained(tmp_path / "one", *OPTIONS)
    assert_equal(last(tmp_path / "run"), one)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("model=cnn", "model.net._target_=CNN: has no layers, stage(inputs, x, layers) and"),
        ("callbacks=ema", "callbacks.ema=...: a pipeline has no average of its weights; use null, or trainer=fsdp"),
    ],
)
def test_what_stages_can_not_compute_is_refused_in_one_line(option: str, said: str, tmp_path: Path) -> None:
    done = train("trainer=pipeline", "trainer.strategy.stages=2", "model=vit", option, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stderr.strip().splitlines()[-1].removeprefix("rank 0: ").startswith(said)
