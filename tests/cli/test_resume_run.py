"""`python train.py resume=...`, as a user types it after a run was killed, preempted, or damaged."""

import json
from pathlib import Path

import pytest
from bitwise import differences, state
from commands import record, status, train
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lockstep.checkpointing import read_checkpoint
from lockstep.runs.saved import read_run_id

pytestmark = pytest.mark.slow

# two epochs of eight steps
OPTIONS = ("trainer.max_epochs=2", "datamodule.batch_size=160", "model=mlp", "model.net.dropout=0.2", "datamodule.augment=null")
OPTIONS += ("guards.checkpoint.every_n_steps=1", "trainer.log_every_n_steps=1", "++callbacks.pictures=null")
OPTIONS += ("logger=[tensorboard,csv]",)


def curves(run: Path) -> dict[str, dict[int, float]]:
    """Return TensorBoard's values of a run, without its speed and the test."""
    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    tags = [tag for tag in events.Tags()["scalars"] if not tag.startswith(("throughput", "test"))]
    return {tag: {event.step: event.value for event in events.Scalars(tag)} for tag in tags}


def since(step: int, curves: dict[str, dict[int, float]]) -> dict[str, dict[int, float]]:
    return {name: {at: value for at, value in curve.items() if at >= step} for name, curve in curves.items()}


