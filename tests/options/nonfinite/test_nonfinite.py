"""A loss that is NaN: the run stops and says where, or the step is left out as if it had not been there."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from bitwise import differences
from faults import Poison
from in_process import last, prepared, trained, without_batches

from lockstep.callbacks.nonfinite import NonFinite, NonFiniteLoss

NET = ("model=cnn", "model.net.width=8", "trainer.max_epochs=1")  # with BatchNorm


def test_the_run_stops_and_names_step_and_samples(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    poison = Poison(batches=(4,))  # the first of the third step
    batches = ("trainer.accumulate_grad_batches=2", "datamodule.global_batch_size=300")
    datamodule, model, trainer = prepared(tmp_path, *NET, *batches, extra=[poison])
    with pytest.raises(NonFiniteLoss) as raised:
        trainer.fit(model, datamodule)
    (batch,) = poison.given
    where = "at step 3 the loss is nan, of samples "
    assert str(raised.value) == f"{where}{', '.join(map(str, batch[:4]))} and 146 more"
    assert not [message for message in caplog.messages if "the loss is" in message]  # the run says it once
    saved = last(tmp_path)  # from before it
    assert saved["global_step"] == 2
    assert all(tensor.isfinite().all() for tensor in saved["state_dict"].values())


@pytest.mark.parametrize(
    ("accumulate", "poisoned", "left_out"),
    [(1, (0, 3), (0, 3)), (2, (1,), (0, 1))],  # an accumulated step is left out whole
)
def test_a_step_left_out_might_as_well_not_have_been_there(
    accumulate: int, poisoned: Any, left_out: Any, tmp_path: Path, monkeypatch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    options = (*NET, "guards.nonfinite.action=skip", "trainer.gradient_clip_val=1.0")
    options += (f"trainer.accumulate_grad_batches={accumulate}",)
    with caplog.at_level(logging.WARNING, "lockstep.callbacks.nonfinite"):
        skipped, _ = trained(tmp_path / "skipped", *options, extra=[Poison(batches=poisoned)])
    warnings = [message for message in caplog.messages if "is left out: its gradients are not finite" in message]
    assert len(warnings) == len(left_out) // accumulate
    assert warnings[0].startswith("step 1 " if 0 in left_out else "step 2 ")
    assert ", of samples " in warnings[0]
    without_batches(monkeypatch, *left_out)
    absent, _ = trained(tmp_path / "absent", *options)
    for part in ("state_dict", "optimizer_states", "metrics"):
        assert not differences(skipped[part], absent[part], part)
    assert skipped["optimizer_states"][0]["state"]  # there is something to be equal


class LossOnGpu(torch.Tensor):
    is_cpu = False  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]


def test_a_gpu_is_not_waited_for_at_every_step_but_before_a_checkpoint() -> None:
    trainer: Any = SimpleNamespace(global_step=0, accumulate_grad_batches=1, train_dataloader=None)
    module: Any = SimpleNamespace(device=torch.device("cuda"), automatic_optimization=True)
    callback = NonFinite(every_n_steps=10)

    def steps(first: int, last: int, bad: int) -> None:
        for step in range(first, last):
            trainer.global_step = step + 1
            loss = torch.tensor(float("inf") if step == bad else 1.0).as_subclass(LossOnGpu)
            callback.on_train_batch_end(trainer, module, {"loss": loss}, None, step)

    checkpoint: dict[str, Any] = {}
    steps(0, 20, bad=-1)
    callback.on_save_checkpoint(trainer, module, checkpoint)
    steps(20, 29, bad=23)
    with pytest.raises(NonFiniteLoss, match=r"^at step 24 the loss is inf$"):
        callback.on_save_checkpoint(trainer, module, checkpoint)
    with pytest.raises(NonFiniteLoss, match=r"^at step 24 the loss is inf$"):
        steps(29, 30, bad=-1)
