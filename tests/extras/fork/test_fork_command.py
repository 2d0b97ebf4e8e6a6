"""`fork=RUN_DIR[@STEP]` spelled out: what the other run was started with, what is new, and the checkpoint with its step."""

from pathlib import Path

import pytest
import torch

from lockstep.config.overrides import quote
from lockstep.errors import ConfigError
from lockstep.extras.fork.command import describe_origin, find_checkpoint
from lockstep.launchers.command_line import CommandLine
from lockstep.runs.composition import CONF
from lockstep.runs.events import command_to_begin
from lockstep.runs.identity import Identity
from lockstep.runs.resume import command_to_continue

FIRST = ["model=mlp", "trainer.devices=2", "model.optimizer.lr=0.1"]
FLAGS = ["--config-name", "train", "--config-path", str(CONF)]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's directory with checkpoints of three steps."""
    folder = tmp_path / "it's, a=run"
    (folder / "checkpoints").mkdir(parents=True)
    Identity("its id", FLAGS, FIRST, 48).write(folder)
    for name, step in (("last", 12), ("previous", 8), ("epoch=0", 4)):
        save(folder / "checkpoints" / f"{name}.ckpt", step)
    return folder


def save(path: Path, step: int) -> None:
    torch.save({"state_dict": {}, "global_step": step, "epoch": 2, "callbacks": {"LastCheckpoint": {"run_id": "saved"}}}, path)


def spelled_out(run: Path, wanted: str, *new: str) -> list[str]:
    command = command_to_begin([*new, f"fork={quote(wanted)}"])
    assert command[:4] == FLAGS
    assert command[-1] == f"fork={quote(f'{run}/checkpoints/last.ckpt@12')}"
    return command[4:-1]


def test_it_begins_as_the_other_run_with_what_is_new(run: Path) -> None:
    assert spelled_out(run, str(run)) == FIRST
    new = ["-m", "model.optimizer.lr=0.1,0.2", "hydra.sweep.dir=sweep"]
    command = command_to_begin([*new, f"fork={quote(str(run))}"])
    assert command[4:9] == [new[0], *FIRST[:2], *new[1:]]
    on_one = ["model=mlp", "trainer.devices=1", "model.optimizer.lr=0.1", "datamodule.global_batch_size=48"]
    assert spelled_out(run, str(run), "trainer.devices=1") == on_one


@pytest.mark.parametrize(
    ("wanted", "name", "step"),
    [*(("@8", "previous", 8), ("@4", "epoch=0", 4), ("/checkpoints/previous.ckpt", "previous", 8))],
)
def test_a_step_is_looked_for_whatever_the_file_is_called_by_now(wanted: str, name: str, step: int, run: Path) -> None:
    assert find_checkpoint(f"{run}{wanted}") == (run / "checkpoints" / f"{name}.ckpt", step, 2)


def test_the_steps_that_there_are_are_listed(run: Path) -> None:
    (run / "checkpoints" / "previous.ckpt").write_bytes(b"torn")
    with pytest.raises(ConfigError) as refused:
        command_to_begin([f"fork={quote(f'{run}@9')}"])
    assert str(refused.value) == f"fork={run}@9: has no checkpoint of step 9; accepted are 4 (epoch=0.ckpt), 12 (last.ckpt)"


def test_what_is_no_run_and_no_checkpoint_is_refused(run: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    lines = {
        tmp_path / "none": "no such file: ",
        tmp_path / "empty": "has no run.json; accepted is the directory of a run, or a checkpoint, ",
        run / "run.json": "not a readable checkpoint (",
    }
    for path, line in lines.items():
        with pytest.raises(ConfigError) as refused:
            command_to_begin([f"fork={quote(str(path))}"])
        assert str(refused.value).startswith(f"fork={path}: {line}")
    with pytest.raises(ConfigError, match=r"^fork=s3://bucket/run: is read on this machine alone"):
        command_to_begin(["fork=s3://bucket/run"])
    with pytest.raises(ConfigError, match=r"^ckpt_path=a.ckpt: .* accepted is fork=a.ckpt$"):
        command_to_begin(["ckpt_path=a.ckpt"])
    assert command_to_begin(["seed=1", "fork=null"]) == ["seed=1", "fork=null"]


def test_what_was_forked_is_recorded(run: Path, tmp_path: Path) -> None:
    checkpoint = f"{run}/checkpoints/last.ckpt@12"
    command = CommandLine(overrides=(*FIRST[:2], "model.optimizer.lr=0.2", "seed=3", f"fork={checkpoint}"))
    origin = {"run": "its id", "step": 12, "checkpoint": checkpoint, "changed": ["model.optimizer.lr", "seed"]}
    assert describe_origin(checkpoint, command) == origin
    assert describe_origin(checkpoint, CommandLine(overrides=(*FIRST, "fork=x")))["changed"] == []
    save(tmp_path / "alone.ckpt", 5)
    alone = f"{tmp_path}/alone.ckpt"
    assert command_to_begin(["seed=1", f"fork={alone}"]) == ["seed=1", f"fork={quote(f'{alone}@5')}"]
    assert describe_origin(f"{alone}@5", CommandLine(overrides=("seed=1",))) == {
        "run": "saved", "step": 5, "checkpoint": f"{alone}@5", "changed": ["seed"],
    }  # fmt: skip


def test_a_fork_is_continued_and_says_of_what(run: Path) -> None:
    origin = {"run": "another", "step": 7, "checkpoint": "/a/checkpoints/last.ckpt@7", "changed": ["seed"]}
    Identity("its id", FLAGS, FIRST, None, origin).write(run)
    for said in ([], ["fork=/a/checkpoints/last.ckpt@7"]):  # as a sweep does
        command = command_to_continue([f"resume={quote(str(run))}", *said])
        assert command is not None
        where = [f"{key}={quote(str(run))}" for key in ("hydra.run.dir", "resume")]
        assert command[4:] == [*FIRST, *where, "fork='/a/checkpoints/last.ckpt@7'"]
        assert command_to_begin(command) == command
