"""What a job asks Ray for, and whether nodes have it. Nothing of Ray's is started."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from commands import refused
from omegaconf import OmegaConf

from lockstep.config.plan import Plan
from lockstep.errors import ConfigError
from lockstep.ray_cluster.launcher import RayExecutor
from lockstep.runs.composition import compose


@pytest.mark.parametrize(
    ("overrides", "cpus", "words", "is_there"),
    [
        (["trainer.devices=4"], 2, "1 node with CPU=8 GPU=4", True),
        (["trainer.devices=4"], 3, "1 node with CPU=12 GPU=4", False),
        (["trainer.devices=1", "trainer.num_nodes=3", "datamodule.batch_size=64"], 1, "3 nodes with CPU=1 GPU=1", False),
    ],
)
def test_a_job_asks_for_what_its_processes_need(
    overrides: list[str], cpus: float, words: str, is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)  # as if Ray were installed
    executor: Any = RayExecutor(address="auto")
    executor.nodes = lambda: [{"CPU": 8.0, "GPU": 4.0}, {"CPU": 8.0}, {"CPU": 2.0, "GPU": 4.0}]
    config = OmegaConf.create({"hydra": {"launcher": {"cpus_per_device": cpus}}})
    plan = Plan.from_config(compose(*overrides), node_gpus=8)
    if is_there:
        assert str(*executor.resources(config, plan)) == words
    else:
        with pytest.raises(ConfigError, match=rf"^hydra/launcher=ray: a job takes {words}; use what Ray has: CPU=8 GPU=4, "):
            executor.resources(config, plan)


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_the_launcher_is_refused(tmp_path: Path) -> None:
    line = refused(tmp_path, "hydra.mode=MULTIRUN", "hydra/launcher=ray", "seed=0,1")
    assert line == "hydra/launcher=ray: the library `ray` is not installed: pip install 'lockstep[ray]'"
