"""Checkpoints that cannot tear: whole or not there, verified when they are read, replaced in one step."""

import contextlib
import os
import pickle
import random
import signal
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from commands import python
from in_process import last, trained
from waiting import wait_for

from lockstep.atomic_files import read_stamp
from lockstep.checkpointing import (
    AtomicCheckpointIO,
    CheckpointError,
    latest_valid_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from lockstep.errors import ConfigError
from lockstep.launchers.outcome import original_error


def content(step: int) -> dict[str, Any]:
    return {"global_step": step, "state_dict": {"weight": torch.full((64, 64), float(step))}, "names": ["a", "b"]}


def read_step(path: Path) -> int:
    checkpoint = read_checkpoint("checkpoint", path)
    assert torch.equal(checkpoint["state_dict"]["weight"], torch.full((64, 64), float(checkpoint["global_step"])))
    return checkpoint["global_step"]


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Holds last.ckpt of step 2 and previous.ckpt of step 1."""
    for step in (1, 2):
        write_checkpoint(content(step), tmp_path / "last.ckpt", keep_as="previous.ckpt")
    return tmp_path


def test_the_one_before_is_kept_and_nothing_else(folder: Path) -> None:
    (folder / ".last.ckpt.77.partial").write_bytes(b"PK torn")  # of a save that was killed
    assert latest_valid_checkpoint(folder) == folder / "last.ckpt"
    assert names(folder) == {"last.ckpt", "previous.ckpt"}
    assert (read_step(folder / "last.ckpt"), read_step(folder / "previous.ckpt")) == (2, 1)


@pytest.mark.parametrize("harm", ["cut", "flip"])
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(
    harm: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Twenty-five truncations and twenty-five flipped bits: fifty recoveries, or the file is as good as before."""
    path, whole = folder / "last.ckpt", (folder / "last.ckpt").read_bytes()
    expected = torch.load(path, weights_only=True)
    dice = random.Random(0)
    places = [i * len(whole) // 25 for i in range(25)] if harm == "cut" else dice.sample(range(len(whole)), 25)
    recovered = 0
    for place in places:
        flipped = bytes([whole[place] ^ 1 << dice.randrange(8)])
        path.write_bytes(whole[:place] if harm == "cut" else whole[:place] + flipped + whole[place + 1 :])
        caplog.clear()
        result = latest_valid_checkpoint(folder)
        if result == path:  # a bit that nothing depends on: padding, or a time in the archive's directory
            again = torch.load(path, weights_only=True)
            assert again["global_step"] == 2
            assert torch.equal(again["state_dict"]["weight"], expected["state_dict"]["weight"])
            continue
        recovered += 1
        assert result == folder / "previous.ckpt"
        assert f"checkpoint={path}: " in caplog.messages[0]
        assert caplog.messages[-1] == f"continuing from {result} instead"
    assert recovered >= (25 if harm == "cut" else 20)


def test_the_best_one_is_better_than_none(folder: Path) -> None:
    write_checkpoint(content(7), folder / "best.ckpt")
    for name in ("last.ckpt", "previous.ckpt"):
        (folder / name).unlink()
    assert latest_valid_checkpoint(folder) == folder / "best.ckpt"
    (folder / "best.ckpt").unlink()
    assert latest_valid_checkpoint(folder) is None


class Runs:
    """Unpickling it would run a command."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch harmed",)


def test_a_checkpoint_made_to_run_code_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    torch.save(content(9) | {"extra": Runs()}, folder / "evil.ckpt")
    with pytest.raises(ConfigError, match=rf"(?s)^ckpt_path={folder}/evil.ckpt: not a checkpoint .*posix.system"):
        read_checkpoint("ckpt_path", folder / "evil.ckpt")
    with pytest.raises(ConfigError, match=r"evil\.ckpt"):  # whatever is asked for
        AtomicCheckpointIO().load_checkpoint(folder / "evil.ckpt", weights_only=False)
    (folder / "plain.ckpt").write_bytes(pickle.dumps(Runs()))  # not even an archive
    with pytest.raises(ConfigError, match=r"plain.ckpt: not a readable checkpoint"):
        read_checkpoint("ckpt_path", folder / "plain.ckpt")
    assert "harmed" not in names(folder)


@pytest.mark.parametrize(("extra", "what"), [(Runs(), "GLOBAL posix.system"), ({"best": [numpy.arange(2)]}, "GLOBAL numpy")])
def test_what_would_not_load_again_is_not_written_and_is_named(
    extra: Any, what: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A run that goes on needs the state of its optimizers; what a module or a callback has added is left out."""
    with pytest.raises(CheckpointError, match=rf"last.ckpt: the checkpoint was not written \(.*{what}") as raised:
        AtomicCheckpointIO().save_checkpoint(content(3) | {"loops": extra}, folder / "last.ckpt")
    assert original_error(raised.value) is raised.value  # which is what a run says
    assert names(folder) == {"last.ckpt", "previous.ckpt"}
    assert read_step(folder / "last.ckpt") == 2
    plugin = AtomicCheckpointIO()
    for step in (3, 4):
        added = {"extra": extra, "callbacks": {"Mine": extra, "Yours": {"n": step}}}
        plugin.save_checkpoint(content(step) | added, folder / "last.ckpt")
        loaded = read_checkpoint("ckpt_path", folder / "last.ckpt")
        assert {name: loaded[name] for name in loaded.keys() - content(step)} == {"callbacks": {"Yours": {"n": step}}}
    lines = [f"Checkpoints are written without {name}, which a resumption will lack: " for name in ("extra", "callbacks.Mine")]
    assert [message.partition("GLOBAL")[0] for message in caplog.messages] == lines


def test_numbers_of_numpy_s_are_saved_as_python_s(folder: Path) -> None:
    """A callback that keeps a mean or a score by scikit-learn has them in its state, a module in its extra state."""

    class Scaled(torch.nn.BatchNorm1d):
        def get_extra_state(self) -> Any:
            return {"scale": numpy.float64(0.5)}

    state = {numpy.int64(3): [numpy.float32(0.1), (numpy.bool_(True), numpy.str_("a"))]}
    added = {"extra": state, "state_dict": Scaled(2).state_dict()}
    AtomicCheckpointIO().save_checkpoint(content(3) | added, folder / "last.ckpt")
    loaded = read_checkpoint("ckpt_path", folder / "last.ckpt")
    assert loaded["extra"] == {3: [float(numpy.float32(0.1)), (True, "a")]}
    assert [*map(type, loaded["extra"][3][1])] == [bool, str]
    assert loaded["state_dict"]["_extra_state"] == {"scale": 0.5}
    assert loaded["state_dict"]._metadata == Scaled(2).state_dict()._metadata


# A disk that is full, a folder that can't be written to, a process that is killed


def test_a_full_disk_leaves_the_earlier_checkpoints(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A process of its own saves: files may grow to 10,000 bytes, the checkpoint's are more."""
    script = f"""
import resource, signal, torch
from lockstep.checkpointing import AtomicCheckpointIO
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
content = {{"weight": torch.ones(64, 64)}}
AtomicCheckpointIO().save_checkpoint(content, {str(folder / "last.ckpt")!r}, {{"keep_as": "previous.ckpt"}})
"""
    program = tmp_path_factory.mktemp("program") / "program.py"
    program.write_text(script)
    done = python(program, cwd=program.parent)
    line = f"{folder / 'last.ckpt'}: the checkpoint was not written (File too large); earlier ones are untouched"
    assert done.stderr.strip().splitlines()[-1] == f"lockstep.checkpointing.CheckpointError: {line}"
    assert names(folder) == {"last.ckpt", "previous.ckpt"}
    assert (read_step(folder / "last.ckpt"), read_step(folder / "previous.ckpt")) == (2, 1)


def kill_at(nth: int, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Kill a save at its nth step that others can see; return the files whose steps have begun."""
    begun, replace = list[Path](), Path.replace

    def counted(path: Path, target: Path) -> Path:
        begun.append(path)
        if len(begun) == nth:
            raise KeyboardInterrupt
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", counted)
    return begun


@pytest.mark.parametrize(("nth", "newest"), [(1, "last"), (2, "previous")])
def test_a_kill_between_two_steps_of_a_save_leaves_a_sound_newest(
    nth: int, newest: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First what was there becomes previous.ckpt, then the new one last.ckpt."""
    begun = kill_at(nth, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        write_checkpoint(content(3), folder / "last.ckpt", keep_as="previous.ckpt")
    assert len(begun) == nth
    path = folder / f"{newest}.ckpt"
    assert (latest_valid_checkpoint(folder), read_step(path)) == (path, 2)
    monkeypatch.undo()
    for step in (4, 5):  # and what is left does not hinder
        write_checkpoint(content(step), folder / "last.ckpt", keep_as="previous.ckpt")
    assert (read_step(folder / "last.ckpt"), read_step(folder / "previous.ckpt")) == (5, 4)
    assert names(folder) == {"last.ckpt", "previous.ckpt"}


@pytest.mark.parametrize("nth", [1, 2])
def test_a_damaged_checkpoint_never_takes_the_place_of_the_sound_one(
    nth: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that went on from previous.ckpt saves for the first time, and is killed at any step."""
    (folder / "last.ckpt").write_bytes(b"PK torn")
    assert latest_valid_checkpoint(folder) == folder / "previous.ckpt"
    kill_at(nth, monkeypatch)
    with contextlib.suppress(KeyboardInterrupt):
        write_checkpoint(content(3), folder / "last.ckpt", keep_as="previous.ckpt")
    assert read_step(latest_valid_checkpoint(folder) or Path("nowhere")) in (1, 3)


@pytest.mark.slow
def test_killed_at_any_moment_while_saving_the_newest_is_sound(folder: Path) -> None:
    """Ten children that save in a loop, each killed with -9 after a random few milliseconds, when it has saved once."""
    dice = random.Random(1)
    newest = 2
    for _ in range(10):
        before = read_stamp(folder / "last.ckpt")
        child = os.fork()
        if child == 0:
            for step in range(newest + 1, newest + 1000):
                write_checkpoint(content(step), folder / "last.ckpt", keep_as="previous.ckpt")
            os._exit(0)
        wait_for(lambda before=before: read_stamp(folder / "last.ckpt") not in (None, before))
        time.sleep(dice.uniform(0.005, 0.08))
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        left = latest_valid_checkpoint(folder)
        assert left is not None
        assert read_step(left) >= newest
        newest = read_step(left)
        assert read_step(folder / "previous.ckpt") in (newest - 1, newest)
        assert not [*folder.glob("*.damaged")]
    assert newest >= 12


# How often a checkpoint is read


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are read whole, as they are."""
    result, testzip = list[str](), zipfile.ZipFile.testzip

    def noted(archive: zipfile.ZipFile) -> str | None:
        result.append(Path(str(archive.filename)).name)
        return testzip(archive)

    monkeypatch.setattr(zipfile.ZipFile, "testzip", noted)
    return result


def test_a_resumption_reads_its_checkpoint_whole_once(tmp_path: Path, reads: list[str]) -> None:
    """Though it is looked for, looked at before the trainer is built, and loaded by Lightning."""
    trained(tmp_path, "trainer.max_epochs=1")
    kept = (tmp_path / "checkpoints" / "last.ckpt").rename(tmp_path / "checkpoints" / "previous.ckpt")
    os.utime(kept, (1e9, 1e9))
    reads.clear()
    result = latest_valid_checkpoint(tmp_path / "checkpoints")
    assert result == kept
    trained(tmp_path, "trainer.max_epochs=2", "guards.checkpoint.every_n_steps=100", ckpt_path=result)
    assert last(tmp_path)["global_step"] == 8
    assert reads.count("previous.ckpt") == 1
