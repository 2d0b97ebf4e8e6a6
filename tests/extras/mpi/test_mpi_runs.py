"""A run under mpirun is the run that two local processes make, also if it is asked to stop and goes on."""

import json
from pathlib import Path
from typing import Any

import pytest
from bitwise import differences, state
from commands import train
from mpiruns import NAMES, TRAIN, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
# two epochs of eight steps
OPTIONS = (
    "trainer.max_epochs=2",
    "datamodule.batch_size=80",
    "model=mlp",
    "model.net.dropout=0.2",
    "++callbacks.pictures=null",
    "logger=csv",
    "test=false",
)
ASKED = "+callbacks.fault={_target_:faults.Fault,rank:1,how:SIGUSR1,batch:5,once:true}"


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The last checkpoint of the same run on two processes of its own."""
    folder = tmp_path_factory.mktemp("local")
    done = train("trainer.devices=2", *OPTIONS, "hydra.run.dir=run", cwd=folder)
    assert done.returncode == 0, done.stderr
    return state(folder / "run")


@pytest.mark.parametrize("name", NAMES)
def test_it_stops_and_goes_on_bit_for_bit(name: str, local: dict[str, Any], tmp_path: Path) -> None:
    code, output = run(name, *TRAIN, *OPTIONS, "hydra.run.dir=run", ASKED, cwd=tmp_path)
    assert code == 75, output
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (status["status"], status["reason"]) == ("preempted", "preempted by SIGUSR1")
    code, output = run(name, str(TRAIN[0]), "resume=run", cwd=tmp_path)
    assert code == 0, output
    assert output.count("The run has finished") == 1
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["world_size"] == 2
    assert not differences(local, state(tmp_path / "run"))
