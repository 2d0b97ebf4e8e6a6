"""With averaged weights it is the average that is validated, saved as state_dict, tested and kept."""

from pathlib import Path

import pytest
import torch
from bitwise import differences
from in_process import KeepAll, last, logged, prepared, trained

from lockstep.checkpointing import read_checkpoint
from lockstep.models.from_checkpoint import load_weights

OPTIONS = ("callbacks=ema", "callbacks.ema.decay=0.8", "model=cnn", "model.net.width=8", "trainer.max_epochs=2")


def test_the_average_is_what_is_trained_for(tmp_path: Path) -> None:
    datamodule, model, trainer = prepared(tmp_path, *OPTIONS, "guards.checkpoint.every_n_steps=null")
    trainer.fit(model, datamodule)
    saved, best = last(tmp_path), read_checkpoint("best", tmp_path / "checkpoints" / "best.ckpt")
    name = next(name for name, _ in model.named_parameters())
    assert not torch.equal(saved["state_dict"][name], saved["current_model_state"][name])
    assert torch.equal(model.state_dict()[name], saved["state_dict"][name])  # the model is the average now

    # what was validated is what best.ckpt holds: evaluating it again gives its metric
    again_data, again, evaluator = prepared(tmp_path / "again", "model=cnn", "model.net.width=8")
    load_weights(again, "checkpoint", tmp_path / "checkpoints" / "best.ckpt")
    evaluator.validate(again, again_data, verbose=False)
    assert evaluator.callback_metrics["val/loss"] == best["metrics"]["val/loss"]
    assert evaluator.callback_metrics["val/acc"] == best["metrics"]["val/acc"]

    # tested after the fit, from best.ckpt, by the trainer that has the callback
    trainer.test(model, datamodule, ckpt_path=tmp_path / "checkpoints" / "best.ckpt", verbose=False)
    evaluator.test(again, again_data, verbose=False)
    assert trainer.callback_metrics["test/loss"] == evaluator.callback_metrics["test/loss"]


def test_lightning_s_own_averaging_is_tested_by_the_weights_that_were_validated(tmp_path: Path) -> None:
    """Lightning puts those that are trained in their place, where the trainer that tests has trained."""
    own = "+callbacks.average={_target_: lightning.pytorch.callbacks.EMAWeightAveraging, decay: 0.8}"
    datamodule, model, trainer = prepared(tmp_path, own, *OPTIONS[2:])
    trainer.fit(model, datamodule)
    best = tmp_path / "checkpoints" / "best.ckpt"
    trainer.test(model, datamodule, ckpt_path=best, verbose=False)
    again_data, again, evaluator = prepared(tmp_path / "again", *OPTIONS[2:], f"init_from={best}")
    evaluator.test(again, again_data, verbose=False)
    assert trainer.callback_metrics["test/loss"] == evaluator.callback_metrics["test/loss"]


@pytest.mark.slow
def test_continuing_from_any_step_changes_nothing(tmp_path: Path) -> None:
    options = (*OPTIONS, "callbacks.ema.update_starting_at_step=2", "trainer.precision=64-true")
    run = tmp_path / "run"
    kept = run / "kept"
    kept.mkdir(parents=True)
    whole, _ = trained(run, *options, extra=[KeepAll(kept)])
    log = logged(run)
    steps = sorted(kept.iterdir(), key=lambda path: int(path.stem))
    assert len(steps) >= 7
    for path in steps[::3]:
        again, _ = trained(run, *options, ckpt_path=path)
        assert not differences(whole, again), path.name
        assert logged(run) == log, path.name
