"""A project of one's own: its configs before Lockstep's, its packages, and the command `lockstep` in it."""

import os
import sys
from pathlib import Path

import pytest

from lockstep import __main__ as command
from lockstep import places
from lockstep.runs.composition import compose


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a model and a trainer of its own, which is the working directory."""
    for name, text in {
        "train.py": '"""Trains what is ours."""',
        "conf/train.yaml": "defaults: [model: mine, datamodule: digits, base, _self_, experiment: null]\n"
        "seed: 7\ndefault_max_epochs: 3",
        "conf/model/mine.yaml": "defaults: [classifier]\nnet: {_target_: own_nets.Net}",
        "conf/trainer/ddp.yaml": "defaults: [gpu]\nmax_epochs: 77",
        "conf/trainer/own.yaml": "defaults: [cpu]\nprecision: 64-true",
        "scripts/count.py": '"""Counts:  lockstep count"""',
        "src/own_nets.py": "Net = 1",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


@pytest.mark.usefixtures("project")
def test_its_configs_stand_before_lockstep_s_and_win() -> None:
    cfg = compose("trainer=ddp")
    assert (cfg.seed, cfg.model.net._target_, cfg.trainer.max_epochs) == (7, "own_nets.Net", 77)
    assert cfg.trainer.accelerator == "gpu"
    assert compose("trainer=cpu").trainer.accelerator == "cpu"
    assert compose("trainer=own").trainer.max_epochs == 3
    assert compose(config_name="parity").model.net._target_ == "own_nets.Net"


def test_the_command_runs_its_programs_before_lockstep_s(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _, arguments: started.append(arguments))
    for name in ("train", "count", "sweep"):
        monkeypatch.setattr(sys, "argv", ["lockstep", name, "a=1"])
        command.main()
    scripts = [project / "train.py", project / "scripts" / "count.py", places.HOME / "scripts" / "sweep.py"]
    assert started == [[sys.executable, str(script), "a=1"] for script in scripts]


@pytest.mark.usefixtures("project")
def test_the_command_lists_each_script_with_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["lockstep"])
    command.main()
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert {path.stem for path in (places.HOME / "scripts").glob("*.py")} | {"train", "count"} == {name for name, _ in lines}
    assert dict(lines)["count"] == "Counts"
    assert all(purpose.strip() for _, purpose in lines)
