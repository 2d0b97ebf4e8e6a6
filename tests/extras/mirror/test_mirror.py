"""A run's directory and its copy elsewhere: what is copied, when, and what becomes of it when the store fails."""

import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.registry import _registry
from stores import RELEASED, Store, copy_until_killed, hang, refuse_checkpoints, run_in, save, well
from waiting import wait_for

from lockstep.checkpointing import read_checkpoint
from lockstep.errors import ConfigError
from lockstep.extras.mirror.mirror import Mirror, check_mirror, copy_url
from lockstep.extras.mirror.remote import Remote
from lockstep.launchers.stop_signals import STOP_SIGNALS
from lockstep.runs import record


@pytest.fixture(autouse=True)
def _store_as_before() -> Iterator[None]:
    Store.done.clear()
    RELEASED.clear()
    yield
    RELEASED.set()
    Store.fault = well


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return run_in(tmp_path / "run")


def step_at(place: Path) -> int:
    return read_checkpoint("last", place / "checkpoints" / "last.ckpt")["global_step"]


def note(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "mirror.json").read_text())


def save_and_copy(copy: Mirror, run: Path, step: int) -> None:
    save(run, step)
    copy.copy_soon()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


HYDRA = ("hydra.yaml", "overrides.yaml", "saved.yaml")


