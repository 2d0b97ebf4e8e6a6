"""A step whose loss is far above those before it is left out, on all ranks alike, as if its batch had not been there."""

import json
import logging
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from bitwise import differences
from commands import train
from in_process import KeepAll, become_rank, trained, without_batches
from planted_spikes import BrokenOff, Spike
from ranks import in_ranks
from refusals import refusal, validate

from lockstep.errors import StartAgain
from lockstep.extras.spikes.spikes import Spikes, TooManySpikes
from lockstep.runs.composition import compose

OPTIONS = ("guards=spikes", "guards.spikes.window=4", "datamodule.batch_size=100", "trainer.max_epochs=1", "model=cnn")
OPTIONS += ("model.net.width=4",)  # with BatchNorm


@pytest.mark.parametrize("choice", ["guards=spikes", "guards=[default,spikes]"])
def test_the_other_guards_stay(choice: str) -> None:
    """As the other callbacks do beside callbacks=ema: without them there would be no checkpoint to go on from."""
    assert [*compose(choice).guards] == [*compose().guards, "spikes"]


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


REWIND = ("guards.spikes.action=rewind", "max_restarts=1", "guards.checkpoint.every_n_steps=3")


def test_a_run_that_goes_back_is_one_without_the_steps_that_led_to_a_spike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken off after it has gone back, too."""
    run, last = tmp_path / "run", tmp_path / "run" / "checkpoints" / "last.ckpt"
    reason = r"^at step 8 its loss of \S+ is a spike above .*: steps 6 to 8 are passed over, from the last checkpoint$"
    with pytest.raises(StartAgain, match=reason):
        trained(run, *OPTIONS, *REWIND, extra=[Spike(8)])
    with pytest.raises(InterruptedError):
        trained(run, *OPTIONS, *REWIND, extra=[Spike(8), BrokenOff(8)], ckpt_path=last)
    rewound, trainer = trained(run, *OPTIONS, *REWIND, extra=[Spike(8)], ckpt_path=last)
    assert guard(trainer).facts() == {"spikes_left_out": [6, 7, 8], "spikes_rewound": [[6, 8]]}
    without_batches(monkeypatch, 6, 7, 8)
    absent, _ = trained(tmp_path / "absent", *OPTIONS)
    for part in ("state_dict", "optimizer_states", "metrics"):
        assert not differences(rewound[part], absent[part], part)


def test_more_spikes_than_the_limit_end_a_run_that_goes_back(tmp_path: Path) -> None:
    options, last = (*OPTIONS, *REWIND, "guards.spikes.limit=1"), tmp_path / "checkpoints" / "last.ckpt"
    with pytest.raises(StartAgain, match=r"^at step 5 .*: steps 3 to 5 are"):
        trained(tmp_path, *options, extra=[Spike(5, 9)])
    with pytest.raises(TooManySpikes, match=r"^guards\.spikes\.limit=1: at step 9 its loss of "):
        trained(tmp_path, *options, extra=[Spike(5, 9)], ckpt_path=last)


def test_going_back_needs_a_parent_that_starts_the_ranks_again() -> None:
    line = refusal(compose("guards=[default,spikes]", REWIND[0]))
    assert line == "max_restarts=0: guards.spikes.action=rewind starts the ranks again; accepted is 1 or more"
    validate(compose("guards=[default,spikes]", *REWIND))


def back_on_two_ranks(rank: int, world_size: int, folder: Path) -> None:
    become_rank(rank, world_size)
    options = (*OPTIONS, *REWIND, "datamodule.batch_size=50", "trainer.devices=2")
    with pytest.raises(StartAgain, match="steps 6 to 8 are passed over"):
        trained(folder / "run", *options, extra=[Spike(8, rank=1)])
    last = folder / "run" / "checkpoints" / "last.ckpt"
    rewound, _ = trained(folder / "run", *options, extra=[Spike(8, rank=1)], ckpt_path=last)
    with pytest.MonkeyPatch.context() as monkeypatch:
        without_batches(monkeypatch, 6, 7, 8)
        absent, _ = trained(folder / "absent", *options)
    assert not differences(rewound["state_dict"], absent["state_dict"])


@pytest.mark.slow
def test_ranks_that_go_back_are_bit_equal_to_those_without_these_steps(tmp_path: Path) -> None:
    in_ranks(2, partial(back_on_two_ranks, folder=tmp_path), tmp_path)


@pytest.mark.slow
def test_two_ranks_are_started_again(tmp_path: Path) -> None:
    """A spike on one of them; the record of the run and its log say what was left out."""
    options = (*OPTIONS, *REWIND, "datamodule.batch_size=50", "trainer.devices=2", "++callbacks.pictures=null")
    spike = "+callbacks.spike={_target_:planted_spikes.Spike,_args_:[8],rank:1}"
    done = train(*options, spike, "hydra.run.dir=run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["spikes_rewound"] == [[6, 8]]
    assert (
        "steps 6 to 8 are passed over, from the last checkpoint; restart 1 of 2" in (tmp_path / "run" / "train.log").read_text()
    )


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
