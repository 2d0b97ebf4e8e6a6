"""The command line's words for what Hydra could not apply."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from commands import ROOT
from omegaconf import DictConfig

from lockstep.cli import _for_hydra, start
from lockstep.config.hydra_errors import explain
from lockstep.errors import config_error
from lockstep.launchers.environment import SWEPT_KEYS

pytestmark = pytest.mark.usefixtures("no_process_group")  # a rank that has one leaves at once

MODELS = sorted(path.stem for path in (ROOT / "conf" / "model").glob("*.yaml"))


def explained(override: str, compose: Callable[..., DictConfig], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "argv", ["train.py", override])
    with pytest.raises(Exception) as refused:  # noqa: PT011  whatever Hydra raises, start() catches the two bases of it
        compose(override)
    return explain(refused.value) or ""


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "model.optimizer.lrr=1",
            "model.optimizer.lrr=1: unknown key; did you mean model.optimizer.lr? use "
            "_target_, _partial_, lr, betas, weight_decay, fused; +model.optimizer.lrr=1 adds a new one",
        ),
        ("sede=1", "sede=1: unknown key; did you mean seed? use "),
        ("xyzzy=1", "xyzzy=1: unknown key; use the "),
        ("devices=2", "devices=2: unknown key; did you mean trainer.devices? use the "),
        ("batch_size=2", "batch_size=2: unknown key; did you mean datamodule.batch_size? use the "),
    ],
)
def test_an_unknown_key_is_one_line_with_the_keys_there_are(
    override: str, message: str, compose: Callable[..., DictConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = explained(override, compose, monkeypatch)
    assert line.startswith(message)
    assert line.endswith(f"; +{override} adds a new one")
    assert "\n" not in line
    assert len(line) < 250


def test_resume_may_be_null() -> None:
    """As a script says that has `resume=${RUN:-null}`: Hydra knows no such key."""
    assert _for_hydra(["seed=1", "resume=null"]) == ["seed=1"]


def test_a_missing_option_is_one_line_with_the_options_there_are(
    compose: Callable[..., DictConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = explained("model=transformer", compose, monkeypatch)
    assert said == f"model=transformer: use one of {', '.join(MODELS)}"


@pytest.fixture
def _full_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # start() sets it; so it is taken back


@pytest.mark.usefixtures("_full_errors")
@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("sede=1", "sede=1: unknown key; did you mean seed?"),
        ("seed=${no.such.key}", "seed=${no.such.key}: Interpolation key 'no.such.key' not found"),
    ],
)
def test_an_override_that_can_not_be_applied_ends_with_one_line_and_code_2(
    override: str,
    line: str,
    compose: Callable[..., DictConfig],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", override])
    with pytest.raises(SystemExit) as ended:
        start(lambda: compose(override).seed)
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.err.startswith(line)
    assert said.err.count("\n") == 1
    assert said.out == ""


@pytest.mark.usefixtures("_full_errors")
def test_a_refusal_ends_with_its_line_and_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> None:
        raise config_error("seed", -1, "use an integer of at least 0")

    with pytest.raises(SystemExit) as ended:
        start(main)
    assert ended.value.code == 2
    assert capsys.readouterr().err == "seed=-1: use an integer of at least 0\n"


@pytest.mark.usefixtures("_full_errors")
def test_ctrl_c_before_a_run_has_begun_is_a_line(capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest) -> None:
    request.addfinalizer(partial(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT)))

    def main() -> None:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as ended:
        start(main)
    assert (ended.value.code, capsys.readouterr().err) == (130, "Interrupted.\n")
    signal.raise_signal(signal.SIGINT)  # a second one does not break off how the process ends


@pytest.mark.usefixtures("_full_errors")
def test_a_request_to_stop_before_a_run_has_begun_is_a_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py"])
    with pytest.raises(SystemExit) as ended:
        start(lambda: signal.raise_signal(signal.SIGTERM))
    assert (ended.value.code, capsys.readouterr().err) == (75, "Stopped by SIGTERM. The same command starts it.\n")


@pytest.mark.usefixtures("_full_errors")
@pytest.mark.parametrize(("name", "value"), [("LOCKSTEP_PARENT", "77777"), ("LOCKSTEP_SWEEP_PIPE", "x")])
def test_what_an_ended_run_has_left_in_the_environment_is_named(
    name: str, value: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        start(lambda: None)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(f"{name}={value}: is left over from a run that has ended; ")


def test_a_job_whose_process_does_not_end_by_itself_is_ended_with_its_own_code(tmp_path: Path) -> None:
    """It kept its place in the sweep for ever, with its record written."""
    text = "import atexit, sys, threading, time\nfrom lockstep import cli\ncli.LEAVING = 1.0\ndef wait(): time.sleep(300)\n"
    text += "def main():\n    threading.Thread(target=wait).start()\ncli.start(main)"
    environment = os.environ | {SWEPT_KEYS: "seed"}
    command = [sys.executable, "-c", text]
    done = subprocess.run(command, env=environment, cwd=tmp_path, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    assert done.returncode == 0
    assert "no progress for 1 s, after all was done (code 0)" in done.stderr
    assert "in wait" in done.stderr


@pytest.mark.usefixtures("_full_errors")
def test_a_bug_is_not_hidden() -> None:
    def main() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        start(main)


def test_what_hydra_can_not_write_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the environment says of Hydra's errors: with anything but 1 it prints a traceback and leaves with 1."""

    def main() -> None:
        assert os.environ["HYDRA_FULL_ERROR"] == "1"
        raise OSError(errno.ENOSPC, "No space left on device", "run/.hydra/config.yaml")

    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    monkeypatch.setattr(sys, "argv", ["train.py"])
    with pytest.raises(SystemExit) as ended:
        start(main)
    assert ended.value.code == 2
    assert (
        capsys.readouterr().err == "hydra.run.dir: run/.hydra/config.yaml can't be made or written to (No space left on device)\n"
    )
