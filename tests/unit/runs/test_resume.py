"""`resume=RUN_DIR`: Hydra composes the saved config, with what is new."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from saved_run import save_run

from lockstep.config.overrides import quote
from lockstep.errors import ConfigError
from lockstep.runs import record, resume
from lockstep.runs.resume import command_to_continue
from lockstep.runs.saved import read_config


@pytest.fixture(autouse=True)
def _nobody_has_started_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resume, "this_rank", lambda: None)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return run_in(tmp_path / "it's, a=run")


def run_in(folder: Path, status: Any = "preempted") -> Path:
    save_run(folder, "model=cnn", "trainer.max_epochs=5", global_batch_size=16)
    record.write_status(folder, status)
    return folder


def new_overrides(run: Path, *arguments: str) -> list[str]:
    """Less the flags and the directory, which are checked here."""
    command = command_to_continue([f"resume={quote(str(run))}", *arguments])
    assert command is not None
    assert command[:4] == ["--config-path", str(run / ".hydra"), "--config-name", "saved"]
    assert command[-1] == f"hydra.run.dir={quote(str(run))}"
    return command[4:-1]


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


@pytest.mark.parametrize(
    "new",
    [
        [],
        ["trainer.max_epochs=20", "test=false"],
        ["seed=2", "model.optimizer.lr=0.1"],  # which the run has already
        ["+seedling=3"],  # Hydra knows whether there is such a key
        ["trainer={max_epochs: 7}"],
        ["trainer.devices=1"],
        ["datamodule.batch_size=5"],  # which comes before the global one
    ],
)
def test_a_run_goes_on_with_its_saved_config_and_what_is_new(new: list[str], run: Path) -> None:
    assert new_overrides(run, "model=cnn", *new) == new
    assert read_config(run).datamodule == {"batch_size": None, "global_batch_size": 16}


@pytest.mark.parametrize(
    ("override", "line"),
    [
        *((item, f"{item}: comes from the checkpoint; begin a new run by fork=") for item in ("model/optimizer=sgd", "seed=3")),
        ("model={optimizer: {lr: 0.2}}", "model.optimizer.lr=0.2: comes from the checkpoint"),
        ("trainer=ddp", "trainer=ddp: a group is chosen once, when a run begins; give its values (trainer.devices=auto), or"),
        ("~logger", "logger=null: a group is chosen once"),
        ("fork=other.ckpt", "fork=other.ckpt: a run goes on from its own checkpoint"),
        ("-m", "resume={run}: is for one run; give a sweep its own command again"),
    ],
)
def test_what_a_resumption_can_not_change_is_refused(override: str, line: str, run: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        new_overrides(run, override)
    assert str(refused.value).startswith(line.format(run=run))


def test_a_finished_run_has_nothing_to_continue_but_with_something_new(run: Path) -> None:
    record.write_status(run, "finished")
    assert new_overrides(run) == []  # its record is lost
    (run / "metrics.json").write_text('{"metrics": {}}')
    assert command_to_continue([f"resume={quote(str(run))}", "trainer.max_epochs=5"]) is None  # it has that end: its record stays
    assert new_overrides(run, "trainer.max_epochs=20") == ["trainer.max_epochs=20"]


def test_a_run_that_is_running_is_refused(tmp_path: Path) -> None:
    run = run_in(tmp_path / "run", "running")
    with held_by_another(run) as pid, pytest.raises(ConfigError, match=rf"^resume={run}: is being run by process {pid} on "):
        command_to_continue([f"resume={run}"])
    assert command_to_continue([f"resume={run}"]) is not None  # it was killed


def test_a_damaged_config_is_one_line(run: Path) -> None:
    config = run / ".hydra" / "config.yaml"
    config.write_bytes(config.read_bytes()[:100])
    line = r"^resume=.*: .hydra/config.yaml is damaged \(.*\); begin a new run by fork="
    with pytest.raises(ConfigError, match=line) as refused:
        new_overrides(run)
    assert "\n" not in str(refused.value)
