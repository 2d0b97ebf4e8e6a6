"""A run directory has one owner before anything is written into it, and is what it was when the run can't start."""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from taking import begin, config, content, run_in

from lockstep.errors import ConfigError
from lockstep.runs import directory as directories
from lockstep.runs.directory import OWN_DIRECTORY, read_folder, take_sweep_directory
from lockstep.runs.identity import Identity
from lockstep.runs.locks import Lock
from lockstep.runs.resume import command_to_continue


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


def test_what_the_run_is_is_the_first_thing_written(tmp_path: Path) -> None:
    begin(config(str(tmp_path / "a" / "run"), "seed=3", "overwrite=true"), 64)
    assert Lock.is_here(tmp_path / "a" / "run")
    assert {path.name for path in (tmp_path / "a" / "run").iterdir()} == {"lock", "run.json"}
    identity = Identity.read(tmp_path / "a" / "run")
    assert identity is not None
    assert (identity.flags, identity.overrides) == (["--config-name", "train", "--config-path", "/conf"], ["seed=3"])
    assert identity.global_batch_size == 64
    OWN_DIRECTORY.give_back()
    assert list(tmp_path.iterdir()) == []


def test_a_second_command_on_a_running_directory_changes_nothing(tmp_path: Path) -> None:
    run = run_in(tmp_path / "run", "seed=1")
    with held_by_another(run):
        before = content(run)
        for more in ({}, {"overwrite": True}, {"resume": str(run)}):
            with pytest.raises(ConfigError, match=r"is being run by process \d+ on "):
                begin(config(str(run), "seed=9", **more), 64)
            OWN_DIRECTORY.give_back()
        assert content(run) == before


@pytest.mark.parametrize("left", [("run.json",), ("status.json",), ("metrics.json",), ("checkpoints",), None])
def test_a_directory_that_holds_a_run_is_refused_and_stays_as_it_is(left: tuple[str, ...] | None, tmp_path: Path) -> None:
    run = run_in(tmp_path / "run", "seed=1")
    for path in [path for path in run.iterdir() if left is not None and path.name not in left]:
        subprocess.run(["rm", "-r", path], check=True)
    before = content(run)
    with pytest.raises(ConfigError) as refused:
        begin(config(str(run), "seed=9"), 64)
    OWN_DIRECTORY.give_back()
    assert content(run) == before
    assert str(refused.value) == (
        f"hydra.run.dir={run}: belongs to an earlier run; accepted is another directory, resume={run} to go on with that run, "
        "or overwrite=true to set it aside and start over"
    )


def test_a_directory_with_something_else_in_it_is_used_and_cleared_of_what_was_not_there(tmp_path: Path) -> None:
    (tmp_path / "output.log").write_text("a sweep's job: its own output goes here\n")
    (tmp_path / "notes.txt").write_text("mine")
    begin(config(str(tmp_path)), 64)
    (tmp_path / "train.log").write_text("started\n")
    (tmp_path / ".hydra").mkdir()
    with (tmp_path / "output.log").open("a") as file:
        file.write("the refusal\n")
    OWN_DIRECTORY.give_back()
    assert {path.name for path in tmp_path.iterdir()} == {"output.log", "notes.txt"}
    assert (tmp_path / "output.log").read_text().endswith("the refusal\n")


