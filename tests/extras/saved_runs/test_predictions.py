"""What a module's predict_step says of each sample, once, on any number of processes."""

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from capabilities import requires
from commands import ROOT, python, train
from torch.utils.data import DataLoader, IterableDataset

from lockstep.datamodules.digits import digits
from lockstep.errors import ConfigError
from lockstep.extras.saved_runs.predictions import _joined, _sorted, _Writer
from lockstep.models.from_checkpoint import load_model

MINE = (f"hydra.searchpath=[file://{ROOT / 'tests' / 'support' / 'plain_conf'}]", "model=mine", "datamodule=mine")


class StreamOf(IterableDataset[int]):
    share: Any

    def __init__(self, numbers: range) -> None:
        self.numbers = numbers

    def __iter__(self) -> Any:
        return iter(self.numbers)


@pytest.mark.slow
@requires("images", "plain_lightning")
def test_two_processes_predict_what_one_does(tmp_path: Path) -> None:
    done = train(*MINE, "optimized_metric=val_acc", "debug=fast", "hydra.run.dir=run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for devices in (1, 2):
        options = (f"trainer.devices={devices}", "datamodule.batch_size=33", "--output", f"{devices}.pt")
        done = python(ROOT / "scripts" / "predict.py", "run", *options, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout.endswith(f"The predictions: {tmp_path / f'{devices}.pt'}\n")
    one, two = (torch.load(tmp_path / f"{devices}.pt", weights_only=True) for devices in (1, 2))
    assert one["indices"].tolist() == two["indices"].tolist() == list(range(198))
    assert one["predictions"]["class"].equal(two["predictions"]["class"])
    torch.testing.assert_close(one["predictions"]["logits"], two["predictions"]["logits"])
    assert not [*tmp_path.glob("*.rank*")]


@pytest.mark.slow
@requires("images")
def test_a_task_predicts_the_test_split_in_its_order(tmp_path: Path) -> None:
    """The loader of a DataModule draws an order of its own, which its batches say."""
    done = train("model=mlp", "debug=fast", "hydra.run.dir=run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for devices in (1, 2):
        done = python(
            ROOT / "scripts" / "predict.py", "run", f"trainer.devices={devices}", "--output", f"{devices}.pt", cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
        assert "batch indices" not in done.stdout + done.stderr
    one, two = (torch.load(tmp_path / f"{devices}.pt", weights_only=True) for devices in (1, 2))
    assert one["indices"].tolist() == two["indices"].tolist() == list(range(360))
    torch.testing.assert_close(one["predictions"], two["predictions"])
    wanted = load_model(tmp_path / "run" / "checkpoints" / "best.ckpt").predict(digits()[0][-360:])
    torch.testing.assert_close(one["predictions"], wanted)


def test_entries_of_several_ranks_are_in_the_order_of_the_dataset() -> None:
    ranks = [
        _joined([[4, 0], [2]], [{"x": torch.tensor([4.0, 0.0]), "y": (["4", "0"],)}, {"x": torch.tensor([2.0]), "y": (["2"],)}]),
        _joined([[3, 1]], [{"x": torch.tensor([3.0, 1.0]), "y": (["3", "1"],)}]),
        _joined([], []),
    ]
    whole = _sorted(ranks)
    assert whole["indices"].tolist() == whole["predictions"]["x"].tolist() == [0, 1, 2, 3, 4]
    assert whole["predictions"]["y"] == (["0", "1", "2", "3", "4"],)
    stream = _joined([], [torch.zeros(2, 3), torch.ones(1, 3)])
    assert (stream["indices"].tolist(), stream["predictions"].shape) == ([0, 1, 2], (3, 3))
    shared = _sorted([_joined([], [torch.tensor([0, 2]), torch.tensor([4])], 0, 2), _joined([], [torch.tensor([1, 3])], 1, 2)])
    assert shared["indices"].tolist() == shared["predictions"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("share", [(1, 2), None])
def test_of_a_stream_only_what_is_shared_out_is_predicted_on_several_processes(share: Any, tmp_path: Path) -> None:
    stream = StreamOf(range(9))
    stream.share = share  # as a Shard has it
    trainer: Any = SimpleNamespace(predict_dataloaders=DataLoader(stream), global_rank=1, world_size=2)
    with contextlib.nullcontext() if share == (1, 2) else pytest.raises(ConfigError, match=r"accepted is 1, or"):
        _Writer(tmp_path / "out.pt").on_predict_start(trainer, None)  # pyright: ignore[reportArgumentType]