def test_a_killed_run_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    """Killed with -9 in the first epoch; continued with a new override; preempted while it is tested; continued."""
    whole = tmp_path / "whole"
    train(*OPTIONS, "hydra.run.dir=whole", cwd=tmp_path, code=0)
    faults = ("+callbacks.fault={_target_:faults.Fault,rank:0,how:kill,batch:5,once:true}",)
    faults += ("+callbacks.asked={_target_:faults.AskedInTest}",)
    done = train(*OPTIONS, *faults, cwd=tmp_path, code=-9)
    (run,) = tmp_path.glob("logs/*/*")
    assert status(run)["status"] == "running"  # it could not say
    run_id = read_run_id(run)
    first_log = (run / "train.log").read_text()

    done = train(f"resume={run}", "guards.watchdog.seconds=500", cwd=tmp_path, code=75)
    assert (status(run)["status"], status(run)["reason"]) == ("preempted", "preempted by SIGTERM")
    assert list(tmp_path.glob("logs/*/*")) == [run]
    assert run_id is not None
    assert read_run_id(run) == run_id
    assert (run / ".hydra" / "overrides.yaml").read_text().endswith("guards.watchdog.seconds=500\n")
    log = (run / "train.log").read_text()
    assert log.startswith(first_log)
    assert f"Continuing from {run}/checkpoints/last.ckpt" in log.removeprefix(first_log)
    assert "seconds: 500" in log.removeprefix(first_log)
    trained = state(run)
    assert trained["global_step"] == 16
    assert not differences(state(whole), trained)

    done = train(f"resume={run}", cwd=tmp_path, code=0)
    assert (status(run)["status"], status(run)["reason"]) == ("finished", "trainer.max_epochs=2")
    last_log = (run / "train.log").read_text().removeprefix(log)
    assert "seconds: 500" in last_log  # remembered
    assert "epoch 2/2" not in last_log  # it went straight to the test
    assert since(6, curves(run)) == since(6, curves(whole))
    metrics = record(run)["metrics"]
    assert metrics["test/acc"] > 0.5
    metrics = {name: value for name, value in metrics.items() if not name.startswith("test/")}
    assert metrics == read_checkpoint("best", whole / "checkpoints" / "best.ckpt")["metrics"]
    assert not differences(trained, state(run))

    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    done = train(f"resume={run}", cwd=tmp_path, code=0)
    assert done.stderr.startswith("The run has finished already.")
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before

    refused = {
        (f"resume={run}", "trainer.devices=7"): "datamodule.global_batch_size=160: is not divisible by 7",
        (f"resume={run}", "trainer.max_epochs=1"): "trainer.max_epochs=1: ",  # by the checkpoint, of two
        (f"resume={run}", "hydra.sweep.dir=x"): "hydra.sweep.dir=x: is for sweeps",
        (f"hydra.run.dir={run}", "seed=9", f"init_from={run}/checkpoints/best.ckpt"): f"hydra.run.dir={run}: belongs to an",
    }
    for command, line in refused.items():
        before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
        done = train(*command, cwd=tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert done.stderr.startswith(line)
        after = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
        changed = {path.name for path in before | after if before.get(path) != after.get(path)}
        assert changed <= ({"lock", "train.log"} if command[0].startswith("resume") else set())

    # killed before it takes a step: it goes on with the config that it had, here on two processes and then on one
    fault = "+callbacks.later={_target_:faults.Fault,rank:1,how:kill,batch:0,epoch:2,once:true}"
    done = train(f"resume={run}", "trainer.max_epochs=3", "trainer.devices=2", fault, cwd=tmp_path, code=1)
    assert not (run / "metrics.json").exists()
    (run / "status.json").write_text(json.dumps(status(run) | {"status": "running"}))  # as where the parent is killed too
    done = train(f"resume={run}", "trainer.devices=1", cwd=tmp_path, code=0)
    assert record(run)["steps"] == 24


def test_without_callbacks_too_a_killed_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    """Killed with -9 in the middle of the second of three epochs, of four steps."""
    options = ("trainer.max_epochs=3", "datamodule.batch_size=320", "model=mlp", "model.net.dropout=0.2", "test=false")
    options += ("guards.checkpoint.every_n_steps=1", "logger=csv", "callbacks=null")
    folders = tmp_path / "whole", tmp_path / "killed"
    for folder in folders:
        folder.mkdir()
    whole, run = (folder / "run" for folder in folders)
    train(*options, "hydra.run.dir=run", cwd=folders[0], code=0)
    fault = "+callbacks.fault={_target_:faults.Fault,rank:0,how:kill,epoch:1,batch:2,once:true}"
    train(*options, fault, "hydra.run.dir=run", cwd=folders[1], code=-9)
    assert 4 < state(run)["global_step"] < 8  # what was being written is lost
    train("resume=run", cwd=folders[1], code=0)
    assert f"Continuing from {run}/checkpoints/last.ckpt" in (run / "train.log").read_text()
    assert state(run)["global_step"] == 12
    assert not differences(state(whole), state(run))


def test_a_run_without_a_checkpoint_begins_anew_and_one_without_a_sound_one_is_refused(tmp_path: Path) -> None:
    kill = "+callbacks.fault={_target_:faults.Fault,rank:0,how:kill,batch:0,once:true}"
    done = train("debug=fast", "hydra.run.dir=run", kill, cwd=tmp_path, code=-9)
    done = train("resume=run", cwd=tmp_path, code=0)
    assert "There is no checkpoint yet: the run starts from the beginning." in done.stdout
    run = tmp_path / "run"
    for path in run.glob("checkpoints/*.ckpt"):
        path.write_bytes(path.read_bytes()[:1000])
    line = f"resume={run}: every checkpoint is damaged: last.ckpt, best.ckpt; move them away to start anew"
    for devices in (1, 2):
        done = train("resume=run", "trainer.max_epochs=2", f"trainer.devices={devices}", cwd=tmp_path, code=2)
        assert done.stderr.count(line) == 1
        assert "Traceback" not in done.stderr
        assert status(run)["status"] == "finished"  # as it was


@pytest.mark.parametrize("devices", [1, 2])
def test_a_refused_resumption_leaves_the_run_as_it_was(devices: int, tmp_path: Path) -> None:
    """The run has stopped within an epoch, whose batches can't change; ranks find that out when they begin to train."""
    run = tmp_path / "run"
    stop = "+callbacks.fault={_target_:faults.Fault,rank:0,how:SIGTERM,batch:2,once:true}"
    options = ("debug=fast", "trainer.limit_train_batches=8", "guards.preemption.every_n_steps=1", "hydra.run.dir=run")
    train(*options, f"trainer.devices={devices}", stop, cwd=tmp_path, code=75)
    files = [*(run / ".hydra").iterdir(), run / "status.json"]
    before = {file: file.read_bytes() for file in files}
    done = train("resume=run", "datamodule.global_batch_size=20", cwd=tmp_path, code=2)
    assert "last.ckpt: is within an epoch of " in done.stderr
    assert done.stderr.endswith("number of samples in a batch over all processes, 64\n")
    assert {file: file.read_bytes() for file in files} == before
    train("resume=run", cwd=tmp_path, code=0)
    assert record(run)["steps"] == 8
