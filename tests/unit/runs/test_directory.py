"""A directory belongs to one run or one sweep, and is locked before anything is written into it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from saved_run import save_run

from lockstep.errors import ConfigError
from lockstep.runs.directory import lock_new_run, lock_sweep
from lockstep.runs.locks import Lock
from lockstep.runs.record import COULD_NOT_START, write_status


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    """The directory of a finished run."""
    directory = save_run(tmp_path / "run", "seed=1")
    write_status(directory, "finished")
    yield directory
    for lock in [*Lock._here.values()]:
        lock.close()


def content(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_overwrite_sets_the_earlier_run_aside(run: Path) -> None:
    before = content(run)
    with pytest.raises(ConfigError, match=rf"^hydra\.run\.dir={run}: belongs to an earlier run; name another directory, resume="):
        lock_new_run(run, overwrite=False)
    lock_new_run(run, overwrite=True).close()
    (aside,) = run.parent.glob("run.before-*")
    assert (content(aside), content(run)) == (before, {})
    write_status(run, "failed", "no data", **{COULD_NOT_START: True})
    lock_new_run(run, overwrite=False).close()  # a run that could not start does not own its directory


def test_a_run_s_directory_is_no_sweep_s_and_the_reverse(run: Path) -> None:
    before, sweep = content(run), run.parent / "sweep"
    with pytest.raises(ConfigError, match=rf"^hydra\.sweep\.dir={run}: belongs to a run; name another directory$"):
        lock_sweep(run)
    sweep.mkdir()
    (sweep / "multirun.yaml").touch()
    with pytest.raises(ConfigError, match=rf"^hydra\.run\.dir={sweep}: belongs to a sweep; name another directory$"):
        lock_new_run(sweep, overwrite=True)
    assert [path.name for path in sweep.iterdir()] == ["multirun.yaml"]
    assert content(run) == before
    lock_sweep(sweep)
