"""A run's directory and its copy elsewhere: what is copied, when, and what becomes of it when the store fails."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from stores import RELEASED, Store, hang, refuse_checkpoints, run_in, save, started, step_at, well
from waiting import wait_for

from lockstep.errors import ConfigError
from lockstep.launchers.stop_signals import STOP_SIGNALS
from lockstep.mirror import Remote, check_new, fetch
from lockstep.runs import record


@pytest.fixture(autouse=True)
def _store_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lockstep.mirror.POLL", 0.05)
    Store.done.clear()
    RELEASED.clear()
    yield
    RELEASED.set()
    Store.fault = well


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return run_in(tmp_path / "run")


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    return f"planted://{tmp_path}/store"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The copy's folder."""
    return tmp_path / "store" / "run"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


HYDRA = ("hydra.yaml", "overrides.yaml", "saved.yaml", "config.yaml")  # in the order in which they are written


def test_a_checkpoint_is_copied_when_it_is_there_and_all_the_rest_at_the_end(
    run: Path, prefix: str, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    (run / "lock").write_text("process 1 on here")
    copy = started(run, prefix)
    save(run, 2)
    wait_for(lambda: "last.ckpt" in Store.done)
    assert Store.done == [*HYDRA, "train.log", "status.json", "last.ckpt"]
    assert step_at(place) == 2
    with (run / "train.log").open("a") as log:
        log.write("epoch 2\n")
    record.write_status(run, "finished")
    copy.finish()
    assert Store.done[7:] == ["train.log", "status.json"]  # what had changed, and nothing else
    expected = contents(run)
    del expected["lock"], expected["checkpoints/previous.ckpt"]
    assert contents(place) == expected
    assert caplog.messages[-1] == f"Copied to {prefix}/run"


def test_a_store_that_fails_is_said_in_one_line_and_tried_again_with_the_next_checkpoint(
    run: Path, prefix: str, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Store.fault = refuse_checkpoints
    copy = started(run, prefix)
    save(run, 2)
    wait_for(lambda: caplog.messages)
    assert caplog.messages == [f"{prefix}/run lacks files (the bucket is on holiday); {run} has them"]
    assert not (place / "checkpoints" / "last.ckpt").exists()
    Store.fault = well
    save(run, 3)
    wait_for((place / "checkpoints" / "last.ckpt").is_file)
    assert step_at(place) == 3
    Store.fault = refuse_checkpoints
    save(run, 4)
    copy.finish()
    assert caplog.messages[-1] == f"{prefix}/run lacks files (the bucket is on holiday); {run} has them"
    assert step_at(place) == 3  # half of the next one was there, under another name


def test_a_run_does_not_wait_for_a_store_that_hangs_when_it_is_asked_to_stop(
    run: Path, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    copy = started(run, prefix)
    Store.fault = hang
    STOP_SIGNALS.listen()
    STOP_SIGNALS.leave()
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    began = time.monotonic()
    copy.finish()
    assert time.monotonic() - began < 10
    assert f"(the run does not wait any longer); {run} has them" in caplog.messages[-1]


def test_the_copy_of_an_earlier_run_is_not_written_over(run: Path, prefix: str) -> None:
    check_new(prefix, run)
    started(run, prefix).finish()
    with pytest.raises(ConfigError, match=f"^mirror={prefix}: {prefix}/run has an earlier run; fetch and resume it"):
        check_new(prefix, run)


def test_a_run_is_fetched_whole_or_not_at_all(run: Path, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(run, 2)
    started(run, prefix).finish()
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
