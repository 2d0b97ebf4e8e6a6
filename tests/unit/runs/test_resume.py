"""`resume=RUN_DIR` spelled out: what the run was started with, its directory, then what is new."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lockstep.config.overrides import quote
from lockstep.errors import ConfigError
from lockstep.runs import record, resume
from lockstep.runs.composition import CONF
from lockstep.runs.identity import Identity
from lockstep.runs.resume import command_to_continue

FIRST = ["model=cnn", "trainer.devices=2", "+trainer.profiler=simple", "trainer.max_epochs=5"]


@pytest.fixture(autouse=True)
def _nobody_has_started_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resume, "this_rank", lambda: None)


def run_in(folder: Path, status: Any = "preempted", overrides: list[str] = FIRST, size: int | None = None) -> Path:
    """A run's directory as far as resuming is concerned."""
    folder.mkdir(parents=True)
    Identity("its id", ["--config-name", "train", "--config-path", str(CONF)], overrides, size).write(folder)
    record.write_status(folder, status)
    return folder


def read_overrides(command: list[str] | None) -> list[str]:
    """Less the flags and the directory, which are checked here."""
    assert command is not None
    assert command[:4] == ["--config-name", "train", "--config-path", str(CONF)]
    *overrides, directory, run = command[4:]
    assert directory.partition("=")[0] == "hydra.run.dir"
    assert run.partition("=")[2] == directory.partition("=")[2]
    return overrides


@contextmanager
def held_by_another(folder: Path) -> Iterator[int]:
    """The pid of a process that runs this run."""
    script = "import sys; from pathlib import Path; from lockstep.runs.locks import Lock; "
    script += "Lock(Path(sys.argv[1]), 'k'); print(flush=True); "
    command = [sys.executable, "-c", script + "input()", str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process.pid
        finally:
            process.kill()


@pytest.mark.parametrize("arguments", [["seed=1"], ["-m", "seed=1,2"]])
def test_other_command_lines_stay_as_they_are(arguments: list[str]) -> None:
    assert command_to_continue(arguments) == arguments


@pytest.mark.parametrize("spelled", [str, quote])
def test_a_run_goes_on_as_it_was_started_in_its_directory(spelled: Callable[[str], str], tmp_path: Path) -> None:
    run = run_in(tmp_path / "it's, a=run")
    command = command_to_continue([f"resume={spelled(str(run))}"])
    assert read_overrides(command) == FIRST
    assert command is not None
    assert command[-2:] == [f"hydra.run.dir={quote(str(run))}", f"resume={quote(str(run))}"]


def test_what_is_new_replaces_what_was(tmp_path: Path) -> None:
    run = run_in(tmp_path / "run")
    new = ["trainer.max_epochs=20", "test=false"]
    expected = ["model=cnn", "trainer.devices=2", "+trainer.profiler=simple", "trainer.max_epochs=20"]
    assert read_overrides(command_to_continue([new[0], f"resume={run}", new[1]])) == [*expected, "test=false"]
    added = read_overrides(command_to_continue([f"resume={run}", "trainer.profiler=advanced"]))
    assert added[2] == "++trainer.profiler=advanced"  # it is not there without the + of the first start


@pytest.mark.parametrize("override", ["model.optimizer.lr=0.2", "model/optimizer=sgd", "seed=3"])
def test_what_the_checkpoint_holds_can_not_be_changed(override: str, tmp_path: Path) -> None:
    run = run_in(tmp_path / "run", overrides=[*FIRST, "seed=2"])
    with pytest.raises(ConfigError, match=rf"^{override}: comes from the checkpoint on resumption; accepted is a new run"):
        command_to_continue([f"resume={run}", override])
    assert command_to_continue([f"resume={run}", "seed=2"]) is not None  # as it is


def test_other_weights_are_another_run(tmp_path: Path) -> None:
    run = run_in(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"^init_from=other.ckpt: a run is resumed from its own checkpoint"):
        command_to_continue([f"resume={run}", "init_from=other.ckpt"])


@pytest.mark.parametrize(
    ("new", "added"),
    [(["trainer.devices=1"], ["datamodule.global_batch_size=48"]), (["trainer.devices=1", "datamodule.batch_size=5"], [])],
)
def test_on_another_world_the_global_batch_stays(new: list[str], added: list[str], tmp_path: Path) -> None:
    run = run_in(tmp_path / "run", size=48)
    overrides = read_overrides(command_to_continue([f"resume={run}", *new]))
    assert [item for item in overrides if "global_batch_size" in item] == added


def test_a_finished_run_has_nothing_to_continue_but_with_something_new(tmp_path: Path) -> None:
    run = run_in(tmp_path / "run", "finished")
    assert command_to_continue([f"resume={run}"]) is not None  # its record is lost
    (run / "metrics.json").write_text('{"metrics": {}}')
    assert command_to_continue([f"resume={run}"]) is None
    assert command_to_continue([f"resume={run}", "trainer.max_epochs=5"]) is None  # it has that end: its record stays
    assert "trainer.max_epochs=20" in read_overrides(command_to_continue([f"resume={run}", "trainer.max_epochs=20"]))


def test_a_run_that_is_running_is_refused(tmp_path: Path) -> None:
    run = run_in(tmp_path / "run", "running")
    with held_by_another(run) as pid, pytest.raises(ConfigError, match=rf"^resume={run}: is being run by process {pid} on "):
        command_to_continue([f"resume={run}"])
    assert command_to_continue([f"resume={run}"]) is not None  # it was killed


@pytest.mark.parametrize("wanted", ["nowhere", "."])
def test_what_is_no_run_is_refused(wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=rf"^resume={wanted}: has no run.json; accepted is the directory"):
        command_to_continue([f"resume={wanted}"])


def test_a_sweep_is_refused(tmp_path: Path) -> None:
    run = run_in(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"is for one run; a sweep goes on by its own command"):
        command_to_continue(["-m", f"resume={run}"])
