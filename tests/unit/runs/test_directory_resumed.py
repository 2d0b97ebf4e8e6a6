"""Which start goes on with the run that a directory holds, in every rank alike."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from taking import begin, config, run_in

from lockstep.errors import ConfigError
from lockstep.launchers.cluster import Cluster
from lockstep.launchers.environment import RESTARTS, Rank
from lockstep.runs import directory as directories
from lockstep.runs.directory import OWN_DIRECTORY
from lockstep.runs.identity import Identity


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
    OWN_DIRECTORY.end_unstarted("refused")
    begin(config(str(run), "seed=1", overwrite=True), 64)
    assert Identity.read(run) == before


def test_nodes_that_meet_again_go_on_with_a_run_that_is_not_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has come later counts no restarts, and each rank finds the same for itself."""
    run = run_in(tmp_path / "run", "seed=1")
    monkeypatch.setattr(directories, "can_resume", lambda: True)
    monkeypatch.setattr(Cluster, "rendezvous", lambda _: "job7")
    before, same, other = Identity.read(run), config(str(run), "seed=1", given=False), config(str(run), "seed=9", given=False)
    words = "belongs to an earlier run; accepted is another directory, or another torchrun --rdzv-id than job7"
    with pytest.raises(ConfigError, match=words):
        begin(same, 64)
    OWN_DIRECTORY.end_unstarted("refused")
    (run / "status.json").write_text('{"status": "failed"}')
    with pytest.raises(ConfigError, match=words):
        begin(other, 64)
    OWN_DIRECTORY.end_unstarted("refused")
    assert begin(same, 64)
    assert Identity.read(run) == before
    monkeypatch.setattr(directories, "this_rank", lambda: Rank("torchrun", 1, 0, 2, 2))
    assert begin(same, 64)
    assert not begin(other, 64)


def test_resume_in_a_config_file_is_refused(tmp_path: Path) -> None:
    run = run_in(tmp_path / "run")
    with pytest.raises(ConfigError, match=rf"^resume={run}: accepted on the command line alone"):
        begin(config(str(tmp_path / "new"), resume=str(run)), 64)
    OWN_DIRECTORY.end_unstarted("refused")
    assert not (tmp_path / "new").exists()
