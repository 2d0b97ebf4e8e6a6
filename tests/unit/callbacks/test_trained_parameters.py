"""A run that goes on trains the parameters that it would have trained: those that were unfrozen, and not those frozen since."""

from pathlib import Path
from typing import Any

import pytest
import torch
from bitwise import differences
from in_process import KeepAll, last, prepared, trained
from lightning import Callback
from unfreezing import Unfreeze

from lockstep.callbacks.checkpoints import SavesFirst

MLP = ("model=mlp", "trainer.max_epochs=3")  # four batches an epoch


class OfItsOwn(Callback):
    """Trains one layer until the sixth batch, then another."""

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        pl_module.net.layers[1].requires_grad_(False)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == 6:
            pl_module.net.layers[1].requires_grad_(True)
            pl_module.net.layers[4].requires_grad_(False)


def ended(
    run: Path, kind: type[Callback], *options: str, keep: Path | None = None, ckpt_path: Path | None = None
) -> dict[str, Any]:
    """The last checkpoint of a run with such a callback where a config's callbacks are."""
    datamodule, model, trainer = prepared(run, *MLP, *options, ckpt_path=ckpt_path)
    first = next(i for i, one in enumerate(trainer.callbacks) if isinstance(one, SavesFirst))
    trainer.callbacks[first + 1 : first + 1] = [kind(), *([] if keep is None else [KeepAll(keep)])]
    trainer.fit(model, datamodule, ckpt_path=ckpt_path)
    return last(run)


@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch ended")
@pytest.mark.parametrize("step", [2, 7])
@pytest.mark.parametrize("kind", [Unfreeze, OfItsOwn])
def test_a_run_that_goes_on_ends_with_the_same_bits(kind: type[Callback], step: int, tmp_path: Path) -> None:
    run, kept = tmp_path / "run", tmp_path / "run" / "kept"
    kept.mkdir(parents=True)
    whole = ended(run, kind, keep=kept)
    resumed = ended(run, kind, ckpt_path=kept / f"{step}.ckpt")
    for key in ("state_dict", "optimizer_states", "frozen", "unfrozen"):
        assert not differences(resumed[key], whole[key]), key
    assert len(whole["unfrozen"]) == 2
    before = ended(tmp_path / "before", kind, f"trainer.max_steps={step}")
    name = "net.layers.1.weight"
    assert not torch.equal(before["state_dict"][name], whole["state_dict"][name])  # it is trained afterwards


def test_what_the_config_freezes_from_the_start_stays_frozen(tmp_path: Path) -> None:
    """Also in the midst of a run that began without."""
    run = tmp_path / "run"
    options = ("model=mlp", "trainer.max_epochs=1")
    before = trained(run, *options)[0]
    datamodule, model, trainer = prepared(run, "model=mlp", "trainer.max_epochs=2")
    model.net.layers[1].requires_grad_(False)
    trainer.fit(model, datamodule, ckpt_path=run / "checkpoints" / "last.ckpt")
    assert torch.equal(before["state_dict"]["net.layers.1.weight"], model.net.layers[1].weight)
