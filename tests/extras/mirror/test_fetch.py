"""A run is brought back from its copy: whole, the newest state of it, and never over something else."""

from pathlib import Path

import pytest
from stores import run_in, save, started, step_at

from lockstep.errors import ConfigError
from lockstep.extras.mirror.mirror import Remote, bring


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    return f"file://{tmp_path}/store"


@pytest.fixture
def url(prefix: str) -> str:
    return f"{prefix}/logs/name/run"


@pytest.fixture
def run(tmp_path: Path, prefix: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with a copy."""
    monkeypatch.chdir(tmp_path)
    folder = run_in(tmp_path / "logs" / "name" / "run")
    save(folder, 2)
    started(folder, prefix).finish()
    return folder


def test_a_run_that_is_not_here_any_more_is_brought_back(run: Path, url: str) -> None:
    gone = run.rename(run.with_name("gone"))
    assert bring(f"{url}/") == run
    files = {path.relative_to(gone): path.read_bytes() for path in gone.rglob("*") if path.is_file()}
    del files[Path("checkpoints/previous.ckpt")]
    assert {path.relative_to(run): path.read_bytes() for path in run.rglob("*") if path.is_file()} == files


def test_a_directory_that_is_there_is_left_alone(
    run: Path, prefix: str, url: str, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    save(run, 3)  # not copied yet
    assert bring(url) == run
    assert (step_at(run), capsys.readouterr().err) == (3, "")
    (tmp_path / "elsewhere").mkdir()
    with monkeypatch.context() as elsewhere:
        elsewhere.chdir(tmp_path / "elsewhere")
        other = bring(url)
        save(other, 7)
        started(other, prefix).finish()
    with pytest.raises(ConfigError, match=f"^URL={url}: {run} is an older state of this run, or another run; move it first$"):
        bring(url)
    run.rename(run.with_name("older"))
    assert step_at(bring(url)) == 7


def test_a_fetch_that_is_broken_off_leaves_no_run(run: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run.rename(run.with_name("gone"))
    with monkeypatch.context() as broken:
        broken.setattr(Remote, "get", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            bring(url)
    assert not run.exists()
    bring(url)
    assert step_at(run) == 2


@pytest.mark.usefixtures("run")
def test_what_is_no_copy_is_refused(prefix: str) -> None:
    with pytest.raises(ConfigError, match=f"^URL={prefix}: has no mirror.json; give the URL"):
        bring(prefix)
