"""Nodes that come and go while a run lasts, under torchrun's agents: it goes on within the epoch and ends as if none had."""

import json
import os
import time
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from agents import Rendezvous, kill
from commands import TIMEOUT, status
from in_process import become_rank, last, prepared
from lightning import Callback, LightningModule, Trainer
from ranks import in_ranks
from waiting import wait_for

from lockstep.atomic_files import replace_text
from lockstep.launchers.processes import is_alive
from lockstep.launchers.stop_signals import STOP_SIGNALS

pytestmark = pytest.mark.slow

FIXED = ("trainer=cpu", "trainer.precision=64-true", "trainer.max_epochs=2", "model=mlp", "model.net.dropout=0.2", "test=false")
FIXED += ("datamodule.augment=null", "guards.checkpoint.every_n_steps=3", "guards.watchdog=null", "++callbacks.pictures=null")
FIXED += ("logger=csv",)
JOURNAL = "+callbacks.journal={_target_:test_elastic.Journal}"


class Journal(Callback):
    """A line for each batch of a process, with the step that its life began at."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.began = trainer.global_step

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        line = {"began": self.began, "step": trainer.global_step, "epoch": trainer.current_epoch}
        line |= {"ids": [*trainer.train_dataloader.sampler.draws(batch_idx)]}
        line |= {"world_size": trainer.world_size, "node": os.environ.get("MASTER_ADDR")}
        with (Path(trainer.default_root_dir) / f"{os.getpid()}.journal").open("a") as file:
            file.write(json.dumps(line) + "\n")


def journal(run: Path) -> list[dict[str, Any]]:
    """The lines of all processes, each with its pid."""
    lines = [(int(path.stem), line) for path in run.glob("*.journal") for line in path.read_text().splitlines()]
    return [{"pid": pid} | json.loads(line) for pid, line in lines]


class Hold(Callback):
    """Waits at a batch of rank zero's, in a world of so many: until this process is killed or asked to stop."""

    def __init__(self, world_size: int, epoch: int, batch: int) -> None:
        self.place = (world_size, epoch, batch)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if not trainer.is_global_zero or (trainer.world_size, trainer.current_epoch, batch_idx) != self.place:
            return
        run, deadline = Path(trainer.default_root_dir), time.monotonic() + 60
        replace_text(held(run, trainer.world_size), str(os.getpid()))
        while not STOP_SIGNALS.received and time.monotonic() < deadline:
            time.sleep(0.01)


def hold(world_size: int, epoch: int, batch: int) -> str:
    place = f"world_size:{world_size},epoch:{epoch},batch:{batch}"
    return f"+callbacks.hold{world_size}={{_target_:test_elastic.Hold,{place}}}"


def held(run: Path, world_size: int) -> Path:
    """Return the file with the pid of the process that waits, once it does."""
    return run / f"held.{world_size}"


def undisturbed(rank: int, world_size: int, run: Path, options: tuple[str, ...]) -> None:
    if world_size > 1:
        become_rank(rank, world_size)
    datamodule, model, trainer = prepared(run, *options, f"trainer.devices={world_size}", base=(), extra=[Journal()])
    trainer.fit(model, datamodule)


def lives(run: Path) -> list[tuple[int, int, str]]:
    """Return, for each start, its first step, the world size, and the address of rank zero's node."""
    return sorted({(line["began"], line["world_size"], line["node"]) for line in journal(run)})


def assert_same_training(run: Path, whole: Path, at_least: int = 1000) -> None:
    """Weights and optimizer up to rounding; in each step the same samples, by the last life that made it; each once an epoch, of
    which `at_least` so many."""
    own, other = last(run), last(whole)
    assert own["global_step"] == other["global_step"]
    torch.testing.assert_close(own["state_dict"], other["state_dict"], rtol=1e-10, atol=1e-10)
    states = [one["optimizer_states"][0]["state"] for one in (own, other)]
    torch.testing.assert_close(*states, rtol=1e-10, atol=1e-10)
    assert _samples(run) == _samples(whole)
    for epoch in {epoch for epoch, _ in _samples(run)}:
        ids = [*chain.from_iterable(ids for (of, _), ids in _samples(run).items() if of == epoch)]
        assert len(ids) == len(set(ids)) >= at_least


def _samples(run: Path) -> dict[tuple[int, int], list[int]]:
    """Return the numbers of the samples by epoch and step."""
    result: dict[tuple[int, int], list[tuple[int, list[int]]]] = {}
    for line in journal(run):
        result.setdefault((line["epoch"], line["step"]), []).append((line["began"], line["ids"]))
    return {
        place: sorted(chain.from_iterable(ids for began, ids in shares if began == max(began for began, _ in shares)))
        for place, shares in sorted(result.items())
    }


def assert_none_lives(run: Path) -> None:
    """Assert that no process that has trained is alive."""
    assert not [line["pid"] for line in journal(run) if is_alive(line["pid"])]


