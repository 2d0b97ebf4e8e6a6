"""What a job asks SLURM for, by the settings of the launcher."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_slurm
import pytest
from omegaconf import OmegaConf

from lockstep.config.plan import Plan
from lockstep.errors import ConfigError
from lockstep.extras.slurm.launcher import SlurmExecutor
from lockstep.extras.slurm.settings import SlurmSettings
from lockstep.runs.composition import compose


@pytest.mark.parametrize(
    ("overrides", "gpus", "flags"),
    [
        (["trainer.devices=4"], 4, ["--nodes=1", "--ntasks-per-node=1", "--cpus-per-task=16", "--gres=gpu:4"]),
        (
            ["trainer.devices=4", "trainer.num_nodes=2"],
            4,
            ["--nodes=2", "--ntasks-per-node=4", "--cpus-per-task=4", "--gres=gpu:4"],
        ),
        (["trainer=cpu", "trainer.devices=2"], 4, ["--nodes=1", "--ntasks-per-node=1", "--cpus-per-task=8"]),
    ],
)
def test_a_job_asks_for_what_its_processes_need(overrides: list[str], gpus: int, flags: list[str]) -> None:
    plan = Plan.from_config(compose(*overrides), node_gpus=gpus)
    assert SlurmSettings().flags(plan) == (*flags, "--requeue", "--signal=USR1@120")
    given = SlurmSettings(partition="long", time="1-00:00:00", mem="9G", gres="gpu:a100", warning=60, sbatch=["--no-requeue"])
    more = [flag.replace("gpu:", "gpu:a100:") for flag in flags] + ["--partition=long", "--time=1-00:00:00", "--mem=9G"]
    assert given.flags(plan) == (*more, "--requeue", "--signal=USR1@60", "--no-requeue")


@pytest.mark.parametrize(
    ("key", "value"),
    [("time", 86400), ("gpus_per_node", -1)],
)
def test_settings_that_make_no_sense_are_refused(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^hydra.launcher.{key}={value}: use "):
        SlurmSettings(**{key: value})
    with pytest.raises(ConfigError, match=rf"^hydra.launcher.my_{key}=1: no such key; use .*{key}"):
        SlurmSettings.from_config(OmegaConf.create({f"my_{key}": 1}))


def test_the_gpus_of_a_node_must_be_given_unless_they_are_not_needed(tmp_path: Path) -> None:
    executor = SlurmExecutor(tmp_path, SlurmSettings())
    config = OmegaConf.create({"trainer": {"accelerator": "auto"}, "hydra": {"launcher": {"gpus_per_node": None}}})
    with pytest.raises(ConfigError, match=r"^hydra.launcher.gpus_per_node=null: use the number of GPUs"):
        executor.node_gpus(config)
    config.trainer.accelerator = "cpu"
    assert executor.node_gpus(config) == 0


def test_what_no_node_can_give_is_refused_by_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = fake_slurm.install(tmp_path, monkeypatch)
    few: Any = SimpleNamespace(resources=("--nodes=1",))
    executor = SlurmExecutor(tmp_path / "sweep", SlurmSettings())
    flags = ("--nodes=1", "--gres=gpu:a100:8", "--mem=900G", "--qos=high")
    many: Any = SimpleNamespace(resources=flags)
    executor.check([many])
    for flag, key in {
        flags[1]: "trainer.devices=8",
        flags[2]: "hydra.launcher.mem=900G",
        flags[3]: "hydra.launcher.sbatch=high",
    }.items():
        (place / "impossible").write_text(f"{flag}\n")
        with pytest.raises(ConfigError, match=rf"^{key}: sbatch refuses {flag} \(allocation failure: not available\); use"):
            executor.check([few, many])
    (place / "impossible").write_text("--mem=900G\n--qos=high\n")
    with pytest.raises(ConfigError, match=r"^hydra.launcher=--nodes=1 .* --qos=high: sbatch refuses that \("):
        executor.check([many])
    assert not (tmp_path / "sweep").exists()
