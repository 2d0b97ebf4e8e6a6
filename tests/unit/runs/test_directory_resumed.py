"""Which start goes on with the run that a directory holds, in every rank alike."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from taking import begin, config, content, run_in

from lockstep.errors import ConfigError
from lockstep.launchers.cluster import Cluster
from lockstep.launchers.environment import RESTARTS, Rank
from lockstep.runs import directory as directories
from lockstep.runs.directory import OWN_DIRECTORY
from lockstep.runs.identity import Identity
from lockstep.runs.locks import Lock


@pytest.fixture(autouse=True)
def _nothing_is_taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(directories, "this_rank", lambda: None)
    yield
    OWN_DIRECTORY.leave()


def test_ranks_that_are_started_again_go_on_with_their_own_run_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable of a requeued job is seen by every command inside it."""
    run = run_in(tmp_path / "run", "seed=1")
    monkeypatch.setenv(RESTARTS, "1")
    before = Identity.read(run)
    with pytest.raises(ConfigError, match="belongs to an earlier run"):
        begin(config(str(run), "seed=9"), 64)
    OWN_DIRECTORY.give_back()
    begin(config(str(run), "seed=1", overwrite=True), 64)
    assert Identity.read(run) == before


@pytest.mark.parametrize("job", ["77", "78"])
def test_a_status_alone_is_no_run_of_the_job_that_has_left_it(job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank has left it that was asked to stop while rank zero had not begun; the job is requeued and begins anew."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "status.json").write_text(json.dumps({"status": "preempted", "job": "77"}))
    monkeypatch.setenv(RESTARTS, "1")
    monkeypatch.setattr(Cluster, "has_written", lambda _, status: status["job"] == job)
    if job == "77":
        begin(config(str(tmp_path / "run")), 64)
        return
    with pytest.raises(ConfigError, match="belongs to an earlier run"):
        begin(config(str(tmp_path / "run")), 64)


def test_nodes_that_meet_again_go_on_with_a_run_that_is_not_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has come later counts no restarts, and each rank finds the same for itself."""
    run = run_in(tmp_path / "run", "seed=1")
    monkeypatch.setattr(directories, "can_resume", lambda: True)
    monkeypatch.setattr(Cluster, "rendezvous", lambda _: "job7")
    before, same, other = Identity.read(run), config(str(run), "seed=1", given=False), config(str(run), "seed=9", given=False)
    words = "belongs to an earlier run; accepted is another directory, or another torchrun --rdzv-id than job7"
    with pytest.raises(ConfigError, match=words):
        begin(same, 64)
    OWN_DIRECTORY.give_back()
    (run / "status.json").write_text('{"status": "failed"}')
    with pytest.raises(ConfigError, match=words):
        begin(other, 64)
    OWN_DIRECTORY.give_back()
    assert begin(same, 64)
    assert Identity.read(run) == before
    monkeypatch.setattr(directories, "this_rank", lambda: Rank("torchrun", 1, 0, 2, 2))
    assert begin(same, 64)
    assert not begin(other, 64)


def test_a_resumption_keeps_the_id_and_notes_what_is_new_and_takes_it_back(tmp_path: Path) -> None:
    run = run_in(tmp_path / "run", "seed=1")
    first, before = Identity.read(run), content(run)
    begin(config(str(run), "seed=1", "trainer.max_epochs=9", f"resume={run}", resume=str(run)), 48)
    now = Identity.read(run)
    assert first is not None
    assert now is not None
    assert (now.id, now.overrides, now.global_batch_size) == (first.id, ["seed=1", "trainer.max_epochs=9"], 48)
    (run / "metrics.json").unlink()
    (run / "status.json").write_text("{}")
    with (run / "train.log").open("a") as file:
        file.write("refused\n")
    (run / "train.rank1.log").touch()
    OWN_DIRECTORY.give_back()
    assert content(run) == before


def test_resume_in_a_config_file_is_refused(tmp_path: Path) -> None:
    run = run_in(tmp_path / "run")
    with pytest.raises(ConfigError, match=rf"^resume={run}: accepted on the command line alone"):
        begin(config(str(tmp_path / "new"), resume=str(run)), 64)
    OWN_DIRECTORY.give_back()
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("rank", [Rank("parent", 0, 0, 2, 1), Rank("torchrun", 1, 1, 2, 1)])
def test_a_rank_that_another_process_answers_for_takes_nothing(
    rank: Rank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slower rank finds what rank zero of its own run has written already."""
    run = run_in(tmp_path / "run")
    monkeypatch.setattr(directories, "this_rank", lambda: rank)
    begin(config(str(run), given=False), 64)
    assert not Lock.is_here(run)
