"""How the end of a run is judged."""

from pathlib import Path

import pytest

from lockstep.config import ConfigError
from lockstep.launchers.supervisor import Outcome
from lockstep.run import discard_made, outcome_of, will_make


def test_a_refusal_is_a_run_that_could_not_start(tmp_path: Path) -> None:
    assert outcome_of(ConfigError("seed=-1: no"), 1, tmp_path) == Outcome(code=2, reason="seed=-1: no", rank=1)


def test_a_run_that_has_saved_something_has_started(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "last.ckpt").touch()
    assert outcome_of(ConfigError("cat.png: not a readable image"), 0, tmp_path).code == 1


def test_a_data_worker_s_refusal_is_one_line(tmp_path: Path) -> None:
    text = "Caught ConfigError in DataLoader worker process 0.\nOriginal:\n  ...\nlockstep.config.ConfigError: cat.png: bad\n"
    assert outcome_of(ConfigError(text), 0, tmp_path).reason == "cat.png: bad"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(0)])
def test_an_interruption_is_a_failure_without_a_traceback(error: BaseException, tmp_path: Path) -> None:
    assert outcome_of(error, 0, tmp_path) == Outcome(code=1, reason="interrupted", rank=0)


def test_what_was_made_is_removed_with_the_folders_that_are_empty_then(tmp_path: Path) -> None:
    run = tmp_path / "logs" / "name" / "run"
    will_make(run)
    (run / "checkpoints").mkdir(parents=True)
    (tmp_path / "logs" / "other").mkdir()
    discard_made()
    assert [path.name for path in tmp_path.rglob("*")] == ["logs", "other"]
