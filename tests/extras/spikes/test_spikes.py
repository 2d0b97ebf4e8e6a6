"""A step whose loss is far above those before it is left out, on all ranks alike, as if its batch had not been there."""

import logging
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from bitwise import differences
from fits import KeepAll, become_rank, trained, without_batches
from lightning import Callback, LightningModule, Trainer
from ranks import in_ranks

from lockstep.extras.spikes.spikes import Spikes, TooManySpikes

OPTIONS = ("guards=[default,spikes]", "guards.spikes.window=4", "datamodule.batch_size=100", "trainer.max_epochs=1", "model=cnn")
OPTIONS += ("model.net.width=4",)  # with BatchNorm


class Spike(Callback):
    """Makes the loss of some batches, counted from the first, on one rank a hundred times as large."""

    def __init__(self, *batches: int, rank: int = 0) -> None:
        self.batches, self.rank = batches, rank

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        step: Any = pl_module.training_step

        def enlarged(batch: Any, batch_idx: int) -> Any:
            is_enlarged = batch_idx in self.batches and trainer.global_rank == self.rank
            return step(batch, batch_idx) * (100 if is_enlarged else 1)

        pl_module.training_step = enlarged


def guard(trainer: Any) -> Spikes:
    return next(callback for callback in trainer.callbacks if isinstance(callback, Spikes))


@pytest.mark.parametrize(("accumulate", "batches", "steps"), [(1, (5, 8), [5, 8]), (2, (10,), [5])])
def test_a_spike_might_as_well_not_have_been_there(
    accumulate: int,
    batches: tuple[int, ...],
    steps: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    options = (*OPTIONS, f"trainer.accumulate_grad_batches={accumulate}", f"datamodule.batch_size={100 // accumulate}")
    with caplog.at_level(logging.WARNING):
        spiked, trainer = trained(tmp_path / "spiked", *options, extra=[Spike(*batches)])
    assert guard(trainer).facts() == {"spikes_left_out": steps}
    lines = [message for message in caplog.messages if "is a spike above" in message]
    assert [line.partition(" is left out: its loss of ")[0] for line in lines] == [f"step {step}" for step in steps]
    without_batches(monkeypatch, *(step * accumulate + i for step in steps for i in range(accumulate)))
    absent, _ = trained(tmp_path / "absent", *options)
    for part in ("state_dict", "optimizer_states", "metrics"):
        assert not differences(spiked[part], absent[part], part)


def test_a_run_that_goes_on_decides_as_one_that_was_not_broken_off(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    extra = Spike(5, 8)
    whole, _ = trained(tmp_path / "run", *OPTIONS, extra=[KeepAll(tmp_path / "kept"), extra])
    again, trainer = trained(tmp_path / "run", *OPTIONS, extra=[extra], ckpt_path=tmp_path / "kept" / "7.ckpt")
    assert guard(trainer).facts() == {"spikes_left_out": [5, 8]}
    assert not differences(whole["state_dict"], again["state_dict"])


def test_more_spikes_than_the_limit_end_the_run(tmp_path: Path) -> None:
    with pytest.raises(TooManySpikes, match=r"^guards\.spikes\.limit=1: at step 8 its loss of \S+ is a spike above "):
        trained(tmp_path, *OPTIONS, "guards.spikes.limit=1", extra=[Spike(5, 8)])


def on_two_ranks(rank: int, world_size: int, folder: Path) -> dict[str, Any]:
    become_rank(rank, world_size)
    options = (*OPTIONS, "datamodule.batch_size=50", "trainer.devices=2")
    _, trainer = trained(folder, *options, extra=[Spike(5, rank=1)])
    return guard(trainer).facts() | {"sum": sum(float(weight.double().sum()) for weight in trainer.lightning_module.parameters())}


def test_all_ranks_leave_it_out_where_one_has_it(tmp_path: Path) -> None:
    one, other = in_ranks(2, partial(on_two_ranks, folder=tmp_path), tmp_path)
    assert one == other
    assert one["spikes_left_out"] == [5]
