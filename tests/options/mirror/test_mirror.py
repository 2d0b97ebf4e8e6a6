"""A run's directory and its copy elsewhere: what is copied, when, and what becomes of it when the store fails."""

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from bitwise import differences
from commands import ROOT, python, status, train
from fsspec.implementations.local import LocalFileSystem
from saved_run import save_run
from waiting import wait_for

from lockstep.checkpointing import read_checkpoint, write_checkpoint
from lockstep.errors import ConfigError
from lockstep.launchers.stop_signals import STOP_SIGNALS
from lockstep.mirror import Mirror, Remote, check_new, fetch
from lockstep.runs import record


class Store(LocalFileSystem):
    """planted:///PATH, as file:///PATH. `fault` is called with the name of each file when half of it is there."""

    protocol = ("planted",)
    fault: ClassVar[Callable[[str], object]] = str
    done: ClassVar[list[str]] = []

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.removeprefix("planted://"))

    def put_file(self, path1: str, path2: str, *_: Any, **__: Any) -> None:
        name, content = Path(path2).name.removeprefix(".").removesuffix(".partial"), Path(path1).read_bytes()
        Path(path2).write_bytes(content[: len(content) // 2])
        Store.fault(name)
        Path(path2).write_bytes(content)
        self.done.append(name)


fsspec.register_implementation("planted", Store, clobber=True)
RELEASED = threading.Event()


def refuse_checkpoints(name: str) -> None:
    if name.endswith(".ckpt"):
        raise OSError("the bucket is on holiday")


def save(folder: Path, step: int) -> None:
    write_checkpoint({"global_step": step, "state_dict": {}}, folder / "checkpoints" / "last.ckpt", keep_as="previous.ckpt")


def step_at(folder: Path) -> int:
    """Return the step of the checkpoint, 0 where there is none."""
    path = folder / "checkpoints" / "last.ckpt"
    return read_checkpoint("last", path)["global_step"] if path.exists() else 0


@pytest.fixture(autouse=True)
def _store_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lockstep.mirror.POLL", 0.05)
    Store.done.clear()
    RELEASED.clear()
    yield
    RELEASED.set()
    Store.fault = str


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's directory as far as copying it is concerned, with a checkpoint of step 1."""
    run = save_run(tmp_path / "run", "model=mlp")
    (run / "train.log").write_text("epoch 1\n")
    record.write_status(run, "running")
    save(run, 1)
    return run


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    return f"planted://{tmp_path}/store"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


HYDRA = ("hydra.yaml", "overrides.yaml", "saved.yaml", "config.yaml")  # in the order in which they are written


def test_a_checkpoint_is_copied_when_it_is_there_and_all_the_rest_at_the_end(
    run: Path, prefix: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    (run / "lock").write_text("process 1 on here")
    copy = Mirror(prefix, run)
    save(run, 2)
    wait_for(lambda: step_at(tmp_path / "store" / "run") == 2)
    assert Store.done[:7] == [*HYDRA, "train.log", "status.json", "last.ckpt"]
    Store.done.clear()
    with (run / "train.log").open("a") as log:
        log.write("epoch 2\n")
    record.write_status(run, "finished")
    copy.finish()
    assert Store.done == ["train.log", "status.json"]  # what had changed, and nothing else
    expected = contents(run)
    del expected["lock"], expected["checkpoints/previous.ckpt"]
    assert contents(tmp_path / "store" / "run") == expected
    assert caplog.messages[-1] == f"Copied to {prefix}/run"


def test_a_store_that_fails_is_said_in_one_line_and_tried_again_with_the_next_checkpoint(
    run: Path, prefix: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Store.fault = refuse_checkpoints
    copy = Mirror(prefix, run)
    save(run, 2)
    wait_for(lambda: caplog.messages)
    assert caplog.messages == [f"{prefix}/run lacks files (the bucket is on holiday); {run} has them"]
    assert step_at(tmp_path / "store" / "run") == 0
    Store.fault = str
    save(run, 3)
    wait_for(lambda: step_at(tmp_path / "store" / "run") == 3)
    Store.fault = refuse_checkpoints  # half of the next one is there, under another name
    save(run, 4)
    copy.finish()
    assert (len(caplog.messages), step_at(tmp_path / "store" / "run")) == (2, 3)


def test_a_run_does_not_wait_for_a_store_that_hangs_when_it_is_asked_to_stop(
    run: Path, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    copy = Mirror(prefix, run)
    Store.fault = lambda _: RELEASED.wait(60)
    STOP_SIGNALS.listen()
    STOP_SIGNALS.leave()
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    began = time.monotonic()
    copy.finish()
    assert time.monotonic() - began < 10
    assert f"(the run does not wait any longer); {run} has them" in caplog.messages[-1]


def test_a_copy_is_not_written_over_and_fetched_whole_or_not_at_all(
    run: Path, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(run, 2)
    check_new(prefix, run)
    Mirror(prefix, run).finish()
    with pytest.raises(ConfigError, match=f"^mirror={prefix}: {prefix}/run has an earlier run; fetch and resume it"):
        check_new(prefix, run)
    url, again = f"{prefix}/run", tmp_path / "again"
    with monkeypatch.context() as broken:
        broken.setattr(Remote, "get", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            fetch(url, again)
    assert not again.exists()
    fetch(f"{url}/", again)
    expected = contents(run)
    del expected["checkpoints/previous.ckpt"]
    assert contents(again) == expected
    with pytest.raises(ConfigError, match=r"^RUN_DIR=.*/again: exists; move it"):
        fetch(url, again)
    with pytest.raises(ConfigError, match="has no run; use the URL"):
        fetch(prefix, tmp_path / "more")


# Three epochs of four steps.
OPTIONS = ("trainer.max_epochs=3", "datamodule.batch_size=160", "model=mlp", "model.net.dropout=0.2", "test=false", "logger=csv")
OPTIONS += ("trainer.devices=2", "guards.checkpoint.every_n_steps=1", "callbacks.pictures=null")


@pytest.mark.slow
def test_a_run_of_two_processes_goes_on_bit_for_bit_from_its_copy(tmp_path: Path) -> None:
    """A rank is killed with -9 in the middle of the second epoch."""
    for name in ("whole", "killed", "elsewhere"):
        (tmp_path / name).mkdir()
    train(*OPTIONS, "hydra.run.dir=logs/digits/run", cwd=tmp_path / "whole", code=0)
    fault = "+callbacks.fault={_target_:faults.Fault,rank:1,how:kill,epoch:1,batch:2,once:true}"
    mirror, url = f"mirror=file://{tmp_path}/store", f"file://{tmp_path}/store/logs/digits/run"
    done = train(*OPTIONS, mirror, fault, "hydra.run.dir=logs/digits/run", cwd=tmp_path / "killed", code=1)
    assert f"Copied to {url}" in done.stdout
    shutil.rmtree(tmp_path / "killed")

    python(ROOT / "scripts" / "fetch.py", url, "logs/digits/run", cwd=tmp_path / "elsewhere", code=0)
    train("resume=logs/digits/run", cwd=tmp_path / "elsewhere", code=0)
    whole, run = (
        read_checkpoint("last", tmp_path / name / "logs" / "digits" / "run" / "checkpoints" / "last.ckpt")
        for name in ("whole", "elsewhere")
    )
    assert whole["global_step"] == 12
    assert not differences(whole | {"callbacks": None}, run | {"callbacks": None})
    assert status(tmp_path / "store" / "logs" / "digits" / "run")["status"] == "finished"
