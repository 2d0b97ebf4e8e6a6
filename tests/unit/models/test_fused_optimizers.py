"""An optimizer is fused as configured, but where Lightning would refuse it."""

from pathlib import Path

import pytest
from in_process import prepared

MIXED, CLIPPED = "trainer.precision=bf16-mixed", "trainer.gradient_clip_val=1.0"
SHORT = ("trainer.max_epochs=1", "trainer.limit_train_batches=1", "guards.checkpoint=null", "trainer.limit_val_batches=1")


@pytest.mark.parametrize(
    ("options", "is_fused"),
    [((CLIPPED,), True), ((MIXED,), True), ((MIXED, CLIPPED), False), (("model.optimizer.fused=false",), False)],
)
def test_a_step_is_made_with_it(options: tuple[str, ...], is_fused: bool, tmp_path: Path) -> None:
    datamodule, model, trainer = prepared(tmp_path, *SHORT, *options)
    trainer.fit(model, datamodule)
    assert trainer.global_step == 1
    assert trainer.optimizers[0].defaults["fused"] is is_fused
    if options == (MIXED,):
        trainer.precision_plugin.scaler = object()  # as 16-mixed has, which needs a GPU
        assert not model._can_fuse()
