"""What a module's predict_step says of each sample, once, on any number of processes."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from commands import ROOT, python, train
from torch.utils.data import DataLoader, IterableDataset

from lockstep.datamodules.digits import digits
from lockstep.errors import ConfigError
from lockstep.extras.saved_runs.predictions import _Writer, in_order, joined
from lockstep.models.from_checkpoint import load_model

MINE = (f"hydra.searchpath=[file://{ROOT / 'tests' / 'support' / 'plain_conf'}]", "model=mine", "datamodule=mine")


class StreamOf(IterableDataset[int]):
    def __init__(self, numbers: range) -> None:
        self.numbers = numbers

    def __iter__(self) -> Any:
        return iter(self.numbers)


@pytest.mark.slow
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
        joined([[4, 0], [2]], [{"x": torch.tensor([4.0, 0.0]), "y": (["4", "0"],)}, {"x": torch.tensor([2.0]), "y": (["2"],)}]),
        joined([[3, 1]], [{"x": torch.tensor([3.0, 1.0]), "y": (["3", "1"],)}]),
        joined([], []),
    ]
    whole = in_order(ranks)
    assert whole["indices"].tolist() == whole["predictions"]["x"].tolist() == [0, 1, 2, 3, 4]
    assert whole["predictions"]["y"] == (["0", "1", "2", "3", "4"],)
    stream = joined([], [torch.zeros(2, 3), torch.ones(1, 3)])
    assert stream is not None
    assert (stream["indices"].tolist(), stream["predictions"].shape) == ([0, 1, 2], (3, 3))
    with pytest.raises(ConfigError, match=r"^predict_step=Tensor: it has returned \[3\] entries for 2 samples; return an entry"):
        joined([[0, 1]], [torch.zeros(3)])


def test_a_stream_is_not_predicted_on_several_processes(tmp_path: Path) -> None:
    trainer: Any = SimpleNamespace(predict_dataloaders=DataLoader(StreamOf(range(9))), global_rank=1, world_size=2)
    with pytest.raises(ConfigError, match=r"which each process would predict whole; use 1$"):
        _Writer(tmp_path / "out.pt").on_predict_start(trainer, None)  # pyright: ignore[reportArgumentType]
