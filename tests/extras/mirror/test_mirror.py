"""A run's directory and its copy elsewhere: what is copied, when, and what becomes of it when the store fails."""

import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from stores import RELEASED, Store, copy_until_killed, hang, refuse_checkpoints, run_in, save, started, step_at, well
from waiting import wait_for

from lockstep.errors import ConfigError
from lockstep.extras.mirror.mirror import Remote, claim
from lockstep.launchers.stop_signals import STOP_SIGNALS
from lockstep.runs import record


@pytest.fixture(autouse=True)
def _store_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lockstep.extras.mirror.mirror.POLL", 0.05)
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


HYDRA = ("config.yaml", "saved.yaml", "overrides.yaml", "hydra.yaml")  # in the order in which they are written


def test_a_checkpoint_is_copied_when_it_is_there_and_all_the_rest_at_the_end(
    run: Path, prefix: str, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    (run / "lock").write_text("process 1 on here")
    copy = started(run, prefix)
    save(run, 2)
    wait_for(lambda: "last.ckpt" in Store.done)
    assert Store.done == ["mirror.json", *HYDRA, "train.log", "status.json", "mirror.json", "last.ckpt"]
    assert step_at(place) == 2
    with (run / "train.log").open("a") as log:
        log.write("epoch 2\n")
    record.write_status(run, "finished")
    copy.finish()
    assert Store.done[9:] == ["train.log", "status.json"]  # what had changed, and nothing else
    expected = contents(run)
    del expected["lock"], expected["checkpoints/previous.ckpt"]
    assert contents(place) == expected
    assert caplog.messages[-1] == f"Copied to {prefix}/run"


def test_a_checkpoint_that_is_saved_before_the_thread_looks_is_copied(
    run: Path, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was taken for one that had been there: on a busy machine the first one waited for the second."""
    begin = threading.Thread.start

    def late(thread: threading.Thread) -> None:
        save(run, 2)
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", late)
    copy = started(run, prefix)
    monkeypatch.undo()
    wait_for(lambda: "last.ckpt" in Store.done, seconds=20)
    copy.finish()


def test_a_store_of_objects_is_written_to_without_renaming(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep.extras.mirror.mirror._OBJECT_STORES", ("memory",))
    remote = Remote("memory://bucket/run")
    monkeypatch.setattr(type(remote._fs), "mv", None)
    remote.put(run / "train.log", "logs/train.log")
    remote.get(run / "again")
    assert (run / "again" / "logs" / "train.log").read_text() == "epoch 1\n"


def test_a_store_that_fails_is_said_in_one_line_and_tried_again_with_the_next_checkpoint(
    run: Path, prefix: str, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Store.fault = refuse_checkpoints
    copy = started(run, prefix)
    save(run, 2)
    wait_for(lambda: caplog.messages)
    assert caplog.messages == [f"{prefix}/run lacks checkpoints/last.ckpt (the bucket is on holiday); {run} has it"]
    assert not (place / "checkpoints" / "last.ckpt").exists()
    Store.fault = well
    save(run, 3)
    wait_for((place / "checkpoints" / "last.ckpt").is_file)
    assert step_at(place) == 3
    Store.fault = refuse_checkpoints
    save(run, 4)
    copy.finish()
    assert caplog.messages[-1] == f"{prefix}/run lacks checkpoints/last.ckpt (the bucket is on holiday); {run} has it"
    assert step_at(place) == 3  # half of the next one was there, under another name


@pytest.mark.parametrize(("wait", "is_asked"), [(0.3, False), (60.0, True)])
def test_a_store_that_hangs_keeps_nobody_longer_than_it_may(
    wait: float,
    is_asked: bool,
    run: Path,
    prefix: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lockstep.extras.mirror.mirror.WAIT", wait)
    copy = started(run, prefix)
    Store.fault = hang
    STOP_SIGNALS.listen()
    STOP_SIGNALS.leave()
    if is_asked:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    began = time.monotonic()
    copy.finish()
    assert time.monotonic() - began < 10
    assert f"(the run does not wait any longer); {run} has it" in caplog.messages[-1]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")  # it does nothing but copy, and die
def test_kill_9_in_the_middle_of_an_upload_leaves_the_checkpoint_before_it(run: Path, prefix: str, place: Path) -> None:
    process = multiprocessing.get_context("fork").Process(target=copy_until_killed, args=(run, prefix))
    process.start()
    process.join(60)
    assert process.exitcode == -9
    assert len([*(place / "checkpoints").glob(".*")]) == 1  # the half
    assert 2 <= step_at(place) < step_at(run)
    started(run, prefix).finish()  # the run goes on
    assert step_at(place) == step_at(run)


def test_the_copy_of_another_run_is_not_written_over(run: Path, prefix: str, place: Path) -> None:
    started(run, prefix).finish()
    note = (place / "mirror.json").read_text()
    (run / "attempts" / "1").mkdir(parents=True)
    (run / "mirror.json").rename(run / "attempts" / "1" / "mirror.json")
    claim(prefix, run, is_new=True)  # a job that is tried again
    (place / "mirror.json").write_text(note.replace('"starts": [', '"starts": ["another", '))
    with pytest.raises(ConfigError, match=f"^mirror={prefix}: {prefix}/run has a run, or a continuation"):
        claim(prefix, run, is_new=True)


def test_a_run_that_has_gone_on_elsewhere_is_not_gone_on_with_here(
    run: Path, prefix: str, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copy = started(run, prefix)
    note = json.loads((run / "mirror.json").read_text())
    other = note | {"starts": [*note["starts"], "elsewhere"]}
    (place / "mirror.json").write_text(json.dumps(other))
    copy.finish()
    assert "(the run was continued elsewhere)" in caplog.messages[-1]
    with pytest.raises(ConfigError, match=rf"that is not here; fetch and resume it: lockstep fetch {prefix}/run, or choose"):
        claim(prefix, run, is_new=False)
    assert json.loads((place / "mirror.json").read_text()) == other


@pytest.mark.parametrize(
    ("prefix", "said"),
    [
        ("nowhere://b", r"^mirror=nowhere://b: can't be written to \(Protocol not known: nowhere\); give the URL of a folder"),
        ("file:///proc/1", r"^mirror=file:///proc/1: can't be written to \(.*\); give the URL of a folder, s3://BUCKET"),
        ("file://{}", "^mirror=file://.* has a run, or a continuation of this one, that is not here"),  # the directory itself
    ],
)
def test_what_can_not_be_a_copy_is_refused_before_a_run_begins(prefix: str, said: str, run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        claim(prefix.format(tmp_path), run, is_new=True)


def test_a_run_that_goes_on_does_not_wait_for_a_store_that_does_not_answer(
    run: Path, prefix: str, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Store.fault = lambda _: 1 / 0  # pyright: ignore[reportAttributeAccessIssue]
    copy = started(run, prefix)
    assert caplog.messages == [f"{prefix}/run can't be written to (division by zero); it is tried again with the next checkpoint"]
    Store.fault = well
    copy.finish()
    assert (place / "mirror.json").read_text() == (run / "mirror.json").read_text()
