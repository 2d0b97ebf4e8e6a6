"""Two processes of train.py, disturbed in several ways: they end as the undisturbed ones."""

import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from agents import torchrun
from bitwise import differences, state
from commands import TIMEOUT, status, train
from in_process import prepared
from ranks import in_ranks

pytestmark = pytest.mark.slow

OPTIONS = ("trainer.devices=2", "trainer.max_epochs=2", "datamodule.batch_size=80", "model=mlp", "datamodule.augment=null")
OPTIONS += ("model.net.dropout=0.2", "guards.checkpoint.every_n_steps=3", "++callbacks.pictures=null", "logger=csv", "test=false")


def undisturbed(rank: int, world_size: int, run: Path, options: tuple[str, ...] = OPTIONS) -> None:
    datamodule, model, trainer = prepared(run, *options, base=("trainer.accelerator=cpu",))
    trainer.fit(model, datamodule)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The last checkpoint of an undisturbed run, of two epochs of eight steps."""
    folder = tmp_path_factory.mktemp("whole")
    in_ranks(2, partial(undisturbed, run=folder / "run"), folder)
    return state(folder / "run")


def fault(how: str, batch: int) -> str:
    return f"+callbacks.fault={{_target_:faults.Fault,rank:1,how:{how},batch:{batch},once:true}}"


def test_ranks_are_started_again_when_one_has_died(whole: dict[str, Any], tmp_path: Path) -> None:
    train(*OPTIONS, "hydra.run.dir=run", "max_restarts=2", fault("kill", 5), cwd=tmp_path, code=0)
    run = tmp_path / "run"
    log = (run / "train.log").read_text()
    assert "rank 1 was killed by SIGKILL; restart 1 of 2" in log
    assert "restart 2 of 2" not in log
    assert log.count(f"Continuing from {run}/checkpoints/last.ckpt") == 1
    assert status(run)["status"] == "finished"
    assert not differences(whole, state(run))


def test_torchrun_starts_them_again(whole: dict[str, Any], tmp_path: Path) -> None:
    """Both ranks agree on one directory, in both of their lives."""
    overrides = ("trainer.accelerator=cpu", *OPTIONS, fault("kill", 5))
    agent = torchrun("--nproc-per-node=2", "--max-restarts=2", overrides=overrides, output=tmp_path / "output.txt")
    agent.join(TIMEOUT)
    agent.kill()
    assert agent.exitcode == 0, (tmp_path / "output.txt").read_text()
    (run,) = tmp_path.glob("logs/*/*")
    assert (run / "train.log").read_text().count(f"Continuing from {run}/checkpoints/last.ckpt") == 1
    assert status(run)["status"] == "finished"
    assert not differences(whole, state(run))


def test_a_rank_that_hangs_ends_the_run_with_the_stacks_of_all(tmp_path: Path) -> None:
    """Rank one sleeps, rank zero waits for it in a collective."""
    since = time.monotonic()
    done = train(*OPTIONS, "hydra.run.dir=run", "guards.watchdog.seconds=10", fault("hang", 3), cwd=tmp_path, code=1)
    assert time.monotonic() - since < 100
    reason = status(tmp_path / "run")["reason"]
    assert ": no progress for 10 s, " in reason
    assert done.stderr.count(f"The run failed: {reason}") == 1
    for name, place in {"train.log": "all_reduce|barrier|backward|reducer|_has_happened", "train.rank1.log": "faults.py"}.items():
        log = (tmp_path / "run" / name).read_text()
        assert "no progress for 10 s" in log
        assert log.count("hread 0x") >= 2
        assert any(word in log for word in place.split("|")), log[-3000:]
