"""`python train.py ...` as a user types it, `-m` too: what it does, says, and leaves behind."""

import json
import os
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import PLAIN, ROOT, python, record, runs, started, status, train
from omegaconf import OmegaConf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lockstep.sweeps.jobs import SweepJobs

pytestmark = pytest.mark.slow
DATA = ROOT.parent / "shared" / "data"
WITNESS = "+callbacks.witness={_target_:faults.Witness}"
JSON = {"status.json", "metrics.json", "seen.0.json", "progress.json"}


def seen(run: Path, rank: int) -> dict[str, Any]:
    return json.loads((run / f"seen.{rank}.json").read_text())


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The run directory and the terminal output of the default command, with one process."""
    folder = tmp_path_factory.mktemp("one")
    done = train("trainer.max_epochs=3", "trainer.log_every_n_steps=5", WITNESS, cwd=folder, code=0)
    (run,) = runs(folder)
    return run, done.stdout


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The same with two processes, in a directory given by name."""
    folder = tmp_path_factory.mktemp("two")
    overrides = ("trainer.devices=2", "datamodule.global_batch_size=48", "lr_scaling=linear", "trainer.max_epochs=2")
    done = train(*overrides, "hydra.run.dir='my runs/a,b=1'", WITNESS, cwd=folder, code=0)
    return folder / "my runs" / "a,b=1", done.stdout


def test_a_run_leaves_one_directory(one: tuple[Path, str]) -> None:
    run, _ = one
    left = {path.name for path in run.iterdir()} - {"code.patch"}  # in a checkout of git alone
    assert left == {".hydra", "train.log", "lock", *JSON, "checkpoints", "tensorboard"}
    assert {path.name for path in (run / "checkpoints").iterdir()} == {"best.ckpt", "last.ckpt", "previous.ckpt"}
    assert status(run)["status"] == "finished"
    assert (run / ".hydra" / "config.yaml").is_file()


def test_the_record_describes_the_run(one: tuple[Path, str]) -> None:
    content = record(one[0])
    assert content["world_size"] == content["devices"] == 1
    assert (content["batch_size"], content["global_batch_size"], content["lr"]) == (64, 64, 0.002)
    assert content["samples"] == {"train": 1293, "val": 144, "test": 360}
    assert content["samples_per_epoch"] == 1280  # 20 whole batches of 64
    assert (content["samples_trained"], content["steps"], content["epochs"]) == (3840, 60, 3)
    convolutions, norms = 9 * (1 * 32 + 32 * 64 + 64 * 128), 2 * (32 + 64 + 128)
    assert content["parameters"] == convolutions + norms + 128 * 10 + 10
    assert content["versions"]["torch"] == torch.__version__.partition("+")[0]
    assert content["samples_per_second"] == pytest.approx(content["samples_trained"] / content["train_time"])
    correct = content["metrics"]["test/acc"] * 360
    assert correct == pytest.approx(round(correct), abs=1e-9)
    assert correct > 250


def test_tensorboard_shows_the_run(one: tuple[Path, str]) -> None:
    events = EventAccumulator(str(one[0] / "tensorboard"), size_guidance={"images": 0, "scalars": 0})
    events.Reload()
    tags = events.Tags()
    means = {f"{stage}/{metric}" for stage in ("train", "val", "test") for metric in ("loss", "acc")}
    assert means | {"lr", "train/loss_step", "throughput/samples_per_second", "throughput/step_time"} <= set(tags["scalars"])
    assert set(tags["images"]) == {"test/confusion"}
    assert "hp_metric" not in tags["scalars"]
    assert len(events.Scalars("train/loss_step")) == 60 // 5
    assert events.Scalars("test/acc")[-1].value == pytest.approx(record(one[0])["metrics"]["test/acc"])
    plugin = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    assert b"trainer.max_epochs" in plugin
    assert b"world_size" in plugin