def test_a_checkpoint_is_copied_when_it_is_there_and_all_the_rest_at_the_end(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    (run / "lock").write_text("process 1 on here")
    place, url = tmp_path / "store" / "run", f"planted://{tmp_path}/store/run"
    copy = Mirror(url, run, wait=20)
    copy.start()
    save_and_copy(copy, run, 2)
    wait_for(lambda: Store.done[-1:] == ["status.json"])
    assert Store.done == ["mirror.json", "config.yaml", *HYDRA, "last.ckpt", "train.log", "status.json"]
    assert step_at(place) == 2
    with (run / "train.log").open("a") as log:
        log.write("epoch 2\n")
    record.write_status(run, "finished")
    copy.finish()
    assert Store.done[8:] == ["train.log", "status.json"]  # what had changed, and nothing else
    assert contents(place).keys() == contents(run).keys() - {"lock", "checkpoints/previous.ckpt"}
    assert {name for name, content in contents(place).items() if content != contents(run)[name]} == {"mirror.json"}
    assert (note(run)["url"], note(run)["lacks"], note(run)["reason"]) == (url, [], None)
    assert caplog.messages[-1] == f"Copied to {url}"


@pytest.mark.parametrize("whole", [(), ("memory",)], ids=["renamed", "put whole"])
def test_by_the_ways_of_both_kinds_of_stores(whole: tuple[str, ...], run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep.extras.mirror.remote._KEEPS_OBJECTS", whole)
    remote = Remote("mirror", f"memory://bucket/{len(whole)}")
    for content in (b"old", b"new"):
        (run / "train.log").write_bytes(content)
        remote.put(run / "train.log", "logs/train.log")
        assert remote.read("logs/train.log") == content
    assert remote.names() == ["logs/train.log"]
    assert remote.read("none.json") is None


def test_a_store_that_fails_is_said_in_one_line_and_tried_again_with_the_next_checkpoint(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place, url = tmp_path / "store", f"planted://{tmp_path}/store"
    Store.fault = refuse_checkpoints
    copy = Mirror(url, run, wait=20)
    copy.start()
    save_and_copy(copy, run, 2)
    wait_for(lambda: note(run).get("lacks") if (run / "mirror.json").is_file() else None)
    lacks = "checkpoints/last.ckpt, train.log, status.json"
    assert note(run)["reason"] == "the bucket is on holiday"
    assert caplog.messages == [f"{url}: not copied (the bucket is on holiday): {lacks}; tried again with the next checkpoint"]
    assert not (place / "checkpoints" / "last.ckpt").exists()
    Store.fault = well
    save_and_copy(copy, run, 3)
    wait_for(lambda: (place / "status.json").is_file())
    assert step_at(place) == 3
    Store.fault = refuse_checkpoints
    save(run, 4)
    copy.finish()
    assert caplog.messages[-1] == f"{url} lacks checkpoints/last.ckpt (the bucket is on holiday); {run} has all of it"
    assert note(run)["lacks"] == ["checkpoints/last.ckpt"]
    assert step_at(place) == 3  # half of the next one was there, under another name


@pytest.mark.parametrize(("wait", "asked", "why"), [(0.3, False, "no end within 0.3 s"), (60.0, True, "asked to leave")])
def test_a_store_that_hangs_keeps_nobody_longer_than_it_may(
    wait: float,
    asked: bool,
    why: str,
    run: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Store.fault = hang
    copy = Mirror(f"planted://{tmp_path}/store", run, wait)
    copy.start()
    STOP_SIGNALS.listen()
    STOP_SIGNALS.leave()
    if asked:
        monkeypatch.setattr("lockstep.extras.mirror.mirror.SILENCE", 0.1)
        monkeypatch.setattr("lockstep.console.say", lambda _: os.kill(os.getpid(), signal.SIGINT))
    began = time.monotonic()
    copy.finish()
    assert time.monotonic() - began < 10
    assert f"({why}); {run} has all of it" in caplog.messages[-1]
    assert note(run)["lacks"]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")  # it does nothing but copy, and die
def test_kill_9_in_the_middle_of_an_upload_leaves_the_checkpoint_before_it(run: Path, tmp_path: Path) -> None:
    url = f"planted://{tmp_path}/store"
    process = multiprocessing.get_context("fork").Process(target=copy_until_killed, args=(run, url))
    process.start()
    process.join(60)
    assert process.exitcode == -9
    (half,) = (tmp_path / "store" / "checkpoints").glob(".*")
    assert half.stat().st_size < (run / ".copied").stat().st_size
    assert 2 <= step_at(tmp_path / "store") < step_at(run)
    assert not [name for name in Remote("mirror", url).names() if name.endswith(".partial")]
    copy = Mirror(url, run, wait=20)  # the run goes on
    copy.start()
    copy.finish()
    assert step_at(tmp_path / "store") == step_at(run)
    assert not (run / ".copied").exists()


def test_the_copy_of_another_run_is_not_written_over(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    prefix = f"planted://{tmp_path}/store"
    check_mirror(prefix, run, "its id", is_new=True)
    assert not [*(tmp_path / "store").rglob("*.*")]
    copy = Mirror(copy_url(prefix, run), run, wait=20)
    copy.start()
    copy.finish()
    check_mirror(prefix, run, "its id", is_new=False)
    check_mirror(prefix, run, "another", is_new=True)  # as a job that is tried again in its directory
    (run / "mirror.json").unlink()
    words = rf"^mirror={prefix}: {prefix}/run is the copy of an earlier run; accepted is resume={prefix}/run to go on with that"
    with pytest.raises(ConfigError, match=words):
        check_mirror(prefix, run, "another", is_new=True)


def test_a_run_that_has_gone_on_elsewhere_is_not_gone_on_with_here(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    prefix = f"planted://{tmp_path}/store"
    here, again = (Mirror(copy_url(prefix, run), run, wait=20) for _ in range(2))
    here.start()
    here.finish()
    other = note(run) | {"starts": [*note(run)["starts"], "elsewhere"], "host": "B"}
    (tmp_path / "store" / "run" / "mirror.json").write_text(json.dumps(other))
    with pytest.raises(ConfigError, match=rf"^resume={run}: the run has gone on since, on B; accepted is resume={prefix}/run"):
        check_mirror(prefix, run, "its id", is_new=False)
    again.start()  # it was on its way already
    again.finish()
    assert "(the run has gone on since, on B)" in caplog.messages[-1]
    assert json.loads((tmp_path / "store" / "run" / "mirror.json").read_text()) == other


@pytest.mark.parametrize(
    ("prefix", "said"),
    [
        ("nowhere://b", r"^mirror=nowhere://b: fsspec can't open it \(Protocol not known: nowhere\); or choose"),
        ("file:///proc/1", r"^mirror=file:///proc/1: can't be written to \(.*\); accepted is the URL of a folder, s3://BUCKET"),
    ],
)
def test_what_can_not_be_a_copy_is_refused_before_a_run_begins(
    prefix: str, said: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(_registry, "s3", raising=False)  # where it has been imported before
    with pytest.raises(ConfigError, match=said):
        check_mirror(prefix.format(tmp_path), run, "its id", is_new=True)
