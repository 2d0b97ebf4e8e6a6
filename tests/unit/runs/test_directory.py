"""A directory is one run's or one sweep's, and locked before anything is written into it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from saved_run import save_run

from lockstep.errors import ConfigError
from lockstep.runs.directory import lock_new_run, lock_sweep
from lockstep.runs.locks import Lock
from lockstep.runs.record import COULD_NOT_START, write_status


@pytest.fixture(autouse=True)
def _nothing_is_held() -> Iterator[None]:
    yield
    for lock in [*Lock._here.values()]:
        lock.close()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """What a run that has finished has left."""
    directory = save_run(tmp_path / "run", "seed=1")
    write_status(directory, "finished")
    (directory / "checkpoints").mkdir()
    (directory / "checkpoints" / "last.ckpt").write_bytes(b"weights")
    return directory


def content(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_starting_over_sets_the_earlier_run_aside(run: Path, tmp_path: Path) -> None:
    before = content(run)
    with pytest.raises(ConfigError, match=rf"^hydra\.run\.dir={run}: belongs to an earlier run; name another directory, resume="):
        lock_new_run(run, overwrite=False)
    lock_new_run(run, overwrite=True).close()
    (aside,) = tmp_path.glob("run.before-*")
    assert (content(aside), content(run)) == (before, {})
    write_status(run, "failed", "no data", **{COULD_NOT_START: True})
    lock_new_run(run, overwrite=False).close()  # what could not start holds no run


def test_a_directory_of_a_run_is_no_sweep_s_and_the_reverse(run: Path, tmp_path: Path) -> None:
    before = content(run)
    with pytest.raises(ConfigError, match=rf"^hydra\.sweep\.dir={run}: belongs to a run; name another directory$"):
        lock_sweep(run)
    (sweep := tmp_path / "sweep").mkdir()
    (sweep / "multirun.yaml").write_text("{}")
    with pytest.raises(ConfigError, match=rf"^hydra\.run\.dir={sweep}: belongs to a sweep; name another directory$"):
        lock_new_run(sweep, overwrite=True)
    assert [path.name for path in sweep.iterdir()] == ["multirun.yaml"]
    lock_sweep(sweep)
    assert (content(run), content(sweep)) == (before, {"multirun.yaml": b"{}"})
