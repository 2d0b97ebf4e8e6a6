"""The records that a run writes for other programs."""

import errno
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from lockstep.atomic_files import read_json, remove_partial_files, replacing, sync_folder, write_json
from lockstep.runs import record
from lockstep.runs.locks import Lock


def test_the_old_content_stays_when_the_new_one_can_not_be_written(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    assert read_json(path) is None
    write_json(path, {"status": "running"})
    with pytest.raises(TypeError):
        write_json(path, {"status": "finished", "reason": object()})
    assert read_json(path) == {"status": "running"}
    assert list(tmp_path.iterdir()) == [path]


def test_a_reader_sees_the_old_content_until_the_new_one_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "status.json"
    write_json(path, {"status": "running"})
    seen: list[Any] = []
    replace = Path.replace

    def watched(source: Path, target: Path) -> Path:
        seen.append((read_json(target), json.loads(source.read_text()), source.parent == target.parent))
        return replace(source, target)

    monkeypatch.setattr(Path, "replace", watched)
    write_json(path, {"status": "finished"})
    assert seen == [({"status": "running"}, {"status": "finished"}, True)]  # in one file system, so that it is one step
    assert read_json(path) == {"status": "finished"}


@pytest.mark.parametrize("content", [b'{"status": "runn', b"\xff\xfe\x00"])
def test_what_can_not_be_read_is_named_once_and_reads_as_none(
    content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "status.json"
    path.write_bytes(content)
    assert read_json(path) is None
    assert read_json(path) is None
    (message,) = caplog.messages
    assert message.startswith(f"{path}: ")
    assert message.endswith("; going on without it")


def test_what_a_killed_writer_has_left_is_removed(tmp_path: Path) -> None:
    with replacing(tmp_path / "table.csv") as file:
        file.write("whole\r\n")
        (partial,) = tmp_path.iterdir()
    partial.write_text("half")  # as a kill before the rename leaves it
    remove_partial_files(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"table.csv": b"whole\r\n"}


def test_a_folder_that_can_not_be_synced_is_let_off_and_one_that_fails_at_it_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On CIFS fsync(2) of a folder is EINVAL."""

    def fail(number: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", lambda _: fail(errno.EINVAL))
    sync_folder(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda _: fail(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        sync_folder(tmp_path)


def test_a_run_that_was_killed_is_interrupted(tmp_path: Path) -> None:
    assert record.actual_status(tmp_path) is None
    record.write_status(tmp_path, "running")
    assert record.actual_status(tmp_path) == "interrupted"  # nobody has the directory
    lock = Lock(tmp_path, "hydra.run.dir")
    try:
        assert record.actual_status(tmp_path) == "running"
        record.write_status(tmp_path, "finished")
        assert record.actual_status(tmp_path) == "finished"
    finally:
        lock.close()
    (tmp_path / "status.json").write_text('{"stat')
    assert record.actual_status(tmp_path) is None


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The current time, which a test may change."""
    now = ["10:00"]
    monkeypatch.setattr(record.time, "strftime", lambda _: now[0])
    return now


def test_status_keeps_the_time_of_the_first_start(tmp_path: Path, clock: list[str]) -> None:
    record.write_status(tmp_path, "running")
    clock[0] = "11:00"
    record.write_status(tmp_path, "failed", "rank 1: ValueError: bad", rank=1)
    status = read_json(tmp_path / "status.json") or {}
    assert (status["started"], status["updated"]) == ("10:00", "11:00")
    assert (status["status"], status["reason"], status["rank"]) == ("failed", "rank 1: ValueError: bad", 1)
    for is_first, started in ((False, "10:00"), (True, "11:00")):
        record.write_status(tmp_path, "running", is_first=is_first)
        status = read_json(tmp_path / "status.json") or {}
        assert (status["started"], status["reason"], status["rank"]) == (started, None, None)


def test_status_says_who_and_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "seed=1"])
    record.write_status(tmp_path, "finished")
    status = read_json(tmp_path / "status.json") or {}
    assert list(status) == ["started", "status", "reason", "rank", "updated", "host", "pid", "command"]
    assert status["command"] == [sys.executable, "train.py", "seed=1"]
    assert status["started"] == status["updated"]  # it never said it was running
    assert time.strptime(status["started"], "%Y-%m-%dT%H:%M:%S%z")


def test_environment_has_versions_and_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "project", lambda: tmp_path)
    assert (record.environment()["git_commit"], record.environment()["git_dirty"]) == (None, None)  # outside of a checkout
    git = ("git", "-c", "user.name=a", "-c", "user.email=b", "-C", str(tmp_path))
    subprocess.run([*git, "init", "-q"], check=True)
    assert record.environment()["git_commit"] is None  # before the first commit
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "first"], check=True)
    environment = record.environment()
    assert re.fullmatch("[0-9a-f]{40}", environment["git_commit"])
    assert environment["git_dirty"] is False
    (tmp_path / "train.py").touch()
    assert record.environment()["git_dirty"] is True
    assert environment["python"] == ".".join(map(str, sys.version_info[:3]))
    wanted = {"lockstep", "torch", "torchvision", "lightning", "torchmetrics", "hydra-core", "omegaconf", "numpy"}
    assert set(environment["versions"]) == wanted
    assert all(re.match(r"\d+\.\d+", version) for version in environment["versions"].values())
    json.dumps(environment)


def test_a_rank_s_own_words_explain_that_it_was_lost(tmp_path: Path) -> None:
    record.write_status(tmp_path, "running")
    record.write_failure(tmp_path, "rank 0 has lost rank 1", 0, has_lost_rank=True)
    record.write_failure(tmp_path, "rank 2 has lost rank 1", 2, has_lost_rank=True)
    assert (read_json(tmp_path / "status.json") or {})["reason"] == "rank 0 has lost rank 1"
    record.write_failure(tmp_path, "rank 1: ValueError", 1)
    record.write_failure(tmp_path, "rank 2: ValueError", 2)
    assert (read_json(tmp_path / "status.json") or {})["reason"] == "rank 1: ValueError"
    assert "has_lost_rank" not in (read_json(tmp_path / "status.json") or {})