@pytest.mark.parametrize("is_here", [True, False])
def test_what_others_write_meanwhile_into_a_directory_that_is_no_run_s_stays(
    is_here: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """hydra.run.dir=. of a run that could not start, and hydra.sweep.dir=logs of a dry run, took back what was saved meanwhile,
    and the directories of runs that had begun."""
    (folder := tmp_path / "folder").mkdir()
    if is_here:
        monkeypatch.chdir(run_in(folder))
    (folder / "code.py").write_text("old")
    (folder / "logs").mkdir()
    OWN_DIRECTORY.take(folder, "hydra.sweep.dir")
    (folder / "code.py").write_text("new")
    (folder / "logs" / "other").mkdir()
    (folder / "notes.txt").touch()
    (folder / "multirun.yaml").touch()
    OWN_DIRECTORY.give_back()
    assert (folder / "code.py").read_text() == "new"
    assert {"notes.txt", "other"} <= {path.name for path in folder.rglob("*")}
    assert not (folder / "multirun.yaml").exists()


def test_starting_over_sets_the_earlier_run_aside(tmp_path: Path) -> None:
    run = run_in(tmp_path / "run", "seed=1")
    before = content(run)
    begin(config(str(run), "seed=9", overwrite=True), 64)
    assert content(tmp_path / "run.before-1") == before
    assert set(content(run)) == {"lock", "run.json"}
    OWN_DIRECTORY.give_back()  # it could not start: all is as it was
    assert content(tmp_path) == {f"run/{name}": there for name, there in before.items()}
    for number in (1, 2):
        begin(config(str(run), "seed=9", overwrite=True), 64)
        OWN_DIRECTORY.leave()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["run", *(f"run.before-{i + 1}" for i in range(number))]


def test_a_resumption_that_is_refused_leaves_no_file_in_the_folders_of_loggers(tmp_path: Path) -> None:
    run = run_in(tmp_path / "run")
    for name in ("tensorboard", "job"):
        (run / name).mkdir()
    (run / "tensorboard" / "events.0").write_text("logged")
    (run / "job" / "lock").touch()
    before = content(tmp_path)
    OWN_DIRECTORY.take(run, "resume")
    (run / "tensorboard" / "events.1").touch()
    (run / "wandb").mkdir()
    (run / "wandb" / "run").touch()
    (run / "job" / "status.json").write_text("of another process")
    OWN_DIRECTORY.give_back()
    assert content(tmp_path).items() - before.items() == {("run/job/status.json", b"of another process")}


def test_the_working_directory_is_not_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_in(tmp_path / "run")
    (run / "src").mkdir()
    monkeypatch.chdir(run / "src")
    with pytest.raises(ConfigError, match=rf"^overwrite=true: {run} is the working directory"):
        begin(config("..", overwrite=True), 64)


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("file", "File exists"),
        ("file/run", "Not a directory"),
        ("loop/run", "Too many levels of symbolic links"),
        ("loop", "File exists"),
        ("new/" + 300 * "x", "File name too long"),
        ("/proc/lockstep", "No such file or directory"),
        ("/proc/1/lockstep/run", "No such file or directory"),
        ("\\${name}", "has ${"),  # a job ran in another directory, of the value
        ("", "''"),
        (None, "null"),
    ],
)
def test_what_can_not_be_a_directory_is_one_line_and_leaves_nothing(where: str | None, words: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "loop").symlink_to("loop")
    path = str(tmp_path / where) if where else where
    for key in ("hydra.run.dir", "hydra.sweep.dir"):
        cfg = config(path)
        cfg.hydra.sweep = {"dir": path}
        with pytest.raises(ConfigError) as refused:
            OWN_DIRECTORY.take(read_folder(cfg, key), key)
        line = str(refused.value)
        OWN_DIRECTORY.give_back()
        assert line.startswith(f"{key}=")
        assert words in line
        assert "\n" not in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "loop"]
    assert (tmp_path / "file").read_text() == "mine"


def test_a_full_disk_at_the_start_is_one_line_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match=r"^hydra.run.dir=.*: can't be made or written to \(No space left on device\)"):
        begin(config(str(tmp_path / "logs" / "run")), 64)
    OWN_DIRECTORY.give_back()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("left", ["manifest.json", "multirun.yaml", "lr=0.1_0123456789ab/job.json"])
def test_a_sweep_s_directory_is_no_run_s_not_to_be_set_aside_either(left: str, tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    (sweep / left).parent.mkdir(parents=True)
    (sweep / left).write_text("{}")
    for overwrite in (False, True):
        with pytest.raises(ConfigError, match=rf"^hydra\.run\.dir={sweep}: belongs to a sweep; accepted is another directory$"):
            begin(config(str(sweep), overwrite=overwrite), 64)
    assert [path.name for path in sweep.iterdir()] == [left.partition("/")[0]]
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


@pytest.mark.parametrize("name", ["multirun.yaml", "lr=0.1_0123456789ab/output.log"])
def test_a_pipe_in_the_place_of_a_sweep_s_file_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    os.mkfifo(tmp_path / name)
    cfg = config(str(tmp_path / "run"))
    cfg.hydra.sweep = {"dir": str(tmp_path)}
    with pytest.raises(ConfigError, match=rf"^hydra.sweep.dir={tmp_path}: {name} there is not a file; accepted is where it is"):
        take_sweep_directory(cfg)


@pytest.mark.parametrize(
    "name",
    ["run.json", "status.json", "metrics.json", "train.log", "train.rank1.log", "checkpoints/last.ckpt", ".hydra/config.yaml"],
)
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_has_the_name_of_a_run_s_file_and_is_none_is_named(make: Any, name: str, tmp_path: Path) -> None:
    """To read a pipe would take for ever, and to replace a folder fails at the first save."""
    path = tmp_path / "run" / name
    path.parent.mkdir(parents=True)
    make(path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match=rf"^hydra.run.dir={tmp_path}/run: {name} there is not a file; accepted is where it is"):
        begin(config(str(tmp_path / "run")), 64)
    with pytest.raises(ConfigError, match=rf"^resume={tmp_path}/run: {name} there is not a file; accepted is where it is"):
        command_to_continue([f"resume={tmp_path}/run"])
    assert sorted(tmp_path.rglob("*")) == before
