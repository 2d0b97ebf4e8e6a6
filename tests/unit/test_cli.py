"""The command line's words for what Hydra could not apply."""

import signal
import sys

import pytest
from hydra.core.hydra_config import HydraConfig

from lockstep.cli import start

pytestmark = pytest.mark.usefixtures("no_process_group")  # a rank that has one leaves at once


@pytest.fixture
def _full_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # start() sets it; so it is taken back
    monkeypatch.setattr(HydraConfig.instance(), "cfg", None)  # as in a new process


@pytest.mark.usefixtures("_full_errors")
def test_a_request_to_stop_before_a_run_has_begun_is_a_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py"])
    with pytest.raises(SystemExit) as ended:
        start(lambda: signal.raise_signal(signal.SIGTERM))
    assert (ended.value.code, capsys.readouterr().err) == (75, "Stopped by SIGTERM. The same command starts it.\n")
