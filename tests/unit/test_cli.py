"""The command line: quoting, errors in one line, the user's own project, and the command `lockstep` in it."""

import os
import signal
import sys
from pathlib import Path

import pytest
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from torch.utils.data import DataLoader, Dataset

from lockstep import __main__ as command
from lockstep import places
from lockstep.cli import start
from lockstep.config.overrides import quote, values_by_key
from lockstep.errors import ConfigError, config_error
from lockstep.runs.composition import compose

pytestmark = pytest.mark.usefixtures("no_process_group")  # a rank that has one leaves at once


def test_a_stop_request_before_a_run_has_begun_is_a_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # start() sets it, and this removes it again
    monkeypatch.setattr(HydraConfig.instance(), "cfg", None)  # as in a new process
    monkeypatch.setattr(sys, "argv", ["train.py"])
    with pytest.raises(SystemExit) as ended:
        start(lambda: signal.raise_signal(signal.SIGTERM))
    assert (ended.value.code, capsys.readouterr().err) == (75, "Stopped by SIGTERM. The same command starts it.\n")


class Refusing(Dataset[int]):
    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        raise config_error("datamodule.data_dir", "cat.png", "not a readable image\n(two lines)")


def test_a_refusal_in_a_data_worker_is_one_line() -> None:
    with pytest.raises(ConfigError) as raised:
        next(iter(DataLoader(Refusing(), num_workers=1)))
    assert str(raised.value) == "datamodule.data_dir=cat.png: not a readable image (two lines)"


def test_a_quoted_value_is_read_back_unchanged() -> None:
    for value in ("plain", "/data/with space/run 1", "it's", "a,b", "key=value", "null", "", "ends in \\"):
        assert values_by_key([f"hydra.run.dir={quote(value)}"]) == {"hydra.run.dir": value}
        assert OverridesParser.create().parse_override(f"key={quote(value)}").value() == value


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with its own model and trainer, in the working directory."""
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
def test_configs_of_the_project_win() -> None:
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
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if line.startswith("  "))
    assert {path.stem for path in (places.HOME / "scripts").glob("*.py")} | {"train", "count"} == {*lines}
    assert lines["count"] == "Counts"
