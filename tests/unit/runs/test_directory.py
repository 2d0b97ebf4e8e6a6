"""A run directory has one owner before anything is written into it; one that can't start leaves its reason there."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from saved_run import save_run

from lockstep.errors import ConfigError
from lockstep.runs.directory import OwnDirectory, take_new, take_sweep_directory
from lockstep.runs.locks import Lock


@pytest.fixture(autouse=True)
def _nothing_is_held() -> Iterator[None]:
    yield
    for lock in [*Lock._here.values()]:
        lock.close()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """What a run that has finished has left."""
    directory = save_run(tmp_path / "run", "seed=1")
    (directory / "status.json").write_text('{"status": "finished"}')
    (directory / "metrics.json").write_text('{"metrics": {}}')
    (directory / "train.log").write_text("epoch 1\n")
    (directory / "checkpoints").mkdir()
    (directory / "checkpoints" / "last.ckpt").write_bytes(b"weights")
    (directory / "lock").touch()
    return directory


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "lock"
    }


def test_starting_over_sets_the_earlier_run_aside(run: Path, tmp_path: Path) -> None:
    before = content(run)
    own = take_new(run, overwrite=True)
    (aside,) = tmp_path.glob("run.before-*")
    assert content(aside) == before
    assert content(run) == {}
    own.end_unstarted("no data")
    take_new(run, overwrite=False).leave()  # what could not start holds no run


def test_a_run_that_could_not_start_leaves_its_reason_and_a_refused_resumption_what_was_there(run: Path, tmp_path: Path) -> None:
    take_new(tmp_path / "new", overwrite=False).end_unstarted("no data")
    assert json.loads((tmp_path / "new" / "status.json").read_text())["reason"] == "no data"
    before = content(run)
    own = OwnDirectory(run, "resume")
    (run / "status.json").write_text("another")
    own.end_unstarted("refused")
    assert content(run) == before


def test_a_sweep_s_directory_is_no_run_s_not_to_be_set_aside_either(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    sweep.mkdir()
    (sweep / "multirun.yaml").write_text("{}")
    for overwrite in (False, True):
        with pytest.raises(ConfigError, match=rf"^hydra\.run\.dir={sweep}: belongs to a sweep; name another directory$"):
            take_new(sweep, overwrite)
    assert [path.name for path in sweep.iterdir()] == ["multirun.yaml"]


def test_a_run_s_directory_is_no_sweep_s(run: Path, tmp_path: Path) -> None:
    before = content(run)
    with pytest.raises(ConfigError, match=rf"^hydra\.sweep\.dir={run}: belongs to a run; name another directory$"):
        take_sweep_directory(run)
    assert content(run) == before
    own = take_sweep_directory(tmp_path / "sweep")
    assert Lock.is_here(tmp_path / "sweep")
    own.remove_without_jobs()
    assert not (tmp_path / "sweep").exists()
