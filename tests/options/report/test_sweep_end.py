"""What a sweep does with its report when it ends."""

from pathlib import Path

import measured
import pytest
from measured import cell
from omegaconf import DictConfig, OmegaConf

from lockstep.config.construct import construct
from lockstep.report.sweep_end import WriteReport
from lockstep.runs.composition import CONF

REPORT: WriteReport = construct("report", OmegaConf.to_container(OmegaConf.load(CONF / "report.yaml")))


def config(folder: Path, **launcher: bool) -> DictConfig:
    return OmegaConf.create({"hydra": {"sweep": {"dir": str(folder)}, "launcher": launcher}})


def test_a_report_that_fails_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    REPORT.on_multirun_end(config(tmp_path))
    assert "There is no report: ConfigError: SWEEP_DIR=" in caplog.text
    measured.sweep(tmp_path, [cell(1)])
    (tmp_path / "report").write_text("a file is in the way")
    REPORT.on_multirun_end(config(tmp_path))
    assert "There is no report: FileExistsError" in caplog.text


def test_a_dry_run_has_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    REPORT.on_multirun_end(config(tmp_path, dry_run=True))
    assert (caplog.text, [*tmp_path.iterdir()]) == ("", [])
