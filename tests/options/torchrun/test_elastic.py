"""Nodes that come and go while a run lasts, under torchrun's agents: it goes on within the epoch and ends as if none had."""

from functools import partial
from pathlib import Path

import pytest
from agents import Rendezvous, kill, rendezvous
from commands import TIMEOUT
from in_process import last
from ranks import in_ranks
from restarted_runs import (
    FIXED,
    JOURNAL,
    assert_none_lives,
    assert_same_training,
    held,
    hold,
    journal,
    lives,
    status,
    undisturbed,
)
from waiting import wait_for

pytestmark = pytest.mark.slow

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
    with rendezvous("job", "127.0.0.2", tmp_path / "agents") as nodes:
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
    with rendezvous("job", "127.0.0.1", tmp_path / "agents") as nodes:
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
    with rendezvous("job", "127.0.0.1", tmp_path / "agents") as nodes:
        assert joined(nodes, run, *options, max_restarts=0) == (1, 1), nodes.said()
        line = "datamodule.global_batch_size=1: does not divide by world size * trainer.accumulate_grad_batches = 2; "
        assert nodes.said().count(line + "use a multiple of 2, or datamodule.batch_size for each process\n") == 2
    assert status(run)["status"] == "preempted"
    assert last(run)["global_step"] == 5
    assert_none_lives(run)
    with rendezvous("job", "127.0.0.1", tmp_path / "again") as nodes:
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
