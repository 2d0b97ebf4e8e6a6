"""How the end of a run is judged."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from lockstep.atomic_files import read_json, write_json
from lockstep.callbacks.nonfinite import NonFiniteLoss
from lockstep.checkpointing import write_checkpoint
from lockstep.errors import ConfigError
from lockstep.launchers.environment import RESTARTS
from lockstep.launchers.stop_signals import Preempted
from lockstep.launchers.supervisor import Outcome
from lockstep.runs import record
from lockstep.runs.locks import is_held_here
from lockstep.runs.run import Run, discard_made, outcome_of, will_make


def test_a_refusal_is_a_run_that_could_not_start(tmp_path: Path) -> None:
    assert outcome_of(ConfigError("seed=-1: no"), 1, tmp_path) == Outcome(code=2, reason="seed=-1: no", rank=1, is_final=True)


def test_a_run_that_has_saved_something_has_started(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "last.ckpt").touch()
    assert outcome_of(ConfigError("cat.png: not a readable image"), 0, tmp_path).code == 1


def test_a_run_that_has_saved_nothing_since_it_was_continued_could_not_start(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "last.ckpt").touch()
    saved = (tmp_path / "checkpoints" / "last.ckpt").stat().st_mtime
    assert outcome_of(ConfigError("cat.png: not a readable image"), 0, tmp_path, since=saved + 1).code == 2
    assert outcome_of(ConfigError("cat.png: not a readable image"), 0, tmp_path, since=saved - 1).code == 1


def test_an_exit_on_the_way_is_a_failure_without_a_traceback(tmp_path: Path) -> None:
    assert outcome_of(SystemExit(0), 0, tmp_path) == Outcome(code=1, reason="interrupted", rank=0)


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (KeyboardInterrupt(), signal.SIGINT),
        (Preempted(signal.SIGTERM), signal.SIGTERM),
        (Preempted(signal.SIGUSR1), signal.SIGUSR1),
    ],
)
def test_who_is_asked_to_stop_can_be_resumed(error: BaseException, number: signal.Signals, tmp_path: Path) -> None:
    expected = Outcome(code=75, reason=f"preempted by {number.name}", rank=1, signal=number)
    assert outcome_of(error, 1, tmp_path) == expected


def test_a_failure_that_says_everything_has_no_traceback(tmp_path: Path) -> None:
    expected = Outcome(code=1, reason="rank 2: at step 7 the loss is nan", rank=2, is_final=True)
    assert outcome_of(NonFiniteLoss("at step 7 the loss is nan"), 2, tmp_path) == expected


GLHF = "[.../gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:24221. Check the logs. GLHF!"


@pytest.mark.parametrize(
    ("gone", "blamed", "reason"),
    [
        ([1], 1, "rank 1 has died; rank 0 has lost its connection to it"),
        ([], 0, "rank 0 has lost its connection to another rank; the logs of the others may say why"),
    ],
)
def test_who_loses_its_peer_is_not_to_blame(
    gone: list[int], blamed: int, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstep.runs.run.gone_ranks", lambda: gone)
    assert outcome_of(RuntimeError(GLHF), 0, tmp_path) == Outcome(code=1, reason=reason, rank=blamed)


def test_what_was_made_is_removed_with_the_folders_that_are_empty_then(tmp_path: Path) -> None:
    run = tmp_path / "logs" / "name" / "run"
    will_make(run)
    (run / "checkpoints").mkdir(parents=True)
    (tmp_path / "logs" / "other").mkdir()
    discard_made()
    assert [path.name for path in tmp_path.rglob("*")] == ["logs", "other"]


def test_a_resumption_that_is_refused_leaves_the_run_as_it_was(
    tmp_path: Path, compose: Callable[..., DictConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstep.runs.run.note_added", lambda folder, _: (folder / "resumed.yaml").write_text("- model=cnn\n"))
    monkeypatch.setattr(
        "lockstep.runs.run.HydraConfig.get", lambda: SimpleNamespace(overrides=SimpleNamespace(task=[], hydra=[]))
    )
    record.write_status(tmp_path, "finished")
    write_json(tmp_path / "metrics.json", {"metrics": {"val/acc": 0.5}})
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    cfg = compose("trainer.accelerator=cpu", f"resume='{tmp_path}'", run_dir=tmp_path)
    run = Run(cfg, show_config=False)
    run.__enter__()
    assert (read_json(tmp_path / "status.json") or {})["status"] == "running"
    refusal = ConfigError("ckpt_path=last.ckpt: of another model")
    with pytest.raises(SystemExit) as left:
        run.__exit__(ConfigError, refusal, None)
    assert left.value.code == 2
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name != "lock"} == before


def test_an_evaluation_that_is_asked_to_stop_is_preempted_without_hydra(
    tmp_path: Path, compose: Callable[..., DictConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """scripts/evaluate.py composes its config itself."""
    monkeypatch.setattr(HydraConfig.instance(), "cfg", None)
    run = Run(compose("trainer.accelerator=cpu", run_dir=tmp_path), show_config=False)
    run.__enter__()
    with pytest.raises(SystemExit) as left:
        run.__exit__(Preempted, Preempted(signal.SIGINT), None)
    assert left.value.code == 75
    assert (read_json(tmp_path / "status.json") or {})["status"] == "preempted"


def test_a_run_started_again_leaves_the_checkpoint_of_an_earlier_one_alone(
    tmp_path: Path, compose: Callable[..., DictConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a directory that was given; after a first save of its own it goes on from that."""
    path = tmp_path / "checkpoints" / "last.ckpt"
    write_checkpoint({"of": "an earlier run"}, path)
    os.utime(path, (0, 0))
    with Run(compose("trainer.accelerator=cpu", run_dir=tmp_path), show_config=False):
        pass
    monkeypatch.setenv(RESTARTS, "1")
    for is_its_own in (False, True):
        cfg = compose("trainer.accelerator=cpu", run_dir=tmp_path)
        with Run(cfg, show_config=False):
            assert cfg.ckpt_path == (str(path) if is_its_own else None)
        write_checkpoint({"of": "this run"}, path)


def test_what_fails_while_a_run_begins_is_its_end(tmp_path: Path, compose: Callable[..., DictConfig]) -> None:
    (tmp_path / "checkpoints").mkdir()
    for name in ("last.ckpt", "previous.ckpt"):
        (tmp_path / "checkpoints" / name).write_bytes(b"torn")
    cfg = compose("trainer.accelerator=cpu", run_dir=tmp_path)
    run = Run(cfg, show_config=False)
    run.is_continued = True
    with pytest.raises(SystemExit) as left:
        run.__enter__()
    assert left.value.code == 2
    assert (read_json(tmp_path / "status.json") or {})["status"] == "failed"
    assert not is_held_here(tmp_path)
