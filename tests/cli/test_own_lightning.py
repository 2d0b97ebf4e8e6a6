"""Lightning code that knows nothing of Lockstep, by the command lines of docs/your-lightning-code.md."""

import json
from pathlib import Path
from typing import Any

import pytest
from bitwise import differences
from commands import ROOT, python, train

from lockstep.checkpointing import read_checkpoint

pytestmark = pytest.mark.slow

MINE = (f"hydra.searchpath=[file://{ROOT / 'tests' / 'support' / 'plain_conf'}]",)  # which stands for conf
MINE += ("model=mine", "datamodule=mine", "optimized_metric=val_acc")
TWO = ("trainer.devices=2", "trainer.max_epochs=3", "trainer.log_every_n_steps=1", "logger=csv")
# of rank 1, in the second of three epochs of seven batches
KILLED = "+callbacks.kill={_target_: faults.Fault, rank: 1, how: kill, batch: 2, epoch: 1, once: true}"


def record(run: Path) -> dict[str, Any]:
    return json.loads((run / "metrics.json").read_text())


def last(run: Path) -> dict[str, Any]:
    return read_checkpoint("last", run / "checkpoints" / "last.ckpt") | {"callbacks": None}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of an undisturbed run on two processes."""
    folder = tmp_path_factory.mktemp("own")
    done = train(*MINE, *TWO, "hydra.run.dir=run", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("plain Lightning") == 1
    return folder / "run"


def test_a_metric_that_it_does_not_log_is_refused_before_training_and_leaves_nothing(tmp_path: Path) -> None:
    done = train(*MINE, *TWO, "optimized_metric=val/acc", "trainer.check_val_every_n_epoch=3", "hydra.run.dir=run", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("optimized_metric=val/acc: the model logs ")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_it_leaves_a_record(run: Path) -> None:
    found = record(run)
    status = json.loads((run / "status.json").read_text())
    assert (status["status"], status["reason"]) == ("finished", "trainer.max_epochs=3")
    assert (found["world_size"], found["samples_trained"], found["steps"], found["lr"]) == (2, 4200, 21, 0.05)
    assert found["samples_per_second"] > 0
    assert [cause.partition(",")[0] for cause in found["not_as_one_process"]] == [
        "noise drawn by each process",
        "random numbers are drawn in a training step",
    ]
    assert {"train_loss_epoch", "train_acc", "val_loss", "val_acc", "test_acc"} <= found["metrics"].keys()
    assert found["metrics"]["val_acc"] > 0.6


def test_killed_in_its_second_epoch_and_resumed_it_ends_bit_for_bit_as_if_nothing_had_been(run: Path) -> None:
    done = train(*MINE, *TWO, KILLED, "max_restarts=1", "hydra.run.dir=killed", cwd=run.parent)
    assert done.returncode == 0, done.stderr
    assert "restart 1 of 1" in done.stdout
    assert differences(last(run.parent / "killed"), last(run)) == []
    assert record(run.parent / "killed")["metrics"] == record(run)["metrics"]


def test_it_is_evaluated_and_exported_and_told_what_predicts_it(run: Path) -> None:
    done = python(ROOT / "scripts" / "evaluate.py", run, "trainer.devices=1", cwd=run.parent)
    assert done.returncode == 0, done.stderr
    (evaluated,) = (run / "evaluations").iterdir()
    assert record(evaluated)["metrics"]["test_acc"] == record(run)["metrics"]["test_acc"]
    done = python(ROOT / "scripts" / "export.py", run, cwd=run.parent)
    assert done.returncode == 0, done.stderr
    assert (run / "export" / "best.safetensors").is_file()
    (run / "x.png").touch()
    done = python(ROOT / "scripts" / "predict.py", run, run / "x.png", cwd=run.parent)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "That of another LightningModule is read by its load_from_checkpoint" in done.stderr


def test_a_module_with_loaders_of_its_own_takes_them_when_it_is_told_to(tmp_path: Path) -> None:
    own = (MINE[0], "model=own_loaders", "optimized_metric=val_loss", "optimized_mode=min", "test=false", "trainer.devices=2")
    done = train(*own, "hydra.run.dir=run", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "datamodule=digits: is the default, and OwnLoaders has loaders of its own; "
        "accepted is datamodule=null for these, or datamodule=digits for that data"
    ]
    assert not (tmp_path / "run").exists()
    short = ("trainer.max_epochs=1", "trainer.precision=64-true", "callbacks=null", "hydra.run.dir=run")
    done = train(*own, "datamodule=null", *short, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    facts = record(tmp_path / "run")
    assert (facts["samples_trained"], facts["batch_size"], facts["global_batch_size"]) == (50, 6, 12)
    done = train(*own[:1], "model=cnn", "~datamodule", "hydra.run.dir=cnn", cwd=tmp_path)
    assert done.stderr == "datamodule=null: a lockstep.models.Task has no data of its own; accepted is a datamodule\n"


def test_a_sweep_of_its_own_learning_rate_without_callbacks(tmp_path: Path) -> None:
    done = python(
        *(ROOT / "train.py", "-m", *MINE, "trainer=cpu", "debug=fast", "callbacks=null", "model.lr=0.05,0.1"),
        "hydra.sweep.dir=sweep",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    rows = (tmp_path / "sweep" / "results.csv").read_text().splitlines()
    assert len(rows) == 3
    assert "model.lr" in rows[0]
    assert [row for row in rows[1:] if "finished" in row] == rows[1:]


def test_two_processes_take_the_steps_of_one(tmp_path: Path) -> None:
    steps = ("trainer=cpu", "trainer.devices=2", "parity.steps=8", "+model.dropout=0.0")
    done = python(ROOT / "scripts" / "parity.py", *MINE, *steps, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("Equal up to step ")
