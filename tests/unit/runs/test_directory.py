"""A run directory has one owner before anything is written into it; one that can't start leaves its reason there."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from taking import begin, config, content, run_in

from lockstep.errors import ConfigError
from lockstep.runs import directory as directories
from lockstep.runs.directory import OWN_DIRECTORY, read_folder, take_sweep_directory
from lockstep.runs.locks import Lock


@pytest.fixture(autouse=True)
def _nothing_is_taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(directories, "this_rank", lambda: None)
    yield
    OWN_DIRECTORY.leave()


@contextmanager
def held_by_another(folder: Path) -> Iterator[None]:
    """By a process that runs this run."""
    script = "import sys; from pathlib import Path; from lockstep.runs.locks import Lock; Lock(Path(sys.argv[1]), 'k'); print()"
    command = [sys.executable, "-uc", f"{script}; input()", str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield
        process.kill()


def test_a_second_command_on_a_running_directory_changes_nothing(tmp_path: Path) -> None:
    run = run_in(tmp_path / "run", "seed=1")
    with held_by_another(run):
        before = content(run)
        for more in ({}, {"overwrite": True}, {"resume": str(run)}):
            with pytest.raises(ConfigError, match=r"is being run by process \d+ on "):
                begin(config(str(run), "seed=9", **more), 64)
            OWN_DIRECTORY.end_unstarted("refused")
        assert content(run) == before


@pytest.mark.parametrize("left", [("checkpoints",), None])
def test_a_directory_that_holds_a_run_is_refused_and_stays_as_it_is(left: tuple[str, ...] | None, tmp_path: Path) -> None:
    run = run_in(tmp_path / "run", "seed=1")
    for path in [path for path in run.iterdir() if left is not None and path.name not in left]:
        subprocess.run(["rm", "-r", path], check=True)
    before = content(run)
    with pytest.raises(ConfigError) as refused:
        begin(config(str(run), "seed=9"), 64)
    OWN_DIRECTORY.end_unstarted("refused")
    assert content(run) == before
    assert str(refused.value) == (
        f"hydra.run.dir={run}: belongs to an earlier run; accepted is another directory, resume={run} to go on with that run, "
        "or overwrite=true to set it aside and start over"
    )


def test_starting_over_sets_the_earlier_run_aside(tmp_path: Path) -> None:
    run = run_in(tmp_path / "run", "seed=1")
    before = content(run)
    begin(config(str(run), "seed=9", overwrite=True), 64)
    assert content(tmp_path / "run.before-1") == before
    assert set(content(run)) == {"lock", "run.json"}
    OWN_DIRECTORY.end_unstarted("no data")
    assert content(tmp_path / "run.before-1") == before
    begin(config(str(run), "seed=8"), 64)  # what could not start holds no run
    OWN_DIRECTORY.leave()
    (run / "status.json").write_text('{"status": "failed"}')
    for number in (2, 3):
        begin(config(str(run), "seed=9", overwrite=True), 64)
        OWN_DIRECTORY.leave()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["run", *(f"run.before-{i + 1}" for i in range(number))]


def test_what_was_trained_has_begun_in_a_rank_without_the_directory_too() -> None:
    """Rank one of torchrun, which is asked to stop when rank zero has failed, looks into status.json for that."""
    OWN_DIRECTORY.keep()
    assert (OWN_DIRECTORY.path, OWN_DIRECTORY.has_begun, OWN_DIRECTORY.has_stepped) == (None, True, True)


@pytest.mark.parametrize(
    ("where", "words"),
    [("file", "File exists"), ("new/" + 300 * "x", "File name too long"), (None, "null")],
)
def test_what_can_not_be_a_directory_is_one_line(where: str | None, words: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    path = str(tmp_path / where) if where else where
    for key in ("hydra.run.dir", "hydra.sweep.dir"):
        cfg = config(path)
        cfg.hydra.sweep = {"dir": path}
        with pytest.raises(ConfigError) as refused:
            OWN_DIRECTORY.take(read_folder(cfg, key), key)
        line = str(refused.value)
        OWN_DIRECTORY.end_unstarted("refused")
        assert line.startswith(f"{key}=")
        assert words in line
        assert "\n" not in line
    assert (tmp_path / "file").read_text() == "mine"


def test_a_sweep_s_directory_is_no_run_s_not_to_be_set_aside_either(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    sweep.mkdir()
    (sweep / "manifest.json").write_text("{}")
    for overwrite in (False, True):
        with pytest.raises(ConfigError, match=rf"^hydra\.run\.dir={sweep}: belongs to a sweep; accepted is another directory$"):
            begin(config(str(sweep), overwrite=overwrite), 64)
    assert [path.name for path in sweep.iterdir()] == ["manifest.json"]
    begin(config(str(sweep / "lr=0.1_0123456789ab")), 64)  # as a job of it does


def test_a_run_s_directory_is_no_sweep_s(tmp_path: Path) -> None:
    run = run_in(tmp_path / "run")
    before = sorted(path.name for path in run.iterdir())
    cfg = config(str(run))
    cfg.hydra.sweep = {"dir": str(run)}
    with pytest.raises(ConfigError, match=rf"^hydra\.sweep\.dir={run}: belongs to a run; accepted is another directory$"):
        take_sweep_directory(cfg)
    assert sorted(path.name for path in run.iterdir()) == before
    cfg.hydra.sweep.dir = str(tmp_path / "sweep")
    take_sweep_directory(cfg)
    assert Lock.is_here(tmp_path / "sweep")
