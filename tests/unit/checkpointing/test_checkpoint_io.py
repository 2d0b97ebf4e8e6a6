"""Lightning's seam: saving in the background, what goes wrong in it, and how often a checkpoint is read."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import BARE, last, prepared

from lockstep import checkpointing
from lockstep.checkpointing import AtomicCheckpointIO, CheckpointError, read_checkpoint


class Gate:
    """Stands in for write_checkpoint: notes what it is given, and lasts until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began, self.open = threading.Semaphore(0), threading.Event()
        self.running, self.most = 0, 0
        self.written: list[Any] = []
        self.error: Exception | None = None
        monkeypatch.setattr(checkpointing, "write_checkpoint", self)

    def __call__(self, checkpoint: dict[str, Any], path: Path, keep_as: str | None) -> None:
        self.running += 1
        self.most = max(self.most, self.running)
        self.began.release()
        assert self.open.wait(20)
        self.running -= 1
        if self.error is not None:
            raise self.error
        self.written.append((checkpoint, path.name, keep_as))


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


def test_what_is_written_in_the_background_is_what_it_was_when_saved(gate: Gate, tmp_path: Path) -> None:
    plugin = AtomicCheckpointIO(**{"async": True})
    weight, nested = torch.ones(3), {"sums": [torch.zeros(2)], "count": 1, "ids": range(3)}
    plugin.save_checkpoint({"weight": weight, "nested": nested}, tmp_path / "last.ckpt", {"keep_as": "previous.ckpt"})
    assert gate.began.acquire(timeout=20)  # it returns while the write goes on
    weight.fill_(5)
    nested["sums"][0].fill_(5)
    nested["count"] = 5
    gate.open.set()
    plugin.teardown()
    ((written, name, keep_as),) = gate.written
    assert (name, keep_as) == ("last.ckpt", "previous.ckpt")
    assert written["weight"].tolist() == [1, 1, 1]
    assert written["nested"]["sums"][0].tolist() == [0, 0]
    assert (written["nested"]["count"], written["nested"]["ids"]) == (1, range(3))


def test_one_write_is_in_flight_and_removal_waits_for_it(gate: Gate, tmp_path: Path) -> None:
    plugin = AtomicCheckpointIO(**{"async": True})
    (tmp_path / "old.ckpt").touch()
    plugin.save_checkpoint({"n": 1}, tmp_path / "a.ckpt")
    assert gate.began.acquire(timeout=20)
    others = [threading.Thread(target=plugin.remove_checkpoint, args=(tmp_path / "old.ckpt",))]
    others[0].start()
    time.sleep(0.2)
    assert (tmp_path / "old.ckpt").exists()
    assert gate.written == []
    gate.open.set()
    others[0].join(20)
    assert not (tmp_path / "old.ckpt").exists()
    for n in (2, 3):
        plugin.save_checkpoint({"n": n}, tmp_path / "a.ckpt")
    plugin.teardown()
    assert [checkpoint["n"] for checkpoint, *_ in gate.written] == [1, 2, 3]
    assert gate.most == 1


@pytest.mark.parametrize("how", ["the next save", "teardown"])
def test_what_went_wrong_in_the_background_surfaces(how: str, gate: Gate, tmp_path: Path) -> None:
    plugin = AtomicCheckpointIO(**{"async": True})
    gate.error = OSError(28, "No space left on device")
    gate.open.set()
    plugin.save_checkpoint({"n": 1}, tmp_path / "a.ckpt")
    later: dict[str, Any] = {
        "the next save": lambda: plugin.save_checkpoint({"n": 2}, tmp_path / "a.ckpt"),
        "teardown": plugin.teardown,
    }
    with pytest.raises(CheckpointError, match=r"a.ckpt: the checkpoint was not written \(No space left on device\)"):
        later[how]()
    plugin.teardown()  # it is said once


def test_a_run_that_saves_in_the_background_has_saved_all_at_its_end(tmp_path: Path) -> None:
    options = ("datamodule.batch_size=300", "trainer.max_epochs=2", "guards.checkpoint.every_n_steps=1")
    ended = []
    for choice in ("false", "true"):
        run = tmp_path / choice
        datamodule, model, trainer = prepared(run, *options, f"trainer.checkpoint_io.async={choice}", base=BARE)
        trainer.fit(model, datamodule)
        ended.append(last(run))
        assert read_checkpoint("previous", run / "checkpoints" / "previous.ckpt")["global_step"] == 7
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("checkpoint")]
    assert torch.equal(ended[0]["state_dict"]["net.layers.1.weight"], ended[1]["state_dict"]["net.layers.1.weight"])