def test_the_terminal_is_plain_text_and_says_what_matters(one: tuple[Path, str]) -> None:
    run, output = one
    assert not {"\x1b", "\r"} & {*output}
    assert "one process on the CPU; global batch 64 (64 per process), learning rate 0.002" in output
    assert "1280 of 1293 samples per epoch" in output
    assert output.count("\nepoch ") == 3
    assert "tensorboard --logdir logs" in output
    assert "\n  lockstep evaluate logs" in output
    assert "torch.optim.AdamW" not in output
    assert "optimizer:\n    _target_: torch.optim.AdamW" in (run / "train.log").read_text()


def test_two_processes_share_a_directory_and_have_a_log_each(two: tuple[Path, str]) -> None:
    run, output = two
    names = {path.name for path in run.iterdir()}
    assert {"train.log", "train.rank1.log", "status.json", "metrics.json", ".hydra"} <= names
    assert not (run.parents[1] / "logs").exists()
    assert len(list((run / "tensorboard").glob("events*"))) <= 4  # all by rank zero
    assert "2 CPU processes, DDP over gloo; global batch 48 (24 per process), learning rate 0.0015" in output
    assert output.count("\nepoch 1/2") == 1


def test_two_processes_agree_on_their_world(two: tuple[Path, str]) -> None:
    expected = {"trainer": 2, "group": 2, "strategy": "DDP", "backend": "gloo"}
    for rank in (0, 1):
        assert seen(two[0], rank)["world"] == expected | {"rank": rank}
    content = record(two[0])
    assert (content["world_size"], content["batch_size"], content["global_batch_size"]) == (2, 24, 48)
    begun, ended = (datetime.fromisoformat(status(two[0])[name]) for name in ("started", "updated"))
    assert content["wall_time"] > 0.5 * (ended - begun).total_seconds()  # with the start of the processes
    assert content["lr"] == pytest.approx(0.002 * 48 / 64)  # linear, from a base batch of 64


def test_one_process_is_not_wrapped(one: tuple[Path, str]) -> None:
    world = seen(one[0], 0)["world"]
    assert world == {"trainer": 1, "group": 1, "rank": 0, "strategy": "SingleDeviceStrategy", "backend": None}


def test_shards_are_disjoint_and_reshuffled_and_the_test_set_is_seen_once(two: tuple[Path, str]) -> None:
    batches = [seen(two[0], rank)["train"] for rank in (0, 1)]
    epochs = [[sorted(chain.from_iterable(shard[26 * e : 26 * (e + 1)])) for shard in batches] for e in (0, 1)]
    for first, second in epochs:  # 26 steps of 48 = 1248 of the 1293 samples
        assert len(first) == len(second) == 624
        assert not set(first) & set(second)
    assert epochs[0] != epochs[1]
    tested = [i for rank in (0, 1) for batch in seen(two[0], rank)["test"] for i in batch]
    assert sorted(tested) == list(range(360))


def test_runs_started_together_have_directories_of_their_own(tmp_path: Path) -> None:
    command = (ROOT / "train.py", "trainer.accelerator=cpu", "debug=fast")
    with started(*command, cwd=tmp_path) as first, started(*command, cwd=tmp_path) as second:
        assert (first.communicate(timeout=120) and first.returncode, second.communicate() and second.returncode) == (0, 0)
    assert len(runs(tmp_path)) == 2


OWN = (PLAIN, "model=mine", "datamodule=mine")


@pytest.mark.parametrize(
    ("options", "loss"),
    [
        (("model=mlp", "model.optimizer.lr=1e-2", "datamodule.augment=null"), "train/loss"),
        ((*OWN, "+model.dropout=0", "model.lr=0.5"), "train_loss"),
    ],
    ids=["shipped", "of one's own"],
)
def test_one_batch_is_overfitted(options: tuple[str, ...], loss: str, tmp_path: Path) -> None:
    train("debug=overfit", *options, f"optimized_metric={loss}", "trainer.max_epochs=40", cwd=tmp_path, code=0)
    (run,) = runs(tmp_path)
    assert record(run)["metrics"][loss] < 0.01
    assert record(run)["steps"] == 40


def test_help_is_worth_reading(tmp_path: Path) -> None:
    done = python(ROOT / "train.py", "--help", cwd=tmp_path, code=0)
    for group in ("model", "datamodule", "trainer", "callbacks", "logger", "experiment", "debug"):
        assert f"{group}: " in done.stdout
    examples = [line for line in done.stdout.splitlines() if line.startswith("  python train.py ") and "[" not in line]
    assert len([line for line in examples if "RUN_DIR" not in line]) == 5
    assert not any(word in line for line in examples[:2] for word in ("digits", "optimizer"))  # a project has others, or none
    assert not list(tmp_path.iterdir())


