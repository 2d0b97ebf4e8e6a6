"""Lightning code that knows nothing of Lockstep, by the command lines of docs/your-code.md."""

import json
from pathlib import Path
from typing import Any

import pytest
from bitwise import differences, state
from commands import PLAIN, ROOT, python, train

pytestmark = pytest.mark.slow

MINE = (PLAIN,)  # which stands for conf
MINE += ("model=mine", "datamodule=mine", "optimized_metric=val_acc")
KINDS = {
    "classifier": MINE,
    "two optimizers by hand": (
        *(MINE[0], "model=adversary", "datamodule=mine", "optimized_metric=val_realness", "optimized_mode=max"),
        "trainer.strategy.find_unused_parameters=true",
    ),
    "recurrent, own loaders": (MINE[0], "model=rows", "datamodule=null", "optimized_metric=val_loss", "optimized_mode=min"),
}
TWO = ("trainer.devices=2", "trainer.max_epochs=3", "trainer.log_every_n_steps=1", "logger=csv", "trainer.num_sanity_val_steps=0")
# in the second of three epochs of seven batches; a third rank, which there is not, or the second one
KILLED = "+callbacks.kill={_target_: faults.Fault, rank: 2, how: kill, batch: 2, epoch: 1, once: true}"
SWEPT = ("callbacks.kill.rank=2,1", "max_restarts=1", "hydra.sweep.dir=sweep")


def record(run: Path) -> dict[str, Any]:
    return json.loads((run / "metrics.json").read_text())


@pytest.fixture(scope="module", params=KINDS)
def sweep(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a sweep of two runs on two processes: an undisturbed one, and one of which a rank is killed."""
    folder = tmp_path_factory.mktemp("own")
    done = python(ROOT / "train.py", "-m", "trainer=cpu", *KINDS[request.param], *TWO, KILLED, *SWEPT, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 of 2 jobs finished" in done.stdout
    return folder / "sweep"


def undisturbed(sweep: Path) -> Path:
    return next(sweep.glob("rank=2*"))


def test_killed_in_its_second_epoch_and_resumed_it_ends_bit_for_bit_as_if_nothing_had_been(sweep: Path) -> None:
    (killed,) = sweep.glob("rank=1*")
    whole = undisturbed(sweep)
    assert "restart 1 of 1" in (killed / "output.log").read_text()
    output = (whole / "output.log").read_text()
    assert (output.count("Your own code"), output.count("Training changes what checkpoints do not have")) == (1, 0)
    assert differences(state(killed), state(whole)) == []
    assert record(killed)["metrics"] == record(whole)["metrics"]


@pytest.mark.parametrize("sweep", ["classifier"], indirect=True)
def test_it_is_evaluated_and_exported_and_told_what_predicts_it(sweep: Path) -> None:
    run = undisturbed(sweep)
    done = python(ROOT / "scripts" / "evaluate.py", run, "trainer.devices=1", cwd=run.parent)
    assert done.returncode == 0, done.stderr
    (evaluated,) = (run / "evaluations").iterdir()
    metrics = record(evaluated)["metrics"]
    assert [name for name in metrics if name.startswith("test_")]
    assert metrics == pytest.approx({name: record(run)["metrics"][name] for name in metrics}, rel=1e-6)
    done = python(ROOT / "scripts" / "export.py", run, cwd=run.parent)
    assert done.returncode == 0, done.stderr
    assert (run / "export" / "best.safetensors").is_file()
    (run / "x.png").touch()
    done = python(ROOT / "scripts" / "predict.py", run, run / "x.png", cwd=run.parent)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "That of another LightningModule is read by its load_from_checkpoint" in done.stderr


@pytest.mark.parametrize("sweep", ["classifier"], indirect=True)
def test_it_leaves_a_record(sweep: Path) -> None:
    result = record(undisturbed(sweep))
    status = json.loads((undisturbed(sweep) / "status.json").read_text())
    assert (status["status"], status["reason"]) == ("finished", "trainer.max_epochs=3")
    assert (result["world_size"], result["samples_trained"], result["steps"], result["lr"]) == (2, 4200, 21, 0.05)
    assert result["samples_per_second"] > 0
    assert [line for line in result["not_as_one_process"] if line.startswith("a training step draws random numbers")]
    assert {"train_loss_epoch", "train_acc", "val_loss", "val_acc", "test_acc"} <= result["metrics"].keys()
    assert result["metrics"]["val_acc"] > 0.6


def test_a_module_with_loaders_of_its_own_takes_them_when_it_is_told_to(tmp_path: Path) -> None:
    own = (MINE[0], "model=own_loaders", "optimized_metric=val_loss", "optimized_mode=min", "test=false", "trainer.devices=2")
    done = train(*own, "hydra.run.dir=run", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "datamodule=Digits: OwnLoaders has loaders of its own; use datamodule=null for these, or remove them from the class"
    ]
    assert json.loads((tmp_path / "run" / "status.json").read_text())["reason"] == done.stderr.strip()
    short = ("trainer.max_epochs=1", "trainer.precision=64-true", "callbacks=null", "hydra.run.dir=run")
    done = train(*own, "datamodule=null", *short, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    facts = record(tmp_path / "run")
    assert (facts["samples_trained"], facts["batch_size"], facts["global_batch_size"]) == (50, 6, 12)
    done = train(*own[:1], "model=cnn", "datamodule=null", "hydra.run.dir=cnn", cwd=tmp_path)
    assert done.stderr.startswith("model._target_=lockstep.models.Classifier: needs data with a `spec`")