STEPS = 8  # of an epoch
AUTO = ("trainer.devices=auto", "trainer.num_nodes=auto", JOURNAL)


def joined(nodes: Rendezvous, run: Path, *options: str, max_restarts: int = 2) -> tuple[int, int]:
    """The exit codes of a node that has begun alone and of one that comes while it waits in `hold(1, ...)`."""
    first = nodes.agent("127.0.0.1", *options, max_restarts=max_restarts)
    wait_for(held(run, 1).exists)
    second = nodes.agent("127.0.0.2", *options, max_restarts=max_restarts)
    for agent in (first, second):
        agent.join(TIMEOUT)
    return first.exitcode, second.exitcode


def test_a_node_is_lost_and_another_one_comes(tmp_path: Path) -> None:
    """Rank zero's node is lost in the first epoch; the one that comes in the second has rank zero then."""
    options = (*FIXED, "datamodule.global_batch_size=160")
    in_ranks(2, partial(undisturbed, run=tmp_path / "whole", options=options), tmp_path)
    run = tmp_path / "run"
    options = (*options, *AUTO, f"hydra.run.dir={run}", hold(2, 0, 5), hold(1, 1, 2))
    with Rendezvous("job", "127.0.0.2", tmp_path / "agents") as nodes:
        stays, goes = nodes.agent("127.0.0.2", *options), nodes.agent("127.0.0.1", *options)
        wait_for(held(run, 2).exists)
        kill(goes.pid, int(held(run, 2).read_text()))
        wait_for(held(run, 1).exists)
        assert status(run)["status"] == "running"
        comes = nodes.agent("127.0.0.1", *options)
        for agent in (stays, comes):
            agent.join(TIMEOUT)
        assert (stays.exitcode, comes.exitcode) == (0, 0), nodes.said()
    assert lives(run) == [(0, 2, "127.0.0.1"), (3, 1, "127.0.0.2"), (STEPS + 3, 2, "127.0.0.1")]
    assert status(run)["status"] == "finished"
    assert_same_training(run, tmp_path / "whole")
    assert_none_lives(run)


def test_a_node_comes_and_two_do_not_divide_the_batch(tmp_path: Path) -> None:
    """They have 81 and 80 samples of each, and the run ends as that of one process."""
    options = (*FIXED, "datamodule.global_batch_size=161", "datamodule.drop_last=false")
    in_ranks(1, partial(undisturbed, run=tmp_path / "whole", options=options), tmp_path)
    run = tmp_path / "run"
    options = (*options, *AUTO, f"hydra.run.dir={run}", hold(1, 0, 4))
    with Rendezvous("job", "127.0.0.1", tmp_path / "agents") as nodes:
        assert joined(nodes, run, *options) == (0, 0), nodes.said()
    assert "global batch 161 (up to 81 per process)" in nodes.said()
    assert {len(line["ids"]) for line in journal(run) if (line["world_size"], line["epoch"]) == (2, 0)} >= {80, 81}
    assert status(run)["status"] == "finished"
    assert_same_training(run, tmp_path / "whole")
    assert_none_lives(run)


def test_nodes_for_which_the_batch_has_no_samples_are_refused_and_the_run_can_go_on(tmp_path: Path) -> None:
    """The same command on fewer nodes goes on with it, and is refused when it has finished."""
    options = (*FIXED, "datamodule.global_batch_size=1", "trainer.limit_train_batches=8")
    in_ranks(1, partial(undisturbed, run=tmp_path / "whole", options=options), tmp_path)
    run = tmp_path / "run"
    options = (*options, *AUTO, f"hydra.run.dir={run}", hold(1, 0, 4))
    with Rendezvous("job", "127.0.0.1", tmp_path / "agents") as nodes:
        assert joined(nodes, run, *options, max_restarts=0) == (1, 1), nodes.said()
        line = "datamodule.global_batch_size=1: is not divisible by 2, the number of processes * trainer.accumulate_grad_batches"
        assert nodes.said().count(f"{line}; use a multiple of 2, or datamodule.batch_size for each process\n") == 2
    assert status(run)["status"] == "preempted"
    assert last(run)["global_step"] == 5
    assert_none_lives(run)
    with Rendezvous("job", "127.0.0.1", tmp_path / "again") as nodes:
        alone = nodes.agent("127.0.0.1", *options)
        alone.join(TIMEOUT)
        assert alone.exitcode == 0, nodes.said()
        assert lives(run) == [(0, 1, "127.0.0.1"), (5, 1, "127.0.0.1")]
        assert_same_training(run, tmp_path / "whole", at_least=8)
        late = nodes.agent("127.0.0.1", *options, max_restarts=0)
        late.join(TIMEOUT)
        assert late.exitcode == 1
        assert f"hydra.run.dir={run}: belongs to an earlier run" in nodes.said()
    assert status(run)["status"] == "finished"