def test_ranks_of_a_relative_script_that_changes_its_folder_have_one_value_of_the_clock(tmp_path: Path) -> None:
    """Hydra changes the folder before the ranks start. Ranks with other values than rank zero's would be refused."""
    options = ("debug=fast", "trainer=cpu", "trainer.devices=2", "hydra.job.chdir=true", "name='x${now:%H%M%S%f}'")
    python(os.path.relpath(ROOT / "train.py", tmp_path), *options, "hydra.run.dir=run", cwd=tmp_path, code=0)
    assert OmegaConf.load(tmp_path / "run" / ".hydra" / "config.yaml").name[1:].isdecimal()


def test_a_run_starts_from_weights(tmp_path: Path, one: tuple[Path, str]) -> None:
    last = one[0] / "checkpoints" / "last.ckpt"
    train(f"init_from='{last}'", "trainer.max_epochs=1", "model.optimizer.lr=0.0", "test=false", cwd=tmp_path, code=0)
    old, new = (
        torch.load(path, weights_only=True)["state_dict"] for path in (last, runs(tmp_path)[-1] / "checkpoints/last.ckpt")
    )
    statistics = ("running_mean", "running_var", "num_batches_tracked")  # BatchNorm's move at a rate of zero too
    assert all(torch.equal(old[name], new[name]) for name in old if not name.endswith(statistics))


def test_processes_and_rates_are_each_job_s_own_and_a_rank_that_dies_takes_its_job_alone(tmp_path: Path) -> None:
    fault = "+callbacks.fault={_target_:faults.Fault,rank:2,batch:0,how:raise}"
    grid = ("trainer.devices=4,2", "model.optimizer.lr=0.1,0.01", "debug=fast", "hydra.sweep.dir=sweep")
    done = train("-m", *grid, WITNESS, fault, cwd=tmp_path, timeout=200, code=1)
    assert "Traceback" not in done.stdout + done.stderr
    jobs = list(SweepJobs(tmp_path / "sweep").jobs.values())
    *failed, first, second = jobs
    assert [(job.status, job.reason) for job in failed] == [("failed", "rank 2: ArithmeticError: planted fault")] * 2
    for job, rate in ((first, 0.1), (second, 0.01)):
        folder = tmp_path / "sweep" / job.directory.name
        facts = record(folder)
        assert (job.status, job.reason) == ("finished", "trainer.max_epochs=1")
        assert (facts["world_size"], facts["lr"], facts["metrics"]["val/acc"]) == (2, rate, job.metric)
        for rank in range(2):
            world = json.loads((folder / f"seen.{rank}.json").read_text())["world"]
            assert (world["rank"], world["trainer"], world["group"]) == (rank, 2, 2)
    beside = {path.name for path in (tmp_path / "sweep").iterdir()} - {job.directory.name for job in jobs}
    assert beside == {"lock", "multirun.yaml", "results.csv"}
    assert done.stdout.count(": finished  val/acc ") == 2
    assert "tensorboard --logdir" in done.stdout


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "conf" / "experiment").glob("*.yaml")))
def test_each_experiment_trains_evaluates_and_tests(name: str, tmp_path: Path) -> None:
    given: list[str] = []
    if name == "mnist_ddp":
        if not (DATA / "MNIST" / "raw" / "t10k-images-idx3-ubyte").is_file():
            pytest.skip(f"no MNIST in {DATA}")
        given = [f"datamodule.data_dir={DATA}"]
    elif name == "finetune_digits":
        given = ["init_from=cnn/checkpoints/last.ckpt"]
        train("debug=fast", "model=cnn", "hydra.run.dir=cnn", cwd=tmp_path, code=0)
    train(f"experiment={name}", "debug=fast", "hydra.run.dir=run", *given, cwd=tmp_path, code=0)
    assert (tmp_path / "run" / "metrics.json").is_file()
