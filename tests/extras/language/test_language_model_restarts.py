"""A language model that is killed goes on to the bits of one that is not."""

from functools import partial
from pathlib import Path

import pytest
from bitwise import differences, state
from commands import train
from in_process import become_rank, prepared
from language_models import TINY, texts
from ranks import in_ranks

pytestmark = pytest.mark.slow
FAULT = "+callbacks.fault={_target_:faults.Fault,rank:1,how:kill,batch:3,once:true}"


def undisturbed(rank: int, world_size: int, run: Path, options: tuple[str, ...]) -> None:
    become_rank(rank, world_size)
    datamodule, model, trainer = prepared(run, *options, base=("trainer.accelerator=cpu",))
    trainer.fit(model, datamodule)


def test_a_language_model_goes_on_bit_for_bit_after_a_kill(tmp_path: Path) -> None:
    """The last window of an epoch has few targets."""
    fixed = (
        "trainer.devices=2",
        "trainer.max_epochs=2",
        "datamodule.global_batch_size=4",
        "guards.checkpoint.every_n_steps=2",
    )
    fixed += ("model/lr_scheduler=constant", "datamodule.augment=null", "logger=csv", "test=false", "callbacks.pictures=null")
    options = (*texts(tmp_path), *TINY, *fixed)
    in_ranks(2, partial(undisturbed, run=tmp_path / "whole", options=options), tmp_path)
    done = train(*options, "hydra.run.dir=run", "max_restarts=1", FAULT, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "rank 1 was killed by SIGKILL; restart 1 of 1" in (tmp_path / "run" / "train.log").read_text()
    whole, resumed = (state(tmp_path / run) for run in ("whole", "run"))
    assert not differences(whole, resumed)
