"""The code that a sweep's jobs have run is compared when it ends."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from lockstep.extras.history.sweep_end import CompareCode

COMMIT, CHANGES = "commit " + 40 * "a" + "\n", "\ndiff --git a/net.py b/net.py\n"


def test_jobs_that_have_run_other_code_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = OmegaConf.create({"hydra": {"sweep": {"dir": str(tmp_path)}}})
    for name in ("lr=1", "lr=2", "lr=3"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")
        (tmp_path / name / "code.patch").write_text(COMMIT)
    CompareCode().on_multirun_end(sweep)
    assert capsys.readouterr().out == ""
    (tmp_path / "lr=2" / "code.2.patch").write_text(COMMIT + CHANGES)
    (tmp_path / "lr=3" / "code.patch").write_text(COMMIT + CHANGES)
    CompareCode().on_multirun_end(sweep)
    head, same, other = capsys.readouterr().out.strip().splitlines()
    assert head.startswith("The jobs have not run the same code")
    assert same == "  aaaaaaaaaaaa: lr=1, lr=2"
    assert other.startswith("  aaaaaaaaaaaa+")
    assert other.endswith(": lr=2, lr=3")
